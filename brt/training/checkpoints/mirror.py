"""Checkpoints in a bucket that Orbax cannot write to, copied from a local folder."""

import os
import shutil
from collections.abc import Collection

import jax

from brt.storage.paths import RemotePath, download, remove, upload
from brt.storage.scratch import scratch_folder

COMPLETE = "commit_success.txt"
"""Orbax's mark of a complete checkpoint in a bucket."""


class CheckpointMirror:
    """The checkpoints of a remote folder, by step, with a temporary local folder for Orbax."""

    def __init__(self, remote: RemotePath):
        if jax.process_count() > 1:
            raise ValueError(
                f"Several processes write checkpoints to a folder that all of them see, or to "
                f"gs://, and not to {remote}: name such a folder."
            )
        self.remote = remote
        self.folder = scratch_folder(self, "brt-checkpoints-")

    def steps(self) -> list[int]:
        steps = (int(path.name) for path in self.remote.iterdir() if path.name.isdigit())
        return sorted(step for step in steps if (self.remote / str(step) / COMPLETE).is_file())

    def fetch(self, step: int) -> None:
        """Downloads a checkpoint, if it is not there."""
        folder = self.folder / str(step)
        if not folder.is_dir():
            # Complete before it gets its name.
            fetched = self.folder / f"{step}.fetched"
            shutil.rmtree(fetched, ignore_errors=True)
            download(self.remote / str(step), fetched)
            os.replace(fetched, folder)

    def publish(self, step: int) -> None:
        target = self.remote / str(step)
        remove(target)  # the unfinished copy of a killed process
        upload(self.folder / str(step), target)
        (target / COMPLETE).write_bytes(b"complete\n")

    def keep(self, steps: Collection[int]) -> None:
        for old in self.steps():
            if old not in steps:
                remove(self.remote / str(old), first=COMPLETE)

    def forget(self, step: int) -> None:
        shutil.rmtree(self.folder / str(step), ignore_errors=True)
