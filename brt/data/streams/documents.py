"""Batches of whole documents, each read by one batch element. Axes as in `batch`.

A document x_0 .. x_{L-1} is cut into segments of T from its start, the last one padded. Its inputs
are BEGIN, x_0 .. x_{L-2} and its targets x_0 .. x_{L-1}.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore
from brt.data.streams.assignment import assign, assign_documents
from brt.data.streams.base import EvaluationPass, Stream
from brt.data.streams.batch import Batch, gather


class WholeDocuments(Stream):
    """A training stream whose batch elements read whole documents, one after another."""

    def _read(self, step: int, rows: range) -> Batch:
        numbers = range(step * self.segments_per_step, (step + 1) * self.segments_per_step)
        positions = [[self._position(row, number) for row in rows] for number in numbers]
        return gather(self.store, positions, self.segment_length)

    @abc.abstractmethod
    def _position(self, row: int, number: int) -> tuple[int, int]: ...


class DocumentStream(WholeDocuments):
    """The training stream in which each batch element has its own documents.

    They are assigned once (`assign_documents`) and shuffled every epoch; epochs of batch elements
    are independent.
    """

    store: TokenStore

    def _prepare(self) -> None:
        store, rows = self.store, self.rows
        tokens = self.segment_length * self.segments_per_step
        check_count(str(store.folder), store.num_documents, rows, tokens)
        self._segments_D = -(-store.lengths_D // self.segment_length)
        self._row_documents = assign_documents(store, self._segments_D, rows, (self.seed, 0, 0, 1))
        self.row_segments_B = np.array(
            [self._segments_D[documents].sum() for documents in self._row_documents]
        )
        self._orders = [lru_cache(1)(partial(self._order, row)) for row in range(rows)]

    def _position(self, row: int, number: int) -> tuple[int, int]:
        epoch, number = divmod(number, int(self.row_segments_B[row]))
        documents, firsts = self._orders[row](epoch)
        return locate(documents, firsts, number, self.segment_length)

    def _order(self, row, epoch):
        documents = self._row_documents[row]
        shuffled = documents[permutation(len(documents), self.seed, row, epoch, 2)]
        return shuffled, _first_segments(self._segments_D[shuffled])


def check_count(where: str, documents: int, rows: int, tokens: int) -> None:
    if documents < rows:
        raise ValueError(
            f"{where} has {documents} documents, too few for {rows} batch elements: lower "
            f"the batch size to at most Trainer.tokens_per_step = {documents * tokens}, use more "
            'documents, or bind Trainer.stream = "contiguous", which cuts documents.'
        )


@dataclass(eq=False)
class DocumentPass(EvaluationPass):
    """One pass of evaluation: every document once.

    Args:
        documents: numbers of the documents to read; None for all.
    """

    documents: Sequence[int] | np.ndarray | None = None

    def _prepare(self) -> None:
        segments_D = -(-self.store.lengths_D // self.segment_length)
        if self.documents is None:
            self._row_documents = assign_documents(self.store, segments_D, self.rows)
        else:
            chosen = np.unique(self.documents).astype(int)
            self._row_documents = assign(segments_D, self.rows, chosen)
        self._firsts = [_first_segments(segments_D[read]) for read in self._row_documents]
        self.num_steps = max(int(firsts[-1]) for firsts in self._firsts)

    def _read(self, step: int, rows: range) -> Batch:
        documents_B, offsets_B = self._positions(step, rows)
        positions_B = list(zip(documents_B.tolist(), offsets_B.tolist()))
        return gather(self.store, [positions_B], self.segment_length)

    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        positions = [
            locate(self._row_documents[row], self._firsts[row], step, self.segment_length)
            for row in rows
        ]
        documents_B, offsets_B = np.array(positions, np.int64).T
        return documents_B, offsets_B


def _first_segments(segments):
    return np.concatenate([[0], np.cumsum(segments)])


def locate(
    documents: np.ndarray, firsts: np.ndarray, number: int, segment_length: int
) -> tuple[int, int]:
    """Returns document and offset of a batch element's segment `number`; (-1, 0) after the last."""
    if number >= firsts[-1]:
        return -1, 0
    index = int(firsts.searchsorted(number, "right")) - 1
    return int(documents[index]), (number - int(firsts[index])) * segment_length
