"""Base of all streams. Axes as in `batch`."""

import abc
from dataclasses import dataclass, field

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch, padding


@dataclass(eq=False)
class Stream(abc.ABC):
    """A sequence of batches with random access. Training streams are infinite.

    A batch is a function of (store, seed, step, shape), so each host reads its own batch elements.

    Args:
        store: the documents.
        rows: B, batch elements of the global batch.
        segment_length: T, in tokens.
        segments_per_step: K; for `RereadStream` with the segments that are read again.
        seed: of the assignment of documents to batch elements and of every shuffle.

    Attributes:
        row_segments_B: segments of each batch element in one epoch, int64 (rows,), rounded up;
            undefined for evaluation, mixtures and `RereadStream`.
    """

    store: TokenStore | MixedStore
    rows: int
    segment_length: int
    segments_per_step: int = 1
    seed: int = 0
    row_segments_B: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.seed < 0 or min(self.rows, self.segment_length, self.segments_per_step) < 1:
            raise ValueError(
                f"A stream cannot be read with rows = {self.rows}, segment_length = "
                f"{self.segment_length}, segments_per_step = {self.segments_per_step} and seed = "
                f"{self.seed}: bind the first three to 1 or more, and the seed to 0 or more."
            )
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027  (most streams need it)
        ...

    @property
    def note(self) -> str:
        return ""

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """Returns segments step * K .. step * K + K - 1 of some batch elements, by default all.

        Thread-safe.
        """
        return self._read(step, _row_range(step, first_row, num_rows, self.rows))

    @abc.abstractmethod
    def _read(self, step: int, rows: range) -> Batch: ...


@dataclass(eq=False)
class EvaluationPass(Stream):
    """One pass over a store: a finite stream with K = 1 and `num_steps` steps.

    Finished batch elements, and batches after the last step, are padding.
    """

    segments_per_step: int = field(default=1, init=False)
    seed: int = field(default=0, init=False)
    num_steps: int = field(init=False, repr=False)

    def bounded(self, most: int) -> int:
        """Returns how many steps an evaluation reads that is bound to `most`."""
        return most

    def positions(
        self, step: int, first_row: int = 0, num_rows: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns positions of the segments of `batch`; same arguments.

        Returns:
            documents_B: int64, the document of the segment's first target; -1 for padding.
            offsets_B: int64, the offset of that target in its document; 0 for padding.
        """
        return self._positions(step, _row_range(step, first_row, num_rows, self.rows))

    @abc.abstractmethod
    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]: ...


class _WithEmptyRows(EvaluationPass):
    def __init__(self, inner: EvaluationPass, rows: int):
        super().__init__(inner.store, rows, inner.segment_length)
        self.inner = inner
        self.num_steps = inner.num_steps

    def _read(self, step: int, rows: range) -> Batch:
        batch = padding(1, len(rows), self.segment_length)
        if number := self._inner_rows(rows):
            for whole, part in zip(batch, self.inner.batch(step, rows.start, number), strict=True):
                whole[:, :number] = part
        return batch

    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        documents_B, offsets_B = np.full(len(rows), -1), np.zeros(len(rows), np.int64)
        if number := self._inner_rows(rows):
            positions = self.inner.positions(step, rows.start, number)
            documents_B[:number], offsets_B[:number] = positions
        return documents_B, offsets_B

    def _inner_rows(self, rows: range) -> int:
        return min(max(self.inner.rows - rows.start, 0), len(rows))


def with_empty_rows(stream: EvaluationPass, rows: int) -> EvaluationPass:
    return stream if rows == stream.rows else _WithEmptyRows(stream, rows)


def _row_range(step: int, first_row: int, num_rows: int | None, rows: int) -> range:
    num_rows = rows - first_row if num_rows is None else num_rows
    if step < 0 or first_row < 0 or num_rows < 1 or first_row + num_rows > rows:
        raise ValueError(
            f"There are no {num_rows} rows from row {first_row} on at step {step}, because the "
            f"batch has {rows} elements, and steps begin at 0: ask for others."
        )
    return range(first_row, first_row + num_rows)
