"""The file of a run's records: lines that are appended whole, and cut back where a run goes on."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

from brt.storage.failed_writes import naming
from brt.storage.regular_files import open_regular


class KeptRecords(NamedTuple):
    """The records up to a step.

    number: of records.
    end: bytes that their lines take.
    """

    number: int
    end: int


class RecordsGone(OSError):
    """A file of records was removed or replaced while it was written."""


class RecordFile:
    """A file that grows by whole lines. A line that cannot be written leaves nothing of itself.

    Args:
        path: of a file of this disk; made if it is not there.

    Raises:
        OSError: naming the file; so do the methods, and if it is not at its path any more.
    """

    def __init__(self, path: str):
        self.path = path
        with naming(path):
            self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115
        self._end = self._file.tell()

    def append(self, record: Mapping[str, float | str]) -> None:
        """Writes a record; it is in the file when this returns."""
        left = memoryview(line_of(record))
        size = len(left)
        with naming(self.path):
            try:
                while left:  # an unbuffered file may take less than it is given
                    left = left[self._file.write(left) :]
            except OSError:
                os.ftruncate(self._file.fileno(), self._end)
                raise
        self._end += size
        self._check_place()

    def sync(self) -> None:
        """Waits until all lines are on disk."""
        with naming(self.path):
            os.fsync(self._file.fileno())
        self._check_place()

    def _check_place(self):
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            happened = "removed"
        else:
            # Some file systems number a file anew while it is open; its size is right in any case.
            same = os.path.samestat(found, os.fstat(self._file.fileno()))
            if same or found.st_size == self._end:
                return
            happened = "replaced by another file"
        raise RecordsGone(
            f"Training stopped, as {self.path} was {happened} while the run wrote to it. Put the "
            "run folder back and run the same command again, or begin with a new --workdir."
        )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def line_of(record: Mapping[str, float | str]) -> bytes:
    """Returns the line of a record, with its end."""
    return json.dumps(record).encode() + b"\n"


def record_of(line: bytes) -> dict | None:
    """Returns the record of a line; None if it is none: a step, and numbers and texts by name."""
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


def kept_records(path: str, step: int) -> KeptRecords | None:
    """Returns what of a file lies up to a step, where its steps never fall; one line at a time.

    A torn last line is not kept. None for a file with damaged lines, or with others that have to be
    sorted out.
    """
    kept = KeptRecords(0, 0)
    last = position = 0
    beyond = False
    with open_regular(path) as file:
        for line in file:
            position += len(line)
            if not line.endswith(b"\n"):  # torn, or whole but for its end: not worth a case here
                return None if record_of(line) else kept
            record = record_of(line)
            if record is None or record["step"] < last:
                return None
            last = record["step"]
            beyond = beyond or last > step
            if not beyond:
                kept = KeptRecords(kept.number + 1, position)
    return kept


def cut(path: str, end: int) -> None:
    """Cuts a file back to so many bytes.

    Raises:
        OSError: naming the file.
    """
    with naming(path), open(path, "r+b") as file:
        file.truncate(end)


def records_in(path: str) -> Iterator[dict]:
    """Yields the records of a file of which every line is one."""
    with open_regular(path) as file:
        for line in file:
            if (record := record_of(line)) is not None:
                yield record
