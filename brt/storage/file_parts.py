"""Files that are read part by part, and may be cut short by others meanwhile.

A file that is mapped into memory and then cut short ends the process by SIGBUS, without a word.
Here every part is read by a call of its own, which costs some microseconds, and a part that is not
there any more is an error that names the file.
"""

import os
import weakref
from collections.abc import Iterator

import numpy as np

from brt.storage.regular_files import open_regular

PIECE = 2**20
"""Bytes that are read together where all of a file is gone through."""
SEARCHED = 2**14
"""Bytes that are read together where something is looked for that should be near."""


class CutShort(ValueError):
    """A file has become shorter while it was read; the message names it."""


class FileBytes:
    """The bytes of a file; slices of it are `bytes`. For any number of threads.

    Args:
        path: of a regular file.
        advice: says what to do when it is cut short, as in "prepare it again".
    """

    def __init__(self, path: str | os.PathLike, advice: str):
        with open_regular(path) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.path = os.fspath(path)
        self._advice = advice
        self._size = os.fstat(self._file).st_size

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple:
        """Another process gets the bytes themselves."""
        return bytes, (self[:],)

    def __getitem__(self, part: slice) -> bytes:
        """Returns a slice, without a step."""
        start, stop, _ = part.indices(self._size)
        return self.read(start, max(stop - start, 0))

    def read(self, start: int, size: int) -> bytes:
        """Returns `size` bytes from `start` on."""
        data = os.pread(self._file, size, start)
        if len(data) == size:
            return data
        pieces = [data]
        left = size - len(data)
        while left and pieces[-1]:  # one call reads 2 GiB at most
            pieces.append(os.pread(self._file, left, start + size - left))
            left -= len(pieces[-1])
        if left:
            raise CutShort(
                f"{self.path} was cut short while it was read: it had {self._size:,} bytes, and "
                f"has {os.fstat(self._file).st_size:,} now. {self._advice}"
            )
        return b"".join(pieces)

    def find(self, wanted: bytes, start: int = 0) -> int:
        """Returns where `wanted` first begins at `start` or behind it; -1 for nowhere."""
        while start + len(wanted) <= self._size:
            part = self[start : start + SEARCHED + len(wanted)]
            if (found := part.find(wanted)) >= 0:
                return start + found
            start += SEARCHED + 1
        return -1


class FileArray:
    """A file of numbers as an array of one axis; items and slices of it are read, not mapped.

    Args:
        path: of a regular file.
        dtype: of the numbers; the file's size is a multiple of theirs.
        advice: as of `FileBytes`.

    Attributes:
        dtype: as given.
    """

    def __init__(self, path: str | os.PathLike, dtype: np.dtype, advice: str):
        self.dtype = dtype
        self._bytes = FileBytes(path, advice)
        self._itemsize = dtype.itemsize
        self._count = len(self._bytes) // dtype.itemsize

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> np.ndarray:
        """Returns a slice, without a step: a read-only array."""
        start, stop, _ = part.indices(self._count)
        size = max(stop - start, 0) * self._itemsize
        return np.frombuffer(self._bytes.read(start * self._itemsize, size), self.dtype)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """Returns all of it, for NumPy."""
        return np.array(self[:], dtype, copy=copy)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yields all of it, a million bytes at a time."""
        step = PIECE // self._itemsize
        for start in range(0, self._count, step):
            yield self[start : start + step]


def pieces(data: bytes | FileBytes) -> Iterator[bytes]:
    """Yields all bytes, a million at a time."""
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
