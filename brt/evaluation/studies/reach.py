"""How far back the memory reaches: what is lost when it is reset c tokens before.

Blocks of W tokens, drawn from all over the documents, are scored twice: as they were recorded, and
at the end of a stretch of the document that is read from a reset c tokens before them. The curve
over c = W, 2W, 4W ... is the cost of the reset, in bits per token.

Two things are reset. The state: the stretch begins as many blocks before the reset as the model has
layers, so that the windows are full when the state goes back to the learned initial one. And the
context, windows and all, which measures what is used by whatever means; it is the only curve of a
model without a state. Stretches of one c have the same length, so the rows of a batch stay full.
"""

import itertools
import math

import numpy as np

from brt.data.streams.documents import gather, permutation, row_range
from brt.evaluation.reading import TREATMENTS, SegmentReader

BLOCKS, TOKENS = 1000, 1_000_000
"""Blocks scored at each distance, and tokens read for them, at most; one batch at least."""
SHARE = 0.1
"""From the reach on, a reset costs no more than this share of what the nearest one costs."""


def reach(run, documents, seed: int = 0, tokens: int = TOKENS) -> dict:
    """Measures a `RecordedRun`; makes the recording it needs.

    Args:
        run: a `RecordedRun`.
        documents: which to read; only those longer than two blocks tell anything.
        seed: of the blocks drawn.
        tokens: read for each distance at most, if that is a batch or more.

    Returns:
        "numbers", "series" and "verdict" of a study; costs are in bits per token, and 0 for a
        reset that lies before the document.
    """
    W, longest = run.window, int(run.store.lengths_D[documents].max())
    if longest <= 2 * W:
        return {
            "numbers": {},
            "series": [],
            "verdict": f"No document is longer than two blocks of {W:,} tokens.",
        }
    recording = run.recording("kept", documents)
    reader = SegmentReader(run.experiment, run.mesh, run.rows, W)
    distances = [W * 2**i for i in range(64) if W * (2**i + 1) < longest]
    blocks = block_starts(run.store, documents, W, seed)
    numbers, series = {"documents": len(documents), "longest": longest}, []
    numbers["windows_reach"] = run.model.windows_reach()
    probes = ("state", "context") if run.has_state else ("context",)
    places = (f"{n} of {len(probes) * len(distances)}" for n in itertools.count(1))
    for name in probes:
        costs, errors, scored = zip(
            *(
                cost_of_reset(run, reader, recording, blocks, name, c, tokens, next(places))
                for c in distances
            )
        )
        series.append(
            {
                "name": f"cost of resetting the {name}",
                "x": [*distances, longest],
                "y": [*costs, 0.0],
                "errors": [*errors, 0.0],
                "tokens": [*scored, 0],
                "x_label": "tokens between the reset and the scored block",
                "y_label": "bits per token",
            }
        )
        numbers[f"{name}_cost_nearest"] = costs[0]
        numbers[f"{name}_cost_nearest_error"] = errors[0]
        found = costs[0] > 2 * errors[0]
        numbers[f"{name}_reach"] = reach_of(costs, [*distances, longest]) if found else 0
    return {"numbers": numbers, "series": series, "verdict": verdict(numbers, W)}


def reach_of(costs, distances) -> int:
    """The first distance from which on no reset costs more than `SHARE` of the nearest one.

    Args:
        costs: of resets, the nearest first; above 0.
        distances: of these, and one more, where a reset costs nothing.
    """
    return distances[max(i for i, cost in enumerate(costs) if cost > SHARE * costs[0]) + 1]


def block_starts(store, documents, window: int, seed: int):
    """The documents and the first tokens of all their blocks, shuffled: two int arrays."""
    starts = [np.arange(0, store.lengths_D[d], window) for d in documents]
    owners = np.repeat(np.asarray(documents), [len(s) for s in starts])
    order = permutation(len(owners), seed, 0, 0, 5)
    return owners[order], np.concatenate(starts)[order]


