"""One pass of evaluation by windows that overlap: how a model without memory sees a full context.

A window of T tokens is read from nothing, its last tokens are scored, and it moves on by as many:
by one, so that every token is predicted from the whole window (Transformer-XL, section 3.1, Figure
1), or by more, which costs less and leaves the first tokens scored with T - stride before them. The
first window of a text is scored whole, so every token is scored once.

Axes as in `document_stream`.
"""

import numpy as np

from brt.data.streams.contiguous import InOrder, place_in_store, read_pairs
from brt.data.streams.documents import check_sizes, gather, padding, row_range


class ShiftedPass:
    """Windows over each document, or over the whole store as one text.

    Args:
        store: what to read.
        rows: B, rows of the global batch; they share the windows evenly.
        segment_length: T, in tokens, of a window.
        stride: tokens from one window to the next, 1 ... T.
        contiguous: whether documents are read as one text, as `ContiguousPass` does.

    Attributes:
        segments_per_step: K, always 1.
        num_steps: steps after which every token has been scored.

    Raises:
        ValueError: a size below 1, or a stride outside its range.
    """

    segments_per_step = 1

    def __init__(self, store, rows: int, segment_length: int, stride: int, contiguous=False):
        check_sizes(0, rows, segment_length)
        if not 1 <= stride <= segment_length:
            raise ValueError(
                f"Evaluation.stride = {stride} must be at least 1 and at most the segment length "
                f"of {segment_length}, or tokens would be left out."
            )
        self.store, self.rows, self.segment_length = store, rows, segment_length
        self.stride, self.contiguous = stride, contiguous
        lengths_D = np.array([store.num_tokens - 1]) if contiguous else store.lengths_D
        windows_D = 1 + -(-np.maximum(lengths_D - segment_length, 0) // stride)
        self._firsts = np.concatenate([[0], np.cumsum(windows_D)])
        self.num_steps = -(-int(self._firsts[-1]) // rows)

    def places(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """Documents and offsets of the windows' first targets, as those of `DocumentPass`."""
        texts_B, begins_B = self._windows(step, first_row, num_rows)
        if not self.contiguous:
            return texts_B, begins_B
        documents_B, offsets_B = place_in_store(self.store, begins_B + 1)
        absent_B = texts_B < 0
        return np.where(absent_B, -1, documents_B), np.where(absent_B, 0, offsets_B)

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """One step's `Batch`: every window starts anew, and only what it scores has weight."""
        T, (texts_B, begins_B) = self.segment_length, self._windows(step, first_row, num_rows)
        if self.contiguous:
            batch = padding(1, len(texts_B), T)
            for row, (text, begin) in enumerate(zip(texts_B.tolist(), begins_B.tolist())):
                if text == 0:
                    end = min(begin + T, self.store.num_tokens - 1)
                    read_pairs(batch, 0, row, InOrder(self.store), begin, end)
        else:
            batch = gather(self.store, [list(zip(texts_B.tolist(), begins_B.tolist()))], T)
        batch.starts_KB[:] = True
        batch.weights_KBT[:, begins_B > 0, : T - self.stride] = 0
        return batch

    def _windows(self, step, first_row, num_rows):
        """For each row the number of the text, -1 for none, and its window's first pair."""
        numbers_B = np.array(row_range(step, first_row, num_rows, self.rows)) + step * self.rows
        texts_B = np.searchsorted(self._firsts, numbers_B, side="right") - 1
        begins_B = (numbers_B - self._firsts[texts_B]) * self.stride
        absent_B = numbers_B >= self._firsts[-1]
        return np.where(absent_B, -1, texts_B), np.where(absent_B, 0, begins_B)
