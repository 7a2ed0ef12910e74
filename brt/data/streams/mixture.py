"""Documents of several stores, each store for its share of the tokens, in every row.

Every row reads all stores, whole documents one after another, so that what it carries is always
the memory of one document. A row has a clock that counts tokens. A store with share w runs
through its documents of the row, over and over, at w tokens a tick: the document before which c
tokens of that store lie is due at tick b + c / w, and the row reads documents in the order in
which they are due. When tick v is reached, a store has given w * v tokens, to within its longest
document and its delay b: shares are kept exactly in the long run, in each row and so in each host.

One store, drawn by share over the rows, is due at tick 0; the others begin late by a random part
of one of their mean documents. Axes as in `document_stream`.
"""

import bisect

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.streams.documents import Batch, check_sizes, deal, gather, permutation, row_range


class MixtureStream:
    """The endless stream of training over a `MixedStore`, a function of the step alone.

    Documents of each store are dealt to rows, and shuffled in each row every time it has gone
    through its share of that store, as in `DocumentStream`.

    Args:
        store: what to read; each of its stores has at least as many documents as there are rows.
        rows: B, rows of the global batch.
        segment_length: T, in tokens.
        segments_per_step: K.
        seed: decides dealing, delays and every shuffle; not negative.

    Raises:
        ValueError: a store with fewer documents than rows, a size below 1, or a negative seed.
    """

    def __init__(
        self,
        store: MixedStore,
        rows: int,
        segment_length: int,
        segments_per_step: int = 1,
        seed: int = 0,
    ):
        check_sizes(seed, rows, segment_length, segments_per_step)
        for part in store.stores:
            if part.num_documents < rows:
                raise ValueError(
                    f"each of {rows} rows needs a document of every store in the mixture and "
                    f"{part.folder} has {part.num_documents}; lower the batch size, use more "
                    "documents, or leave it out of Mixture.corpora"
                )
        self.store = store
        self.rows = rows
        self.segment_length = segment_length
        self.segments_per_step = segments_per_step
        self._lanes = self._make_lanes(seed)
        self._windows = [None] * rows  # the last stretch of the clock each row was asked for

    def _make_lanes(self, seed):
        """For each row its lanes, one a store."""
        shares = self.store.shares
        ranks = permutation(self.rows, seed, 0, 0, 4)
        first_B = np.searchsorted(np.cumsum(shares), (ranks + 0.5) / self.rows, side="right")
        lanes = [[] for _ in range(self.rows)]
        for number, (part, base) in enumerate(zip(self.store.stores, self.store.bases)):
            segments_D = -(-part.lengths_D // self.segment_length)
            order = permutation(part.num_documents, seed, 0, number, 5)
            for row, hand in enumerate(deal(segments_D, self.rows, order)):
                late = 0.0
                if number != min(first_B[row], len(shares) - 1):
                    bits = np.random.Philox(np.random.SeedSequence((seed, row, number, 6)))
                    mean = part.lengths_D[hand].mean()
                    late = mean / shares[number] * (1 + int(bits.random_raw()) % 2**20) / 2**20
                lengths, segments = part.lengths_D[hand], segments_D[hand]
                key = seed, row, number
                lanes[row].append(_Lane(hand + base, lengths, segments, shares[number], late, key))
        return lanes

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
        """Document and offset of a row's segment of that number."""
        window = self._windows[row]
        if window is None or not window[1][0] <= number < window[1][-1]:
            # One assignment of a finished tuple: other threads see the old one or the new one.
            window = self._windows[row] = self._find_window(self._lanes[row], window, number)
        _, firsts, documents = window
        index = int(firsts.searchsorted(number, "right")) - 1
        return int(documents[index]), (number - int(firsts[index])) * self.segment_length

    def _find_window(self, lanes, last, number):
        """A short stretch of the clock in which the segment of that number is read.

        Returns:
            Its number; the row's segments before each of its documents and at its end; these
            documents, in the order in which they are due.
        """
        # In so many ticks no lane runs through more than one epoch of its documents.
        ticks = min(lane.tokens / lane.share for lane in lanes)
        low = last[0] if last is not None and number >= last[1][-1] else 0
        width = 1
        while not _more_than(lanes, (low + width + 1) * ticks, number):
            width *= 2
        window = low + bisect.bisect_left(
            range(width), True, key=lambda i: _more_than(lanes, (low + i + 1) * ticks, number)
        )
        begin, end = window * ticks, (window + 1) * ticks
        due, segments, documents = (
            np.concatenate(arrays) for arrays in zip(*(lane.between(begin, end) for lane in lanes))
        )
        order = np.argsort(due, kind="stable")  # ties go by store
        before = sum(lane.segments_before(begin) for lane in lanes)
        return window, before + np.cumsum([0, *segments[order]]), documents[order]


def _more_than(lanes, tick, number):
    """Whether documents due before a tick have more than so many segments."""
    least = [lane.epoch_at(tick) * lane.segments for lane in lanes]
    if sum(least) > number:
        return True
    if sum(least) + sum(lane.segments for lane in lanes) <= number:
        return False
    return sum(lane.segments_before(tick) for lane in lanes) > number


class _Lane:
    """The documents of one store that one row reads, and when they are due.

    tokens, segments: of one epoch.
    """

    def __init__(self, documents, lengths, segments, share, late, key):
        self._documents, self._lengths, self._segments = documents, lengths, segments
        self.tokens, self.segments = int(lengths.sum()), int(segments.sum())
        self.share, self.late, self._key = share, late, key
        self._epochs = ()  # the last two asked for

    def segments_before(self, tick):
        """Segments of all documents due before a tick."""
        epoch, index = self._position(tick)
        return epoch * self.segments + int(self._epoch(epoch)[2][index])

    def between(self, begin, end):
        """Documents due in [begin, end): when they are, their segments, which they are."""
        (first, start), (last, stop) = self._position(begin), self._position(end)
        found = []
        for epoch in range(first, last + 1):
            _, due, firsts, documents = self._epoch(epoch)
            part = slice(start if epoch == first else 0, stop if epoch == last else len(due))
            found.append((due[part], np.diff(firsts)[part], documents[part]))
        return [np.concatenate(arrays) for arrays in zip(*found)]

    def epoch_at(self, tick):
        """The epoch in which the last document due before a tick lies; 0 if there is none."""
        epoch = max(int((tick - self.late) * self.share // self.tokens), 0)
        # Rounding may have put a tick on the wrong side of a border.
        while self._due(epoch + 1, 0) < tick:
            epoch += 1
        while epoch > 0 and self._due(epoch, 0) >= tick:
            epoch -= 1
        return epoch

    def _position(self, tick):
        """Epoch, and how many of its documents are due before a tick."""
        epoch = self.epoch_at(tick)
        return epoch, int(self._epoch(epoch)[1].searchsorted(tick, "left"))

    def _due(self, epoch, tokens):
        return self.late + (epoch * self.tokens + tokens) / self.share

    def _epoch(self, epoch):
        """Number of an epoch; when its documents are due; segments before each; the documents."""
        for known in self._epochs:
            if known[0] == epoch:
                return known
        order = permutation(len(self._documents), *self._key, epoch, 7)
        tokens = np.cumsum(self._lengths[order]) - self._lengths[order]
        firsts = np.concatenate([[0], np.cumsum(self._segments[order])])
        known = epoch, self._due(epoch, tokens), firsts, self._documents[order]
        self._epochs = (known, *self._epochs[:1])
        return known
