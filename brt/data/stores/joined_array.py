"""The files of all shards, read as one array."""

import bisect
import functools
from collections.abc import Callable, Sequence

import numpy as np

from brt.storage.file_parts import FileArray

OPEN_FILES = 256

Numbers = np.ndarray | FileArray


class JoinedArray:
    """Arrays one after another, read by slices as one array.

    `array` opens the array of a number; the last `OPEN_FILES` are cached.
    """

    def __init__(self, lengths: Sequence[int], dtype: np.dtype, array: Callable[[int], Numbers]):
        self.dtype = dtype
        self._ends = np.cumsum(lengths).tolist()
        self._array = functools.lru_cache(OPEN_FILES)(array)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise IndexError(f"Items are read one after another, and not in steps of {step}.")
        parts = []
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            end = self._ends[number]
            first = self._ends[number - 1] if number else 0
            parts.append(self._array(number)[start - first : min(stop, end) - first])
            start = end
            number += 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)


def rows_of(flat: JoinedArray, length: int, rows_B: np.ndarray) -> np.ndarray:
    """Returns rows of one length from a flat array: (B, length)."""
    rows_BL = np.empty((len(rows_B), length), flat.dtype)
    for b, row in enumerate(np.asarray(rows_B).tolist()):
        rows_BL[b] = flat[row * length : (row + 1) * length]
    return rows_BL