def cost_of_reset(
    run,
    reader,
    recording,
    blocks,
    what: str,
    distance: int,
    tokens: int = TOKENS,
    place: str = "",
):
    """What a reset `distance` tokens before a block costs it.

    Args:
        run: a `RecordedRun`.
        reader: a `SegmentReader` of single blocks, T = W.
        recording: of the same parameters with the state kept.
        blocks: of `block_starts`; the first of them that begin after `distance` are scored.
        what: "state" or "context".
        distance: c in tokens, a multiple of W.
        tokens: as `reach`.
        place: what the progress display begins with, "3 of 18".

    Returns:
        Bits per token more than without a reset, their standard error over blocks, and the
        tokens scored.
    """
    W = run.window
    before = -(-run.model.windows_reach() // W) if what == "state" else 0
    length = before + distance // W + 1
    owners, starts = (x[blocks[1] > distance] for x in blocks)
    number = max(min(tokens // (length * W), BLOCKS), reader.rows)
    begins = starts[:number] - (length - 1) * W
    stretches = Stretches(run.store, reader.rows, W, owners[:number], begins, length)
    segments = reader.read(
        run.params,
        stretches,
        TREATMENTS["cleared"] if what == "state" else TREATMENTS["kept"],
        replaced=lambda step: step % length == before,
        label=None if run.quiet else f"{place} {what} reset {distance:,} tokens before, blocks",
    )
    extra, counts = [], []
    for step, segment in enumerate(segments):
        if step % length < length - 1:
            continue
        for row, (document, offset) in enumerate(zip(segment.documents_B, segment.offsets_B)):
            if document < 0:
                continue
            kept_T = recording.document(int(document)).nats_T[offset : offset + W]
            reset_T = segment.nats_BT[row, : len(kept_T)]
            extra.append(np.sum(reset_T.astype(np.float64) - kept_T) / math.log(2))
            counts.append(len(kept_T))
    extra, counts = np.array(extra), np.array(counts)
    mean = extra.sum() / counts.sum()
    error = math.sqrt(np.square(extra - mean * counts).sum()) / counts.sum()
    return float(mean), float(error), int(counts.sum())


class Stretches:
    """Stretches of documents, of one length in blocks, each read from empty caches.

    Args:
        store: a `TokenStore`.
        rows: B.
        window: W, the length of a step's segments.
        documents, begins: of each stretch its document, and its first target there; rows wait
            for a document that begins later than its stretch, and after one that ends earlier.
        length: of all stretches, in blocks.
    """

    segments_per_step = 1

    def __init__(self, store, rows: int, window: int, documents, begins, length: int):
        self.store, self.rows, self.segment_length, self.length = store, rows, window, length
        groups = -(-len(documents) // rows)
        self.num_steps = groups * length
        absent = groups * rows - len(documents)
        self._documents = np.pad(documents, (0, absent), constant_values=-1)
        self._begins = np.pad(begins, (0, absent))

    def places(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """Documents and offsets of a step, as those of `DocumentPass`."""
        group, block = divmod(step, self.length)
        stretches = np.array(row_range(step, first_row, num_rows, self.rows)) + group * self.rows
        offsets_B = self._begins[stretches] + block * self.segment_length
        documents_B = self._documents[stretches]
        outside = (offsets_B < 0) | (offsets_B >= self.store.lengths_D[documents_B])
        return np.where(outside, -1, documents_B), np.maximum(offsets_B, 0)

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """One step's `Batch`, K = 1."""
        places = zip(*(x.tolist() for x in self.places(step, first_row, num_rows)))
        batch = gather(self.store, [list(places)], self.segment_length)
        batch.starts_KB[:] |= step % self.length == 0
        return batch


def verdict(numbers: dict, window: int) -> str:
    """One sentence with the reach of each probe."""
    parts = []
    for name in ("state", "context"):
        if f"{name}_reach" not in numbers:
            continue
        cost, tokens = numbers[f"{name}_cost_nearest"], numbers[f"{name}_reach"]
        found = f"resetting the {name} {window:,} tokens before costs {cost:+.4f} bits per token"
        if tokens:
            found += f", and no more than {SHARE:.0%} of that from {tokens:,} tokens on"
        parts.append(found)
    sentence = "; ".join(parts)
    return (
        f"{sentence[0].upper()}{sentence[1:]}. The windows of all layers, one behind the other, "
        f"reach back {numbers['windows_reach']:,} tokens."
    )
