"""The file of a run's records: JSON lines, appended whole."""

import json
import os
from collections.abc import Mapping
from io import FileIO

from brt.storage.replaced_files import naming


class RecordsGone(OSError):
    """A file of records was removed or replaced while it was written."""


class RecordFile:
    """A local file that grows by whole lines; a failed write leaves nothing."""

    def __init__(self, path: str):
        self.path = path
        with naming(path):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file: FileIO = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
        self._end = self._file.tell()

    def append(self, record: Mapping[str, float | str]) -> None:
        left = memoryview(json.dumps(record).encode() + b"\n")
        size = len(left)
        with naming(self.path):
            try:
                while left:  # an unbuffered file may write less
                    left = left[self._file.write(left) :]
            except OSError:
                os.ftruncate(self._file.fileno(), self._end)
                raise
        self._end += size
        self._check_place()

    def sync(self) -> None:
        with naming(self.path):
            os.fsync(self._file.fileno())
        self._check_place()

    def _check_place(self):
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            happened = "removed"
        else:
            # Some file systems give an open file a new number, but its size stays right.
            same = os.path.samestat(status, os.fstat(self._file.fileno()))
            if same or status.st_size == self._end:
                return
            happened = "replaced by another file"
        raise RecordsGone(
            f"Training stopped, as {self.path} was {happened} while the run wrote to it. Put the "
            "run folder back and run the same command again, or begin with a new --workdir."
        )

    def close(self) -> None:
        self._file.close()


def record_of(line: bytes) -> dict | None:
    """Returns the record of a line, or None for damage."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if type(record) is not dict or type(step := record.get("step")) is not int or step < 0:
        return None
    return record if all(map(_is_scalar, record.values())) else None


def _is_scalar(value):
    kind = type(value)
    return kind in (float, str) or (kind in (int, bool) and abs(value) < 2**63)
