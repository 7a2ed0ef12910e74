"""Files read in parts, not by memory maps: a truncated file would end the process by SIGBUS."""

import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from brt.storage.paths import AnyPath, RemotePath
from brt.storage.regular_files import open_regular

PIECE = 2**20
SEARCHED = 2**14


class CutShort(ValueError): ...


class FileBytes:
    """The bytes of a file, read by slices. Thread-safe.

    Args:
        advice: remedy for a file that is cut short.
    """

    def __init__(self, path: str | os.PathLike, advice: str):
        with open_regular(path) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.path = os.fspath(path)
        self._advice = advice
        self._size = os.fstat(self._file).st_size
        self._range = range(self._size)

    def part(self, start: int, stop: int) -> "FileBytes":
        """Returns bytes start ... stop - 1, not read."""
        part = object.__new__(FileBytes)
        # `_whole`, because the file is closed with it.
        part.__dict__ |= {**self.__dict__, "_range": self._range[start:stop], "_whole": self}
        return part

    def __len__(self) -> int:
        return len(self._range)

    def __reduce__(self) -> tuple:
        return bytes, (self[:],)

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        return self.read(start, max(stop - start, 0))

    def read(self, start: int, size: int) -> bytes:
        """Returns bytes start ... start + size - 1.

        Raises:
            CutShort: the file is too short.
        """
        parts = []
        start += self._range.start
        while size and (data := os.pread(self._file, size, start)):  # at most 2 GiB
            parts.append(data)
            start, size = start + len(data), size - len(data)
        if size:
            raise CutShort(
                f"{self.path} was cut short while it was read: it had {self._size:,} bytes, and "
                f"has {os.fstat(self._file).st_size:,} now. {self._advice}"
            )
        return b"".join(parts)

    def find(self, text: bytes, start: int = 0) -> int:
        while start + len(text) <= len(self):
            part = self[start : start + SEARCHED + len(text)]
            if (position := part.find(text)) >= 0:
                return start + position
            start += SEARCHED + 1
        return -1


class FileArray:
    """A file of numbers as an array of one axis, read by slices.

    Args:
        path: of a regular file or an object, whose size is a multiple of the item size.
    """

    def __init__(self, path: AnyPath | str | os.PathLike, dtype: np.dtype, advice: str):
        self.dtype = dtype
        if isinstance(path, RemotePath):
            size = path.size()
            self._read: Callable[[int, int], bytes] = partial(_read_object, path, advice)
        else:
            file = FileBytes(path, advice)
            size, self._read = len(file), file.read
        self._itemsize = dtype.itemsize
        self._count = size // dtype.itemsize

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self._count)
        size = max(stop - start, 0) * self._itemsize
        return np.frombuffer(self._read(start * self._itemsize, size), self.dtype)


def _read_object(path: RemotePath, advice: str, start: int, size: int) -> bytes:
    data = path.read_part(start, size) if size else b""
    if len(data) != size:
        raise CutShort(f"{path} was cut short while it was read. {advice}")
    return data


def pieces(data: bytes | FileBytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
