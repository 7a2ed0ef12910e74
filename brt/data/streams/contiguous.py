"""Batches of a corpus cut into parallel rows, which step through it side by side.

Axes as in `document_stream`.

The documents stand one after another as one sequence x_0 .. x_{M}, whose M pairs (input x_p,
target x_{p+1}) are cut into B rows of consecutive pairs. A step takes the next T pairs of every
row. Documents are not marked: what a model carries crosses from one into the next, and only the
start of the stream is a start. x_0 is an input but no target, and BEGIN does not occur.

Source: Dai et al. 2019, arXiv:1901.02860, the data loaders of the published code, with two
differences: rows meet without a gap (there, a row's first token is nobody's target), and a step
that is shorter than the others is padded, with weights 0, because shapes are static here.
"""

import numpy as np

from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import Batch, check_sizes, padding, permutation, row_range


class ContiguousStream:
    """The endless stream of training: all rows begin each epoch together, as fresh streams.

    Args:
        store: what to read; more tokens than rows.
        rows: B, rows of the global batch.
        segment_length: T, in tokens.
        segments_per_step: K.
        seed: decides every shuffle; not negative.
        shuffle: read the documents in an order of its own each epoch, crossing their borders, as
            for the sentences of One Billion Word. Every document is then read every epoch: row
            lengths differ by up to one pair, where otherwise fewer than B pairs at the end of the
            corpus are dropped.

    Attributes:
        row_segments_B: segments in one epoch of each row, all the same, int64 (rows,).

    Raises:
        ValueError: no more tokens than rows, a size below 1, or a negative seed.
    """

    def __init__(
        self,
        store: TokenStore,
        rows: int,
        segment_length: int,
        segments_per_step: int = 1,
        seed: int = 0,
        shuffle: bool = False,
    ):
        check_sizes(seed, rows, segment_length, segments_per_step)
        if store.num_tokens <= rows:
            raise ValueError(
                f"{rows} rows need more tokens than that, and {store.folder} has "
                f"{store.num_tokens}; lower the batch size (Trainer.tokens_per_step) or use more "
                "text"
            )
        self.store = store
        self.rows = rows
        self.segment_length = segment_length
        self.segments_per_step = segments_per_step
        self.seed = seed
        self.shuffle = shuffle
        pairs = store.num_tokens - 1
        self._cuts = _even_cuts(pairs if shuffle else pairs // rows * rows, rows)
        self._segments = -(-int(np.diff(self._cuts).max()) // segment_length)
        self.row_segments_B = np.full(rows, self._segments)
        self._known = None  # the last epoch asked for, and its sequence

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """Segments step * K .. step * K + K - 1 of rows first_row .. first_row + num_rows - 1.

        Safe to call from several threads. With num_rows None, all rows from first_row on.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        rows = row_range(step, first_row, num_rows, self.rows)
        batch = padding(self.segments_per_step, len(rows), self.segment_length)
        for k in range(self.segments_per_step):
            epoch, number = divmod(step * self.segments_per_step + k, self._segments)
            _read_segment(batch, k, self._sequence(epoch), self._cuts, rows, number)
        return batch

    def _sequence(self, epoch):
        if not self.shuffle:
            return InOrder(self.store)
        known = self._known
        if known is None or known[0] != epoch:
            # One assignment of a finished tuple: other threads see the old one or the new one.
            known = self._known = epoch, _Shuffled(self.store, self.seed, epoch)
        return known[1]


class ContiguousPass:
    """One pass of evaluation: no pair is dropped, and rows differ by at most one.

    Args:
        store: what to read; at least two tokens.
        rows: B, rows of the global batch; may exceed the tokens.
        segment_length: T, in tokens.

    Attributes:
        segments_per_step: K, always 1.
        num_steps: steps after which every token but the first has been a target.

    Raises:
        ValueError: a store of one token, or a size below 1.
    """

    segments_per_step = 1

    def __init__(self, store: TokenStore, rows: int, segment_length: int):
        check_sizes(0, rows, segment_length)
        if store.num_tokens < 2:
            raise ValueError(
                f"{store.folder} has one token, and a contiguous stream predicts each from the "
                'one before; use more text, or bind Trainer.stream = "documents"'
            )
        self.store = store
        self.rows = rows
        self.segment_length = segment_length
        self._cuts = _even_cuts(store.num_tokens - 1, rows)
        self.num_steps = -(-int(np.diff(self._cuts).max()) // segment_length)

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """The segments of one step, K = 1; rows that have finished have weights 0.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        rows = row_range(step, first_row, num_rows, self.rows)
        batch = padding(1, len(rows), self.segment_length)
        _read_segment(batch, 0, InOrder(self.store), self._cuts, rows, step)
        return batch

    def places(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """Where the segments of `batch` begin; they may reach into later documents.

        Returns:
            documents_B: int64, document of the segment's first target; -1 where the row has
                finished.
            offsets_B: int64, offset of that target in its document.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        rows = row_range(step, first_row, num_rows, self.rows)
        places_B = self._cuts[rows] + step * self.segment_length
        finished_B = places_B >= self._cuts[np.array(rows) + 1]
        targets_B = np.where(finished_B, 0, places_B + 1)
        documents_B, offsets_B = place_in_store(self.store, targets_B)
        return np.where(finished_B, -1, documents_B), np.where(finished_B, 0, offsets_B)


def place_in_store(store, places):
    """Documents, and offsets in them, of tokens counted over a store's whole text; int arrays."""
    ends_D = np.cumsum(store.lengths_D)
    documents = np.searchsorted(ends_D, places, side="right")
    return documents, places - (ends_D[documents] - store.lengths_D[documents])


class InOrder:
    """The documents in the store's order, as one sequence."""

    def __init__(self, store):
        self._tokens, self._weights = store.all_tokens, store.all_weights

    def tokens(self, start, stop):
        return self._tokens[start:stop]

    def weights(self, start, stop):
        return 1 if self._weights is None else self._weights[start:stop]


class _Shuffled:
    """The documents in the order of one epoch, as one sequence."""

    def __init__(self, store, seed, epoch):
        order = permutation(store.num_documents, seed, 0, epoch, 3)
        self._tokens, self._weights = store.all_tokens, store.all_weights
        lengths = store.lengths_D
        self._firsts = np.concatenate([[0], np.cumsum(lengths[order])])
        # From a place in this sequence to the same token's place in the store, by document.
        self._shifts = (np.cumsum(lengths) - lengths)[order] - self._firsts[:-1]

    def tokens(self, start, stop):
        return self._read(self._tokens, start, stop)

    def weights(self, start, stop):
        return 1 if self._weights is None else self._read(self._weights, start, stop)

    def _read(self, flat, start, stop):
        first = self._firsts.searchsorted(start, "right") - 1
        last = self._firsts.searchsorted(stop, "left")
        cuts = [start, *self._firsts[first + 1 : last].tolist(), stop]
        shifts = self._shifts[first:last].tolist()
        return np.concatenate([flat[a + s : b + s] for a, b, s in zip(cuts, cuts[1:], shifts)])


def _even_cuts(pairs, rows):
    """The first pair of each row, and the end of the last row: int64 (rows + 1,)."""
    return np.arange(rows + 1) * pairs // rows


def _read_segment(batch, k, sequence, cuts, rows, number):
    """Fills in segment k of a batch of padding with the given rows' segment of that number."""
    length = batch.inputs_KBT.shape[-1]
    for b, row in enumerate(rows):
        start = int(cuts[row]) + number * length
        stop = min(start + length, int(cuts[row + 1]))
        if start >= stop:
            continue
        read_pairs(batch, k, b, sequence, start, stop)
        batch.starts_KB[k, b] = number == 0


def read_pairs(batch, k, b, sequence, start, stop):
    """Fills in row b of segment k with the pairs start ... stop - 1 of a sequence."""
    tokens = sequence.tokens(start, stop + 1)
    batch.inputs_KBT[k, b, : stop - start] = tokens[:-1]
    batch.targets_KBT[k, b, : stop - start] = tokens[1:]
    batch.weights_KBT[k, b, : stop - start] = sequence.weights(start + 1, stop + 1)
