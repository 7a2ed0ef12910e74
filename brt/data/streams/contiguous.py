"""Batches of a corpus that is cut into parallel parts. Axes as in `batch`.

All documents are one sequence, whose pairs (input x_p, target x_{p+1}) are divided into B parts of
consecutive pairs. A step reads the next T pairs of every part. Memory crosses the boundaries of
documents; only the beginning is a start. BEGIN does not occur.

Source: Dai et al. 2019, arXiv:1901.02860, data loaders of the published code; here no pair between
two parts is lost, and a short last step is padded.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.order import permutation
from brt.data.stores.joined_array import JoinedArray
from brt.data.stores.token_store import TokenStore
from brt.data.streams.base import EvaluationPass, Stream
from brt.data.streams.batch import Batch, padding

ReadTokens = Callable[[JoinedArray, int, int], np.ndarray]
"""Returns items start to stop of a store's array, in some order of the documents."""


@dataclass(eq=False)
class ContiguousStream(Stream):
    """The training stream whose batch elements begin each epoch together, with fresh memory.

    Args:
        shuffle: whether documents have a new order each epoch, as in One Billion Word. Otherwise
            fewer than B pairs are dropped.
    """

    store: TokenStore
    shuffle: bool = False

    def _prepare(self) -> None:
        store, rows = self.store, self.rows
        if store.num_tokens <= rows:
            raise ValueError(
                f"{store.folder} has {store.num_tokens} tokens, and {rows} batch elements need "
                "more than that: lower the batch size (Trainer.tokens_per_step) or use more text."
            )
        pairs = store.num_tokens - 1
        self._cuts = _even_cuts(pairs if self.shuffle else pairs // rows * rows, rows)
        self._segments = -(-int(np.diff(self._cuts).max()) // self.segment_length)
        self.row_segments_B = np.full(rows, self._segments)
        self._shuffled = functools.lru_cache(1)(functools.partial(_shuffled, store, self.seed))

    def _read(self, step: int, rows: range) -> Batch:
        batch = padding(self.segments_per_step, len(rows), self.segment_length)
        for k in range(self.segments_per_step):
            epoch, number = divmod(step * self.segments_per_step + k, self._segments)
            read = self._shuffled(epoch) if self.shuffle else in_order
            _read_segment(batch, k, self.store, read, self._cuts, rows, number)
        return batch


class ContiguousPass(EvaluationPass):
    """One pass of evaluation: no pair is dropped, and batch elements differ by at most one."""

    store: TokenStore

    def _prepare(self) -> None:
        check_pairs(self.store)
        self._cuts = _even_cuts(self.store.num_tokens - 1, self.rows)
        self.num_steps = -(-int(np.diff(self._cuts).max()) // self.segment_length)

    def _read(self, step: int, rows: range) -> Batch:
        batch = padding(1, len(rows), self.segment_length)
        _read_segment(batch, 0, self.store, in_order, self._cuts, rows, step)
        return batch

    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        pairs_B = self._cuts[rows] + step * self.segment_length
        finished_B = pairs_B >= self._cuts[np.array(rows) + 1]
        targets_B = np.where(finished_B, 0, pairs_B + 1)
        documents_B, offsets_B = document_positions(self.store, targets_B)
        return np.where(finished_B, -1, documents_B), np.where(finished_B, 0, offsets_B)


def check_pairs(store: TokenStore | MixedStore) -> None:
    if store.num_tokens < 2:
        raise ValueError(
            f"{store.folder} has one token, and a contiguous stream predicts each from the one "
            'before: use more text, or bind Trainer.stream = "documents".'
        )


def document_positions(
    store: TokenStore | MixedStore, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns documents, and offsets in them, of positions (any shape) in a whole store."""
    ends_D = np.cumsum(store.lengths_D)
    documents = np.searchsorted(ends_D, positions, side="right")
    return documents, positions - (ends_D[documents] - store.lengths_D[documents])


def in_order(flat: JoinedArray, start: int, stop: int) -> np.ndarray:
    return flat[start:stop]


def _shuffled(store: TokenStore, seed: int, epoch: int) -> ReadTokens:
    order = permutation(store.num_documents, seed, 0, epoch, 3)
    lengths = store.lengths_D
    firsts = np.concatenate([[0], np.cumsum(lengths[order])])
    # From positions in this order to positions in the store, by document.
    shifts = (np.cumsum(lengths) - lengths)[order] - firsts[:-1]

    def read(flat: JoinedArray, start: int, stop: int) -> np.ndarray:
        first = firsts.searchsorted(start, "right") - 1
        last = firsts.searchsorted(stop, "left")
        cuts = [start, *firsts[first + 1 : last].tolist(), stop]
        moved = zip(cuts, cuts[1:], shifts[first:last].tolist())
        return np.concatenate([flat[a + shift : b + shift] for a, b, shift in moved])

    return read


def _even_cuts(pairs, rows):
    """Returns the first pair of each batch element, and the end of the last: int64 (rows + 1,)."""
    return np.arange(rows + 1) * pairs // rows


def _read_segment(batch, k, store, read, cuts, rows, number):
    length = batch.inputs_KBT.shape[-1]
    for b, row in enumerate(rows):
        start = int(cuts[row]) + number * length
        stop = min(start + length, int(cuts[row + 1]))
        if start < stop:
            read_pairs(batch, k, b, store, read, start, stop)
            batch.starts_KB[k, b] = number == 0


def read_pairs(
    batch: Batch, k: int, b: int, store: TokenStore, read: ReadTokens, start: int, stop: int
) -> None:
    """Writes pairs start ... stop - 1 to batch element b of segment k."""
    tokens = read(store.all_tokens, start, stop + 1)
    batch.inputs_KBT[k, b, : stop - start] = tokens[:-1]
    batch.targets_KBT[k, b, : stop - start] = tokens[1:]
    weights = store.all_weights
    batch.weights_KBT[k, b, : stop - start] = (
        1 if weights is None else read(weights, start + 1, stop + 1)
    )
