"""Files that grow on this disk, and whose copies lie in a bucket, where nothing can be appended."""

import time

from absl import logging

from brt.storage.paths import RemotePath, StorageError, upload
from brt.storage.scratch import scratch_folder

SECONDS = 60.0
"""The least time between two copies that nobody has asked for."""

SHARE = 20
"""Such a copy waits this many times as long as the last one took: files grow, and are copied
whole."""


class GrowingFiles:
    """A folder of this disk whose files are copied to a bucket as they grow; it goes with this.

    Args:
        target: where the copies lie.
    """

    def __init__(self, target: RemotePath):
        self.target = target
        self.folder = scratch_folder(self, "brt-records-")
        self._next = time.monotonic() + SECONDS

    def copy(self) -> None:
        """Copies every file of the folder as it is now, in one piece."""
        begun = time.monotonic()
        for file in sorted(self.folder.iterdir()):
            if file.is_file():
                # Not by its name: it may grow meanwhile.
                (self.target / file.name).write_bytes(file.read_bytes())
        took = time.monotonic() - begun
        self._next = time.monotonic() + max(SECONDS, SHARE * took)

    def copy_if_due(self) -> None:
        """Copies if the last copy is long ago; a bucket that cannot be written is said only."""
        if time.monotonic() < self._next:
            return
        try:
            self.copy()
        except StorageError as error:
            self._next = time.monotonic() + SECONDS
            logging.warning("%s It is tried again in a minute.", error)

    def copy_folder(self, name: str) -> None:
        """Copies all files of a folder inside, however deep."""
        upload(self.folder / name, self.target / name)
