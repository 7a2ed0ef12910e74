"""Overlapping steps. Axes as in `batch`."""

import numpy as np

from brt.data.streams.base import Stream
from brt.data.streams.batch import Batch, padding


class RereadStream(Stream):
    """A stream of one new segment per step, after the k segments before it.

    Only the new segment has loss weights. Segments before step 0 are padding.

    Args:
        new: a training stream with one segment per step.
        reread_segments: k, at least 1.
    """

    def __init__(self, new: Stream, reread_segments: int):
        segments = reread_segments + 1
        super().__init__(new.store, new.rows, new.segment_length, segments, new.seed)
        self._new = new

    def _read(self, step: int, rows: range) -> Batch:
        steps = range(step - self.segments_per_step + 1, step + 1)
        parts = [self._segment(number, rows) for number in steps]
        batch = Batch(*(np.concatenate(arrays) for arrays in zip(*parts)))
        batch.weights_KBT[:-1] = 0
        return batch

    def _segment(self, number, rows):
        if number < 0:
            return padding(1, len(rows), self.segment_length)
        return self._new.batch(number, rows.start, len(rows))
