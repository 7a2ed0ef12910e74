"""Event files of TensorBoard: one event a record.

Not with tensorboardX's writer, which puts events into a queue for a thread: on a full disk the
thread ends and training waits for the queue, and `flush` does not wait for queued events.

A file is a sequence of frames: the length of an event (uint64) and its checksum, the event (a
protocol buffer) and its checksum, all little-endian. TensorBoard reads the files of a folder in the
order of their names, which begin with the time.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from brt.storage.failed_writes import naming

PREFIX = "events.out.tfevents."
TIMED = re.compile(re.escape(PREFIX) + r"(\d+)\.")
HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
FLUSHED = 30.0
"""Seconds after which events go to disk that nobody has asked for."""
MOST_BUFFERED = 2**20
"""Bytes of events that are held back."""


class EventFile:
    """A new event file of a folder; its name comes after those of all others there.

    Args:
        folder: of this disk.
        purge_step: TensorBoard ignores events of this step or later in earlier files.

    Raises:
        OSError: naming the file; so do the methods.
    """

    def __init__(self, folder: str, purge_step: int | None = None):
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import masked_crc32c

        self._event: Any = Event
        self._checksum: Any = masked_crc32c
        self._time = 0.0
        others = (TIMED.match(name) for name in os.listdir(folder))
        latest = max((int(match[1]) for match in others if match), default=0)
        seconds = max(int(time.time()), latest + 1)
        self.path = os.path.join(folder, f"{PREFIX}{seconds:010d}.{socket.gethostname()}")
        self._failed = False
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._end = 0
        with naming(self.path):
            self._file: BinaryIO = open(self.path, "xb", buffering=0)  # noqa: SIM115
        try:
            self._append(self._event(file_version="brain.Event:2", wall_time=self._now()))
            if purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                self._append(self._event(step=purge_step, session_log=start, wall_time=self._now()))
            self.flush()
        except OSError:
            self._file.close()
            raise

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Takes the scalars of a record; they may go to the disk later."""
        event = self._event(step=step, wall_time=self._now())
        for name, value in scalars.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._append(event)
        if self._buffered > MOST_BUFFERED or time.monotonic() - self._flushed > FLUSHED:
            self._write_out()

    def flush(self) -> None:
        """Waits until all events are on disk."""
        self._write_out()
        with naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Writes what is left, unless writing has failed before, and closes the file."""
        try:
            if not self._failed:
                self.flush()
        finally:
            self._file.close()

    def _now(self):
        self._time = max(self._time, time.time())
        return self._time

    def _append(self, event):
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        frame = HEADER.pack(len(data), self._checksum(length)) + data
        self._buffer += [frame, CHECKSUM.pack(self._checksum(data))]
        self._buffered += len(frame) + CHECKSUM.size

    def _write_out(self):
        left = memoryview(b"".join(self._buffer))
        size = len(left)
        self._buffer = []
        self._buffered = 0
        self._flushed = time.monotonic()
        with naming(self.path):
            try:
                while left:  # an unbuffered file may take less than it is given
                    left = left[self._file.write(left) :]
            except OSError:
                self._failed = True
                os.ftruncate(self._file.fileno(), self._end)
                raise
        self._end += size
