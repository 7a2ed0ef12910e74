"""Measures the loss by position: in the document, in the segment and in the block.

Source: Block-Recurrent, appendix H (Figure 6).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
    parts_of,
    scored_weights,
    sums_by_position,
    weighted,
)

POINTS = 500
"""Points of the curve over a document, evenly spread over the logarithm of the position."""
PARTS = 64
"""Parts of a segment or block."""


class LossByPart(NamedTuple):
    """Mean loss at each offset in a segment or a block, without first segments of documents.

    unit: "segment" or "block".
    offsets: first token of each part of it that has any token.
    """

    unit: str
    offsets: list[int]
    bits: list[float]


class LossByPosition(NamedTuple):
    """Losses of one or more models by position, on the same documents.

    positions: numbers of tokens, rising up to the longest document's length.
    reaching: number of documents that have so many tokens, at each position.
    cumulative: name of each model, the run first, to bits per token over the first x tokens.
    by_part: of the first model.
    """

    positions: list[int]
    reaching: list[int]
    cumulative: dict[str, list[float]]
    by_part: list[LossByPart]
    documents: int
    tokens: int
    longest: int


class Positions(Study):
    """Loss by position in the document, the segment and the block (Figure 6)."""

    title = "Loss by position"
    caption = (
        "As Figure 6 of the paper: a model that uses its memory continues to fall where the other "
        "is level. The axis fits what follows the first tenth."
    )
    most_others = 1

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int = 0):
        runs = {run.workdir: run, **others}
        recordings = {name: each.recording("kept", documents) for name, each in runs.items()}
        return loss_by_position(recordings, run.store, documents)

    @staticmethod
    def present(result: LossByPosition) -> Content:
        numbers: dict[str, float] = {}
        series = []
        labels = "position, tokens", "bits per token so far"
        for name, bits in result.cumulative.items():
            series.append(curve(f"cumulative, {name}", result.positions, bits, *labels))
            numbers[f"bits_per_token, {name}"] = bits[-1]
        own = next(iter(result.cumulative))
        parts = [
            curve(
                f"by place in the {part.unit}, {own}",
                part.offsets,
                part.bits,
                f"place in the {part.unit}, tokens",
                "bits per token",
            )
            for part in result.by_part
        ]
        labels = "position, tokens", "documents that reach it"
        counts = curve("documents", result.positions, result.reaching, *labels)
        numbers |= {
            "documents": result.documents,
            "tokens": result.tokens,
            "longest": result.longest,
        }
        return content(numbers, [series[0], *parts, *series[1:], counts], summary(result))


def summary(result: LossByPosition) -> str:
    (_, own), *others = result.cumulative.items()
    middle = int(np.searchsorted(result.positions, max(result.longest // 10, 1)))

    def compared(point):
        return "".join(f" ({name} {bits[point]:.4f})" for name, bits in others)

    return (
        f"Over the first {result.positions[middle]:,} tokens of each document the loss is "
        f"{own[middle]:.4f} bits per token{compared(middle)}, over all of its up to "
        f"{result.longest:,} tokens {own[-1]:.4f}{compared(-1)}."
    )


def loss_by_position(
    recordings: Mapping[str, Recording], store: TokenStore, documents: Sequence[int] | np.ndarray
) -> LossByPosition:
    """Computes the cumulative cross-entropy by position, and the loss by part.

    Bits at position x are the weighted mean over the first x tokens of all documents, of shorter
    ones as many as they have.
    """
    lengths_D = store.lengths_D[list(documents)]
    longest = int(lengths_D.max())
    weights = scored_weights(store, documents)
    weights_T = sums_by_position(weights, longest)
    counts_T = np.cumsum(weights_T)
    grid_X = np.unique(np.geomspace(1, longest, POINTS).round().astype(int))
    grid_X = grid_X[counts_T[grid_X - 1] > 0]
    cumulative: dict[str, list[float]] = {}
    by_part: list[LossByPart] = []
    for name, recording in recordings.items():
        nats = (recording.document(int(document)).nats_T for document in documents)
        bits_T = sums_by_position(map(weighted, nats, weights), longest) / LN2
        cumulative[name] = (np.cumsum(bits_T)[grid_X - 1] / counts_T[grid_X - 1]).tolist()
        by_part = by_part or list(_by_part(recording.manifest, bits_T, weights_T))
    return LossByPosition(
        positions=grid_X.tolist(),
        reaching=(lengths_D[:, None] >= grid_X).sum(0).tolist(),
        cumulative=cumulative,
        by_part=by_part,
        documents=len(lengths_D),
        tokens=sum(int((weights_T > 0).sum()) for weights_T in weights),
        longest=longest,
    )


def _by_part(manifest, bits_T, weights_T) -> Iterator[LossByPart]:
    segment_length = manifest["segment_length"]
    # A document's first tokens are dear for another reason.
    begin = segment_length if len(bits_T) > segment_length else 0
    for unit, length in (("segment", segment_length), ("block", manifest["window"])):
        parts = min(PARTS, length)
        part_T = parts_of(np.arange(begin, len(bits_T)), length, parts)
        sums = np.bincount(part_T, bits_T[begin:], parts)
        counts = np.bincount(part_T, weights_T[begin:], parts)
        known = np.flatnonzero(counts)
        offsets = (known * length // parts).tolist()
        yield LossByPart(unit, offsets, (sums[known] / counts[known]).tolist())
