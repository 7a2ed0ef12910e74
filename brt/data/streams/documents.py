"""Batches of segments: documents read in order, each by one row, whole segments at a time.

Axes: K segments of a step, B rows, T tokens of a segment, D documents of the store.

Documents are dealt to rows once and never change rows. A document x_0 .. x_{L-1} is cut into
segments of T from its own start, the last one padded. Its inputs are BEGIN, x_0 .. x_{L-2} and its
targets x_0 .. x_{L-1}, so every token is a target exactly once. What a batch holds follows from
(store, seed, step, shape) alone: nothing is kept between batches, and any step may be asked for
at any time, for any of the rows.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from brt.data.stores.token_store import TokenStore
from brt.token_ids import BEGIN


class Batch(NamedTuple):
    """K consecutive segments of B rows.

    inputs_KBT: int32; a document's first is BEGIN, padding is 0.
    targets_KBT: int32; padding is 0.
    weights_KBT: float32, what each target counts for; padding counts 0.
    starts_KB: bool, True where a segment begins a document or there is nothing to read.
    """

    inputs_KBT: np.ndarray
    targets_KBT: np.ndarray
    weights_KBT: np.ndarray
    starts_KB: np.ndarray


DTYPES = Batch(np.int32, np.int32, np.float32, np.bool_)
"""Types of a batch's arrays, on the host and on the devices."""


