"""Evaluation by overlapping windows, without memory but with a full context.

A window of T tokens is read with fresh memory and its last `stride` tokens are scored; the next one
begins `stride` tokens later (Transformer-XL, section 3.1, Figure 1). The first window of a text is
scored whole.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from brt.data.stores.token_store import TokenStore
from brt.data.streams.base import EvaluationPass
from brt.data.streams.batch import Batch, gather, padding
from brt.data.streams.contiguous import check_pairs, document_positions, in_order, read_pairs


@dataclass(eq=False)
class ShiftedPass(EvaluationPass):
    """Windows over each document, or over the whole store as one text; each is a start.

    Args:
        stride: tokens from one window to the next, 1 ... T.
        contiguous: whether all documents are one text, as in `ContiguousPass`.
    """

    stride: int
    contiguous: bool = False

    def _prepare(self) -> None:
        check_overlap(self.stride, self.segment_length)
        # A mixture has documents only.
        self._text = cast(TokenStore, self.store) if self.contiguous else None
        lengths = self.store.lengths_D
        if self.contiguous:
            check_pairs(self.store)
            lengths = np.array([self.store.num_tokens - 1])
        windows = 1 + -(-np.maximum(lengths - self.segment_length, 0) // self.stride)
        self._firsts = np.concatenate([[0], np.cumsum(windows)])
        self.num_steps = -(-int(self._firsts[-1]) // self.rows)

    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        texts_B, begins_B = self._windows(step, rows)
        if self._text is None:
            return texts_B, begins_B
        documents_B, offsets_B = document_positions(self.store, begins_B + 1)
        absent_B = texts_B < 0
        return np.where(absent_B, -1, documents_B), np.where(absent_B, 0, offsets_B)

    def _read(self, step: int, rows: range) -> Batch:
        texts_B, begins_B = self._windows(step, rows)
        windows = list(zip(texts_B.tolist(), begins_B.tolist()))
        if self._text is None:
            batch = gather(self.store, [windows], self.segment_length)
        else:
            batch = padding(1, len(rows), self.segment_length)
            for b, (text, begin) in enumerate(windows):
                if text == 0:
                    end = min(begin + self.segment_length, self.store.num_tokens - 1)
                    read_pairs(batch, 0, b, self._text, in_order, begin, end)
        batch.starts_KB[:] = True
        batch.weights_KBT[:, begins_B > 0, : self.segment_length - self.stride] = 0
        return batch

    def _windows(self, step, rows):
        numbers_B = np.array(rows) + step * self.rows
        texts_B = np.searchsorted(self._firsts, numbers_B, side="right") - 1
        begins_B = (numbers_B - self._firsts[texts_B]) * self.stride
        absent_B = numbers_B >= self._firsts[-1]
        return np.where(absent_B, -1, texts_B), np.where(absent_B, 0, begins_B)


def check_overlap(stride: int, segment_length: int) -> None:
    if not 1 <= stride <= segment_length:
        raise ValueError(
            f"Evaluation.stride = {stride} must be at least 1 and at most the segment length "
            f"of {segment_length}, or tokens would be left out."
        )
