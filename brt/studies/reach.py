"""Effective length of the memory: the cost of a reset c tokens before a block.

Blocks of W tokens are scored as recorded, and again after a reset c tokens before them, c = W, 2W,
4W ... The reset is of the state, after as many blocks as fill the windows of all layers; or of the
whole context, windows included.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from brt.checks import Count, configurable
from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore
from brt.data.streams.base import EvaluationPass
from brt.data.streams.batch import gather
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording
from brt.evaluation.segment_reader import SegmentReader
from brt.studies.study import LN2, Content, Runs, Study, content, curve, ratio_and_error

BLOCKS, TOKENS = 1000, 1_000_000
"""Most blocks scored, and tokens processed, at each distance; at least one batch."""
SHARE = 0.1


@configurable
@dataclass(eq=False)
class Reach(Study):
    """Effective length of the memory."""

    title = "Effective memory length"
    caption = (
        "Cost of resetting the memory so many tokens before the scored ones, with its standard "
        "error: where a curve meets zero the memory ends."
    )

    tokens: Count = TOKENS

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        W, longest = run.window, int(run.store.lengths_D[documents].max())
        blocks = block_starts(run.store, documents, W, seed)
        # The scored blocks begin after the distance, at a multiple of W.
        last = int(blocks[1].max(initial=0))
        distances = [W * 2**i for i in range(64) if W * 2**i < last]
        if not distances:
            text = f"two blocks, of {W:,} tokens each, of any document."
            return content({}, [], f"No token is scored beyond the first {text}")
        recording = run.recording("kept", documents)
        reader = SegmentReader(run.experiment, run.mesh, run.rows, W)
        windows_reach = run.model.windows_reach()
        numbers: dict[str, float] = {
            "documents": len(documents),
            "longest": longest,
            "windows_reach": windows_reach,
        }
        series, clauses = [], []
        probes = ("state", "context") if run.has_state else ("context",)
        count = itertools.count(1)
        for probe in probes:
            costs = []
            for distance in distances:
                label = f"{next(count)} of {len(probes) * len(distances)}"
                arguments = run, reader, recording, blocks, probe, distance
                costs.append(cost_of_reset(*arguments, tokens=self.tokens, label=label))
            bits, errors, tokens = map(list, zip(*costs))
            ends = [*distances, longest]  # where a reset costs nothing
            reach = reach_of(bits, ends) if bits[0] > 2 * errors[0] else 0
            labels = "tokens between the reset and the scored block", "bits per token"
            more = {"errors": [*errors, 0.0], "tokens": [*tokens, 0]}
            name = f"cost of resetting the {probe}"
            series.append(curve(name, ends, [*bits, 0.0], *labels) | more)
            numbers |= {
                f"{probe}_cost_nearest": bits[0],
                f"{probe}_cost_nearest_error": errors[0],
                f"{probe}_reach": reach,
            }
            clause = (
                f"resetting the {probe} {W:,} tokens before costs {bits[0]:+.4f} bits per token"
            )
            if reach:
                clause += f", and no more than {SHARE:.0%} of that from {reach:,} tokens on"
            clauses.append(clause)
        sentence = "; ".join(clauses)
        summary = (
            f"{sentence[0].upper()}{sentence[1:]}. The windows of all layers, one behind the "
            f"other, reach back {windows_reach:,} tokens."
        )
        return content(numbers, series, summary)


def reach_of(costs: Sequence[float], distances: Sequence[int]) -> int:
    """Returns the first distance from which on no cost exceeds `SHARE` of the nearest one's.

    distances has one more entry than costs, where a reset costs nothing.
    """
    return distances[max(i for i, cost in enumerate(costs) if cost > SHARE * costs[0]) + 1]


def block_starts(
    store: TokenStore, documents: Sequence[int] | np.ndarray, window: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns documents and first tokens of all blocks with a scored token, shuffled."""
    starts = [_scored_starts(store, int(d), window) for d in documents]
    owners = np.repeat(np.asarray(documents), [len(s) for s in starts])
    order = permutation(len(owners), seed, 0, 0, 5)
    return owners[order], np.concatenate(starts)[order]


def _scored_starts(store, document, window):
    starts = np.arange(0, store.lengths_D[document], window)
    if not store.has_weights:
        return starts
    return starts[np.maximum.reduceat(store.weights(document), starts) > 0]


class ResetCost(NamedTuple):
    bits: float
    error: float
    tokens: int


def cost_of_reset(
    run: RecordedRun,
    reader: SegmentReader,
    recording: Recording,
    blocks: tuple[np.ndarray, np.ndarray],
    probe: str,
    distance: int,
    tokens: int = TOKENS,
    label: str = "",
) -> ResetCost:
    """Measures the cost of a reset `distance` tokens, a multiple of W, before a block.

    reader: of single blocks. recording: with the state kept. blocks: of `block_starts`. probe:
    "state" or "context".
    """
    W = run.window
    before = -(-run.model.windows_reach() // W) if probe == "state" else 0
    length = before + distance // W + 1
    owners, starts = (x[blocks[1] > distance] for x in blocks)
    number = max(min(tokens // (length * W), BLOCKS), reader.rows)
    begins = starts[:number] - (length - 1) * W
    stretches = Stretches(run.store, reader.rows, W, owners[:number], begins, length)
    segments = reader.read(
        run.params,
        stretches,
        "cleared" if probe == "state" else "kept",
        replaced=lambda step: step % length == before,
        label=run.label(f"{label} {probe} reset {distance:,} tokens before, blocks"),
    )
    extras, weights, scored = [], [], 0
    for segment in itertools.islice(segments, length - 1, None, length):
        for row, (document, offset) in enumerate(zip(segment.documents_B, segment.offsets_B)):
            if document < 0:
                continue
            block = int(document), int(offset), int(offset) + W
            kept_T, weights_T = recording.document(*block).nats_T, run.store.weights(*block)
            extra_T = segment.nats_BT[row, : len(kept_T)].astype(np.float64) - kept_T
            scored_T = weights_T > 0
            extras.append(np.sum((extra_T * weights_T)[scored_T]) / LN2)
            weights.append(weights_T.sum(dtype=np.float64))
            scored += int(scored_T.sum())
    return ResetCost(*ratio_and_error(np.array(extras), np.array(weights)), scored)


class Stretches(EvaluationPass):
    """Stretches of documents, of one length in blocks, each read from empty caches.

    documents, begins: document and first target of each stretch, which may begin before its
        document or end after it. length: in blocks.
    """

    def __init__(
        self,
        store: TokenStore,
        rows: int,
        window: int,
        documents: np.ndarray,
        begins: np.ndarray,
        length: int,
    ):
        super().__init__(store, rows, window)
        self.length = length
        groups = -(-len(documents) // rows)
        self.num_steps = groups * length
        absent = groups * rows - len(documents)
        self._documents = np.pad(documents, (0, absent), constant_values=-1)
        self._begins = np.pad(begins, (0, absent))

    def _positions(self, step, rows):
        group, block = divmod(step, self.length)
        stretches = np.array(rows) + group * self.rows
        offsets_B = self._begins[stretches] + block * self.segment_length
        documents_B = self._documents[stretches]
        outside = (offsets_B < 0) | (offsets_B >= self.store.lengths_D[documents_B])
        return np.where(outside, -1, documents_B), np.maximum(offsets_B, 0)

    def _read(self, step, rows):
        begins = zip(*(x.tolist() for x in self._positions(step, rows)))
        batch = gather(self.store, [list(begins)], self.segment_length)
        batch.starts_KB[:] |= step % self.length == 0
        return batch