class DocumentStream:
    """The endless stream of training.

    Rows are balanced once, in segments: the longest document goes first, each to the row with the
    fewest segments so far (`deal`). A row goes through its documents in an order of its own,
    shuffled anew each epoch, and goes on into its next epoch at once: no row ever waits for
    another, and the rows' epochs drift apart only by the small difference of their loads. What is
    lost is the padding of each document's last segment.

    Args:
        store: what to read; at least as many documents as rows.
        rows: B, rows of the global batch.
        segment_length: T, in tokens.
        segments_per_step: K.
        seed: decides the dealing and every shuffle; not negative.

    Attributes:
        row_segments_B: segments in one epoch of each row, int64 (rows,).

    Raises:
        ValueError: fewer documents than rows, a size below 1, or a negative seed.
    """

    def __init__(
        self,
        store: TokenStore,
        rows: int,
        segment_length: int,
        segments_per_step: int = 1,
        seed: int = 0,
    ):
        check_sizes(seed, rows, segment_length, segments_per_step)
        if store.num_documents < rows:
            raise ValueError(
                f"{rows} rows need at least as many documents and {store.folder} has "
                f"{store.num_documents}; lower the batch size (Trainer.tokens_per_step) or use "
                'more documents, or bind Trainer.stream = "contiguous", which cuts documents into '
                "rows"
            )
        self.store = store
        self.rows = rows
        self.segment_length = segment_length
        self.segments_per_step = segments_per_step
        self.seed = seed
        self._segments_D = -(-store.lengths_D // segment_length)
        order = permutation(store.num_documents, seed, 0, 0, 1)
        self._hands = deal(self._segments_D, rows, order)
        self.row_segments_B = np.array([self._segments_D[hand].sum() for hand in self._hands])
        self._epochs = [None] * rows  # the last epoch each row was asked for

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """Segments step * K .. step * K + K - 1 of rows first_row .. first_row + num_rows - 1.

        Safe to call from several threads. With num_rows None, all rows from first_row on.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        rows = row_range(step, first_row, num_rows, self.rows)
        steps = range(step * self.segments_per_step, (step + 1) * self.segments_per_step)
        places = [[self._place(row, number) for row in rows] for number in steps]
        return gather(self.store, places, self.segment_length)

    def _place(self, row, number):
        """Document and offset of a row's segment of that number, counted over all epochs."""
        epoch, number = divmod(number, int(self.row_segments_B[row]))
        known = self._epochs[row]
        if known is None or known[0] != epoch:
            hand = self._hands[row]
            shuffled = hand[permutation(len(hand), self.seed, row, epoch, 2)]
            # One assignment of a finished tuple: other threads see the old one or the new one.
            known = (epoch, shuffled, _first_segments(self._segments_D[shuffled]))
            self._epochs[row] = known
        return _locate(known[1], known[2], number, self.segment_length)


class DocumentPass:
    """One pass of evaluation: every document once, then padding until all rows have finished.

    Args:
        store: what to read.
        rows: B, rows of the global batch; may exceed the documents.
        segment_length: T, in tokens.
        seed: deals the documents in a random order; None keeps the store's.
        documents: read these only, integers; None for all.

    Attributes:
        segments_per_step: K, always 1.
        num_steps: steps after which every token has been a target.

    Raises:
        ValueError: a size below 1, or a negative seed.
    """

    segments_per_step = 1

    def __init__(
        self,
        store: TokenStore,
        rows: int,
        segment_length: int,
        seed: int | None = None,
        documents=None,
    ):
        check_sizes(seed or 0, rows, segment_length)
        self.store = store
        self.rows = rows
        self.segment_length = segment_length
        segments_D = -(-store.lengths_D // segment_length)
        order = np.arange(store.num_documents)
        if seed is not None:
            order = permutation(store.num_documents, seed, 0, 0, 1)
        if documents is not None:
            order = order[np.isin(order, documents)]
        self._hands = deal(segments_D, rows, order)
        self._firsts = [_first_segments(segments_D[hand]) for hand in self._hands]
        self.num_steps = int(max(segments_D[hand].sum() for hand in self._hands))

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """The segments of one step, K = 1; rows that have finished have weights 0.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        places = zip(*(array.tolist() for array in self.places(step, first_row, num_rows)))
        return gather(self.store, [list(places)], self.segment_length)

    def places(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """What the rows of `batch` read.

        Returns:
            documents_B: int64, document in the store; -1 where the row has finished.
            offsets_B: int64, offset in the document of the segment's first target.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        rows = row_range(step, first_row, num_rows, self.rows)
        places = [
            _locate(self._hands[row], self._firsts[row], step, self.segment_length) for row in rows
        ]
        documents_B, offsets_B = np.array(places, np.int64).reshape(-1, 2).T
        return documents_B, offsets_B


def document_segments(tokens, segment_length: int) -> Iterator[Batch]:
    """One document as batches of one row, K = 1, for reading it outside a store.

    Args:
        tokens: integers (tokens,), the whole document; at least one.
        segment_length: T, in tokens.

    Yields:
        `Batch`es whose K axis is dropped: inputs, targets and weights (1, T), starts (1,).
    """
    tokens = np.asarray(tokens, np.int32)
    count = -(-len(tokens) // segment_length)
    inputs, targets = np.zeros((2, count, 1, segment_length), np.int32)
    weights = np.zeros(inputs.shape, np.float32)
    inputs.reshape(-1)[: len(tokens)] = np.concatenate([[BEGIN], tokens[:-1]])
    targets.reshape(-1)[: len(tokens)] = tokens
    weights.reshape(-1)[: len(tokens)] = 1
    for number in range(count):
        starts = np.array([number == 0])
        yield Batch(inputs[number], targets[number], weights[number], starts)


def deal(segments_D, rows: int, order_D) -> list[np.ndarray]:
    """Deals documents to rows so that the rows have nearly the same number of segments.

    The longest document goes first, each to the row with the fewest segments so far; so no two
    rows differ by more than the longest document. Ties go by `order_D` and by row.

    Args:
        segments_D: segments of each document, integers (documents,).
        rows: number of rows.
        order_D: a permutation of the documents.

    Returns:
        For each row its documents, int64 arrays; empty where there are too few documents.
    """
    longest_first = order_D[np.argsort(-segments_D[order_D], kind="stable")]
    hands = [[] for _ in range(rows)]
    loads = [(0, row) for row in range(rows)]
    for document in longest_first.tolist():
        load, row = loads[0]
        hands[row].append(document)
        heapq.heapreplace(loads, (load + int(segments_D[document]), row))
    return [np.array(hand, np.int64) for hand in hands]


def permutation(count: int, *key: int) -> np.ndarray:
    """A permutation of `count` things that follows from the key alone, int64 (count,).

    Args:
        key: integers, at least 0; the last one above 0, because NumPy takes keys that differ by
            zeros at the end for equal.
    """
    # Raw bits, because NumPy keeps those the same in all versions, unlike its shuffles.
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")


def padding(segments: int, rows: int, segment_length: int) -> Batch:
    """A batch in which no row has anything to read."""
    shape = segments, rows, segment_length
    inputs, targets, weights = (np.zeros(shape, dtype) for dtype in DTYPES[:3])
    return Batch(inputs, targets, weights, np.ones(shape[:2], DTYPES.starts_KB))


def _first_segments(segments):
    """Number of the first segment of each document of a row, and at the end the row's total."""
    return np.concatenate([[0], np.cumsum(segments)])


def _locate(documents, firsts, number, segment_length):
    """Document and offset of a row's segment of that number, (-1, 0) past the last."""
    if number >= firsts[-1]:
        return -1, 0
    index = int(firsts.searchsorted(number, "right")) - 1
    return int(documents[index]), (number - int(firsts[index])) * segment_length


def gather(store, places_KB, segment_length):
    """Reads the segments that begin at the given (document, offset)s; document -1 is padding."""
    batch = padding(len(places_KB), len(places_KB[0]), segment_length)
    inputs_KBT, targets_KBT, weights_KBT, starts_KB = batch
    for k, places_B in enumerate(places_KB):
        for b, (document, offset) in enumerate(places_B):
            if document < 0:
                continue
            end = offset + segment_length
            # From one token earlier: the first input is the last target of the segment before.
            tokens = store.tokens(document, max(offset - 1, 0), end)
            starts_KB[k, b] = offset == 0
            targets = tokens[min(offset, 1) :]
            length = len(targets)
            targets_KBT[k, b, :length] = targets
            inputs_KBT[k, b, 1:length] = targets[:-1]
            inputs_KBT[k, b, 0] = BEGIN if offset == 0 else tokens[0]
            if store.has_weights:
                weights_KBT[k, b, :length] = store.weights(document, offset, end)
            else:
                weights_KBT[k, b, :length] = 1
    return batch


def check_sizes(seed: int, rows: int, segment_length: int, segments_per_step: int = 1) -> None:
    """Refuses what no stream can be read with.

    Raises:
        ValueError: naming the sizes and the seed.
    """
    if seed < 0 or min(rows, segment_length, segments_per_step) < 1:
        raise ValueError(
            f"rows = {rows}, segment_length = {segment_length}, segments_per_step = "
            f"{segments_per_step} and seed = {seed} cannot be read with; the first three must be "
            "at least 1, the seed at least 0"
        )


def row_range(step: int, first_row: int, num_rows: int | None, rows: int) -> range:
    """The rows asked for; with num_rows None all from first_row on.

    Raises:
        ValueError: a negative step, or rows outside the batch.
    """
    num_rows = rows - first_row if num_rows is None else num_rows
    if step < 0 or first_row < 0 or num_rows < 1 or first_row + num_rows > rows:
        raise ValueError(
            f"asked for {num_rows} rows from row {first_row} on at step {step}; the batch has "
            f"{rows} rows, and steps begin at 0"
        )
    return range(first_row, first_row + num_rows)
