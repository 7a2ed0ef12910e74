"""Whole documents of several stores, each with a share of the tokens of every batch element.

In each batch element each store has a schedule, which repeats its documents: the document after c
tokens of a store with share w is due when the batch element has read b + c / w tokens. Documents
are read in the order in which they are due. One store, drawn by share, has no delay b; the others
have a random part of one of their mean documents.
"""

import bisect
import functools
from typing import NamedTuple

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.order import permutation
from brt.data.streams.assignment import assign_documents
from brt.data.streams.documents import WholeDocuments, locate


class MixtureStream(WholeDocuments):
    """The training stream of a `MixedStore`; assigns and shuffles documents as `DocumentStream`."""

    store: MixedStore

    def _prepare(self) -> None:
        for part in self.store.stores:
            check_count(str(part.folder), part.num_documents, self.rows)
        self._stretches: list[_Stretch | None] = [None] * self.rows  # the last one of each row
        shares = self.store.shares
        ranks = permutation(self.rows, self.seed, 0, 0, 4)
        first_B = np.searchsorted(np.cumsum(shares), (ranks + 0.5) / self.rows, side="right")
        # The shares may add up to slightly less than 1.
        first_B = np.minimum(first_B, len(shares) - 1)
        self._schedules: list[list[_Schedule]] = [[] for _ in range(self.rows)]
        for number, (part, base) in enumerate(zip(self.store.stores, self.store.bases)):
            segments_D = -(-part.lengths_D // self.segment_length)
            key = self.seed, 0, number, 5
            row_documents = assign_documents(part, segments_D, self.rows, key)
            for row, documents in enumerate(row_documents):
                lengths = part.lengths_D[documents]
                delay = 0.0
                if number != first_B[row]:
                    bits = np.random.Philox(np.random.SeedSequence((self.seed, row, number, 6)))
                    random = (1 + int(bits.random_raw()) % 2**20) / 2**20
                    delay = lengths.mean() / shares[number] * random
                schedule = _Schedule(
                    *(documents + base, lengths, segments_D[documents]),
                    *(shares[number], delay, (self.seed, row, number)),
                )
                self._schedules[row].append(schedule)

    def _position(self, row: int, number: int) -> tuple[int, int]:
        stretch = self._stretches[row]
        if stretch is None or not stretch.firsts[0] <= number < stretch.firsts[-1]:
            # One assignment of a tuple: other threads see the old or the new one.
            stretch = self._stretches[row] = _find(self._schedules[row], stretch, number)
        return locate(stretch.documents, stretch.firsts, number, self.segment_length)


def check_count(where: str, documents: int, rows: int) -> None:
    if documents < rows:
        raise ValueError(
            f"{where} has {documents} documents, and each of {rows} batch elements needs one of "
            "every store in the mixture: lower the batch size (Trainer.tokens_per_step), use more "
            "documents, or leave it out of Mixture.corpora."
        )


class _Stretch(NamedTuple):
    number: int
    firsts: np.ndarray
    documents: np.ndarray


class _Epoch(NamedTuple):
    """The documents of a schedule in the order of one epoch.

    due: tokens read before each is due. firsts: segments of the epoch before each, and at the end.
    """

    due: np.ndarray
    firsts: np.ndarray
    documents: np.ndarray


class _Schedule:
    """The documents of one store for one batch element, and when each is due, in tokens.

    share, delay: w and b. key: of the random order of each epoch.
    """

    def __init__(
        self,
        documents: np.ndarray,
        lengths: np.ndarray,
        segments: np.ndarray,
        share: float,
        delay: float,
        key: tuple[int, ...],
    ):
        self._of_documents = documents, lengths, segments
        self._key = key
        self.tokens = int(lengths.sum())
        self.segments = int(segments.sum())
        self.share = share
        self.delay = delay
        # Two, because a stretch may end one epoch and begin the next.
        self._epoch = functools.lru_cache(2)(self._shuffled)

    def segments_before(self, time: float) -> int:
        epoch, index = self._position(time)
        return epoch * self.segments + int(self._epoch(epoch).firsts[index])

    def between(self, begin: float, end: float) -> list[np.ndarray]:
        first, start = self._position(begin)
        last, stop = self._position(end)
        parts = []
        for number in range(first, last + 1):
            epoch = self._epoch(number)
            part = slice(
                start if number == first else 0, stop if number == last else len(epoch.due)
            )
            parts.append((epoch.due[part], np.diff(epoch.firsts)[part], epoch.documents[part]))
        return [np.concatenate(arrays) for arrays in zip(*parts)]

    def epoch_at(self, time: float) -> int:
        """Returns the epoch of the last document due before a time; 0 if there is none."""
        epoch = max(int((time - self.delay) * self.share // self.tokens), 0)
        # Corrects rounding at a boundary.
        while self._due(epoch + 1, 0) < time:
            epoch += 1
        while epoch > 0 and self._due(epoch, 0) >= time:
            epoch -= 1
        return epoch

    def _position(self, time: float) -> tuple[int, int]:
        epoch = self.epoch_at(time)
        return epoch, int(self._epoch(epoch).due.searchsorted(time, "left"))

    def _due(self, epoch, tokens):
        return self.delay + (epoch * self.tokens + tokens) / self.share

    def _shuffled(self, epoch: int) -> _Epoch:
        order = permutation(len(self._of_documents[0]), *self._key, epoch, 7)
        documents, lengths, segments = (array[order] for array in self._of_documents)
        firsts = np.concatenate([[0], np.cumsum(segments)])
        return _Epoch(self._due(epoch, np.cumsum(lengths) - lengths), firsts, documents)


def _find(schedules: list[_Schedule], last: _Stretch | None, number: int) -> _Stretch:
    # In this many tokens no schedule has more than one epoch.
    length = min(schedule.tokens / schedule.share for schedule in schedules)
    low = last.number if last is not None and number >= last.firsts[-1] else 0
    width = 1
    while not _more_than(schedules, (low + width + 1) * length, number):
        width *= 2
    stretch = low + bisect.bisect_left(
        range(width), True, key=lambda i: _more_than(schedules, (low + i + 1) * length, number)
    )
    begin = stretch * length
    end = (stretch + 1) * length
    due, segments, documents = (
        np.concatenate(arrays)
        for arrays in zip(*(schedule.between(begin, end) for schedule in schedules))
    )
    order = np.argsort(due, kind="stable")  # ties in the order of the stores
    before = sum(schedule.segments_before(begin) for schedule in schedules)
    return _Stretch(stretch, before + np.cumsum([0, *segments[order]]), documents[order])


def _more_than(schedules: list[_Schedule], time: float, number: int) -> bool:
    # Whole epochs first: they decide most cases without an order.
    least = sum(schedule.epoch_at(time) * schedule.segments for schedule in schedules)
    if least > number:
        return True
    if least + sum(schedule.segments for schedule in schedules) <= number:
        return False
    return sum(schedule.segments_before(time) for schedule in schedules) > number
