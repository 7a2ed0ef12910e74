"""Event files of TensorBoard, by tensorboardX's `RecordWriter`: after the thread of its
`SummaryWriter` ends on a full disk, training would wait forever.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

from brt.storage.replaced_files import naming

PREFIX = "events.out.tfevents."
TIMED = re.compile(re.escape(PREFIX) + r"(\d+)\.")
FLUSHED = 30.0
"""Seconds between two flushes."""


class EventFile:
    """A new event file of a local folder."""

    def __init__(self, folder: str, purge_step: int | None = None):
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import RecordWriter

        self.begins_empty = purge_step is None
        self._event: Any = Event
        self._time = 0.0
        self._failed = False
        matches = (TIMED.match(name) for name in os.listdir(folder))
        latest = max((int(match[1]) for match in matches if match), default=0)
        seconds = max(int(time.time()), latest + 1)
        self.path = os.path.join(folder, f"{PREFIX}{seconds:010d}.{socket.gethostname()}")
        with naming(self.path):
            self._file: Any = RecordWriter(self.path)
        self._append(file_version="brain.Event:2")
        if purge_step is not None:
            self._append(step=purge_step, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in scalars.items()]
        self._append(step=step, summary={"value": values})
        if time.monotonic() - self._flushed > FLUSHED:
            self.flush()

    def flush(self) -> None:
        self._do(self._file.flush)
        self._flushed = time.monotonic()

    def close(self) -> None:
        try:
            if not self._failed:
                self.flush()
        finally:
            with contextlib.suppress(OSError):
                self._file.close()

    def _append(self, **fields):
        self._time = max(self._time, time.time())
        event = self._event(wall_time=self._time, **fields)
        self._do(self._file.write, event.SerializeToString())

    def _do(self, write, *data):
        try:
            with naming(self.path):
                write(*data)
        except OSError:
            self._failed = True
            raise
