"""A recording in a bucket, by way of a folder of this disk in which it is written and mapped."""

import time

from brt.storage.paths import RemotePath, download, upload
from brt.storage.scratch import scratch_folder

SECONDS = 300.0
"""The least time between two copies while documents are recorded: files are copied whole."""


class RecordingCopy:
    """A folder of this disk, which is removed with this object, and the bucket it is copied to.

    Args:
        remote: the recording's own folder.

    Attributes:
        folder: of this disk, with the same name; there once it is fetched or begun.
    """

    def __init__(self, remote: RemotePath):
        self.remote = remote
        self.folder = scratch_folder(self, "brt-recording-") / remote.name
        self._last = time.monotonic()

    def fetch(self) -> None:
        """Copies what the bucket has of the recording to this disk."""
        download(self.remote, self.folder)

    def publish(self) -> None:
        """Copies the recording to the bucket, its manifest last."""
        if self.folder.is_dir():
            upload(self.folder, self.remote, last="manifest.json")
        self._last = time.monotonic()

    def publish_if_due(self) -> None:
        """Copies if the last copy is long ago."""
        if time.monotonic() - self._last > SECONDS:
            self.publish()
