"""The lock of a run folder, on a disk or in a bucket.

On a disk it is a `flock`, which the kernel releases when the process dies. In buckets, and on disks
without `flock`, the owner rewrites the lock as a heartbeat (filelock has none); after `TIMEOUT`
seconds without one the owner counts as dead.
"""

import contextlib
import datetime
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import NoReturn

from absl import logging

from brt.checks import ManyFrom0
from brt.storage.json_files import Fields, misfit
from brt.storage.paths import as_path, is_remote
from brt.storage.regular_files import check_replaceable, open_regular
from brt.storage.replaced_files import lock_file

NAME = ".brt_lock"
HEARTBEAT = 20.0
TIMEOUT = 70.0
SETTLE = 2.0
"""Seconds between seeing no lock and writing one."""
TRIES = 10
"""Attempts to open a lock that others may remove."""
MOST_BYTES = 4096

OWNER = Fields({"host": str, "pid": ManyFrom0, "started": str, "boot": str, "id": str})


class FolderInUse(OSError):
    """Another process trains in the folder; the message names it and the remedy."""


class FolderLost(OSError):
    """The folder was removed, or belongs to another process now."""


class RunLock:
    """Locks a run folder until `release`, or until the process dies.

    folder: an absolute path; on a disk it exists. Raises `FolderInUse`.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.path = as_path(folder) / NAME
        self._lost = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
            "boot": _boot_id(),
            "id": uuid.uuid4().hex,
        }
        self._beats = 0
        self._excludes = False  # whether the kernel enforces the lock
        self._file = None if is_remote(folder) else self._open()
        try:
            self._take()
        except BaseException:
            self.release()
            raise
        self._thread = threading.Thread(target=self._send_heartbeats, name="run lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises `FolderLost` if the folder no longer belongs to this process."""
        if time.monotonic() - self._last > TIMEOUT:  # stopped meanwhile: others may have taken it
            self._renew()
        if self._lost:
            raise FolderLost(self._lost)

    def release(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT)
            self._thread = None
        with contextlib.suppress(OSError):
            if self._is_own(self._read()):
                self.path.unlink()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self):
        check_replaceable(self.path)
        for _ in range(TRIES):
            file = lock_file(self.path)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._excludes = True
            except BlockingIOError:
                os.close(file)
                self._refuse(self._read())
            except OSError:  # a file system without locks: the heartbeat decides
                self._excludes = False
            with contextlib.suppress(FileNotFoundError):  # released and removed by its owner
                if os.path.samestat(os.fstat(file), os.stat(self.path)):
                    break
            os.close(file)
        else:  # a file system that gives an open file another number
            file = lock_file(self.path)
            self._excludes = False
        return file

    def _take(self):
        left = self._read()
        owner = _owner_of(left)
        # On a disk that several machines share, a lock may hold for one of them only.
        here = any(owner.get(name) == self._owner[name] != "" for name in ("host", "boot"))
        if left and not (self._excludes and here):
            self._wait_for_timeout(left)
        self._write()
        if not self._excludes:
            time.sleep(SETTLE)
            if not self._is_own(lock := self._read()):
                self._refuse(lock)

    def _wait_for_timeout(self, left):
        logging.warning(
            "%s was not released by %s. Waiting %.0f seconds for its heartbeat ...",
            self.path,
            _named(left),
            TIMEOUT,
        )
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            time.sleep(min(1.0, TIMEOUT))
            if (now := self._read()) != left:
                if now:
                    self._refuse(now)
                return

    def _refuse(self, text) -> NoReturn:
        raise FolderInUse(
            f"{self.folder} is in use: {_named(text)} trains in it. Give another --workdir, or "
            f"wait until that process has ended; if it has, remove {self.path}."
        )

    def _send_heartbeats(self):
        while not self._ended.wait(HEARTBEAT) and not self._lost:
            self._renew()

    def _renew(self):
        with contextlib.suppress(OSError):  # the storage does not answer: try at the next heartbeat
            if self._is_own(lock := self._read()):
                self._beats += 1
                self._write()
            else:
                self._lost = (
                    f"Training stopped, as {self.folder} is not this process's any more: "
                    f"{self.path} "
                    + (f"belongs to {_named(lock)}." if lock else "was removed.")
                    + " Stop a run before you remove its folder or its lock."
                )

    def _read(self):
        try:
            if is_remote(self.path):
                return self.path.read_bytes().decode(errors="replace")
            with open_regular(self.path) as file:
                return file.read(MOST_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _write(self):
        content = json.dumps({**self._owner, "beats": self._beats}).encode() + b"\n"
        if self._file is None:
            self.path.write_bytes(content)
        else:
            os.pwrite(self._file, content, 0)
            os.ftruncate(self._file, len(content))
            os.fsync(self._file)
        self._last = time.monotonic()

    def _is_own(self, text):
        return _owner_of(text).get("id") == self._owner["id"]


def _boot_id():
    """Containers of one kernel share it, although their host names differ."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _owner_of(text):
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {} if misfit(OWNER, owner) else owner


def _named(text):
    owner = _owner_of(text)
    if not owner:
        return "another process"
    said = f"process {owner['pid']} on {owner['host']}, started {owner['started']},"
    return "".join(letter for letter in said if letter.isprintable())
