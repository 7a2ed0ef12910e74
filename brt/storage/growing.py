"""Growing local files, and their copies in a bucket."""

import time

from absl import logging

from brt.storage.paths import RemotePath, StorageError, upload
from brt.storage.scratch import scratch_folder

SECONDS = 60.0

SHARE = 20
"""An automatic copy waits this many times the duration of the last one."""


class GrowingFiles:
    """A temporary local folder whose growing files are copied to the folder `target`."""

    def __init__(self, target: RemotePath):
        self.target = target
        self.folder = scratch_folder(self, "brt-records-")
        self._next = time.monotonic() + SECONDS

    def copy(self) -> None:
        begun = time.monotonic()
        for file in sorted(self.folder.iterdir()):
            if file.is_file():
                # Read first, because it may grow meanwhile.
                (self.target / file.name).write_bytes(file.read_bytes())
        took = time.monotonic() - begun
        self._next = time.monotonic() + max(SECONDS, SHARE * took)

    def copy_if_due(self) -> None:
        if time.monotonic() < self._next:
            return
        try:
            self.copy()
        except StorageError as error:
            self._next = time.monotonic() + SECONDS
            logging.warning("%s It is tried again in a minute.", error)

    def copy_folder(self, name: str) -> None:
        upload(self.folder / name, self.target / name)
