"""Loss by position: in the document, in the segment and in the block.

Source: Block-Recurrent, appendix H (Figure 6).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from brt.data.stores.token_store import TokenStore
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording
from brt.studies.study import (
    LN2,
    Content,
    Runs,
    Study,
    content,
    curve,
    scored_weights,
    sums_by_position,
    weighted,
)

POINTS = 500
"""Points of the curve over a document, evenly spaced in the logarithm of the position."""
PARTS = 64


class Positions(Study):
    """Loss by position in the document, the segment and the block (Figure 6)."""

    title = "Loss by position"
    caption = (
        "As Figure 6 of the paper: a model that uses its memory continues to fall where the other "
        "is level. The axis fits what follows the first tenth."
    )
    most_others = 1

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        runs = {run.workdir: run, **others}
        recordings = {name: each.recording("kept", documents) for name, each in runs.items()}
        return loss_by_position(recordings, run.store, documents)


def loss_by_position(
    recordings: Mapping[str, Recording], store: TokenStore, documents: Sequence[int] | np.ndarray
) -> Content:
    """Returns the cross-entropy by position, and by part of a segment and of a block.

    Cumulative bits at position x are the weighted mean over the first x tokens of all documents, or
    all tokens of shorter ones; the others are means from x to below 2x. Parts of segments and
    blocks leave out documents' first segments.
    """
    lengths_D = store.lengths_D[list(documents)]
    longest = int(lengths_D.max())
    weights = scored_weights(store, documents)
    weights_T = sums_by_position(weights, longest)
    counts_T = np.cumsum(weights_T)
    grid_X = np.unique(np.geomspace(1, longest, POINTS).round().astype(int))
    grid_X = grid_X[counts_T[grid_X - 1] > 0]
    positions = grid_X.tolist()
    numbers: dict[str, float] = {}
    series, cumulative = [], {}
    doubled = 2 ** np.arange(longest.bit_length())
    doubled_counts = np.add.reduceat(weights_T, doubled - 1)
    kept = doubled_counts > 0
    for name, recording in recordings.items():
        nats = (recording.document(int(document)).nats_T for document in documents)
        bits_T = sums_by_position(map(weighted, nats, weights), longest) / LN2
        bits = (np.cumsum(bits_T)[grid_X - 1] / counts_T[grid_X - 1]).tolist()
        cumulative[name], numbers[f"bits_per_token, {name}"] = bits, bits[-1]
        labels = "position, tokens", "bits per token so far"
        series.append(curve(f"cumulative, {name}", positions, bits, *labels))
        means = np.add.reduceat(bits_T, doubled - 1)[kept] / doubled_counts[kept]
        labels = "position x, tokens", "bits per token from x to 2x"
        series.append(
            curve(f"from a position, {name}", doubled[kept].tolist(), means.tolist(), *labels)
        )
        series += _by_part(name, recording.manifest, bits_T, weights_T)
    reaching = (lengths_D[:, None] >= grid_X).sum(0).tolist()
    labels = "position, tokens", "documents that reach it"
    series.append(curve("documents", positions, reaching, *labels))
    numbers |= {
        "documents": len(lengths_D),
        "tokens": sum(int((weights_T > 0).sum()) for weights_T in weights),
        "longest": longest,
    }
    return content(numbers, series, _summary(positions, cumulative, longest))


def _by_part(name, manifest, bits_T, weights_T):
    segment_length = manifest["segment_length"]
    # First segments cost more for lack of context.
    begin = segment_length if len(bits_T) > segment_length else 0
    for unit, length in (("segment", segment_length), ("block", manifest["window"])):
        parts = min(PARTS, length)
        part_T = np.arange(begin, len(bits_T)) % length * parts // length
        sums = np.bincount(part_T, bits_T[begin:], parts)
        counts = np.bincount(part_T, weights_T[begin:], parts)
        known = np.flatnonzero(counts)
        firsts = -(-known * length // parts)
        points = firsts.tolist(), (sums[known] / counts[known]).tolist()
        labels = f"position in the {unit}, tokens", "bits per token"
        yield curve(f"by position in the {unit}, {name}", *points, *labels)


def _summary(positions, cumulative, longest):
    (_, own), *others = cumulative.items()
    middle = int(np.searchsorted(positions, max(longest // 10, 1)))

    def compared(point):
        return "".join(f" ({name} {bits[point]:.4f})" for name, bits in others)

    return (
        f"Over the first {positions[middle]:,} tokens of each document the loss is "
        f"{own[middle]:.4f} bits per token{compared(middle)}, over all of its up to "
        f"{longest:,} tokens {own[-1]:.4f}{compared(-1)}."
    )
