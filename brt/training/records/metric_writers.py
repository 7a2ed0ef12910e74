"""Where a run's numbers go besides metrics.jsonl: TensorBoard, Weights & Biases."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from brt.data.extras import extra_library
from brt.training.records.event_files import EventFile, kept_events
from brt.training.records.record_file import cut

JSONL = "jsonl"
KINDS = (JSONL, "tensorboard", "wandb")
"""Values of `--metrics`. metrics.jsonl is always written: runs are resumed from it."""

USUAL = (JSONL, "tensorboard")


class MetricWriter(Protocol):
    """What takes scalars.

    Attributes:
        begins_empty: whether it has nothing of what was recorded before the run was resumed.
    """

    begins_empty: bool

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Takes the scalars of one record."""

    def flush(self) -> None:
        """Waits until what was taken is on disk."""

    def close(self) -> None:
        """Waits for it, and ends."""


class TensorBoard:
    """Event files in a folder.

    Files of earlier processes are cut back to the step a run goes on from where they have all of
    its records; else they are removed, and their events are to be written again.

    Args:
        folder: of this disk.
        files: of earlier processes of the run, in the order of their names.
        step: that the run goes on from.
        records: up to it.

    Raises:
        OSError: naming the file; so do the methods.
    """

    def __init__(self, folder: str, files: Sequence[Path] = (), step: int = 0, records: int = 0):
        kept = kept_events(list(files), step)
        has_all = kept is not None and kept.number == records
        self.begins_empty = not has_all
        for file in files:
            end = kept.ends[file] if kept and has_all else 0
            if end:
                cut(str(file), end)
            else:
                file.unlink()
        self._events = EventFile(folder, kept.last_time if kept and has_all else 0.0)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Takes the scalars of one record."""
        self._events.write(step, scalars)

    def flush(self) -> None:
        """Waits until what was taken is on disk."""
        self._events.flush()

    def close(self) -> None:
        """Waits for it, and ends."""
        self._events.close()


class Wandb:
    """A run of Weights & Biases, the same one when training is resumed.

    The project is `brt`, or what WANDB_PROJECT says; WANDB_MODE=offline sends nothing.

    Args:
        folder: of this disk, that wandb keeps its files in.
        path: of the run folder; it decides which run it is.
        settings: bindings of the run, to be shown.

    Raises:
        MissingExtra: wandb is not installed.
        ValueError: it cannot begin a run, for want of a key or of a connection.
    """

    def __init__(self, folder: str, path: str, settings: Mapping[str, str]):
        wandb: Any = extra_library("wandb", "--metrics=wandb", "wandb")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "brt"),
                id=hashlib.sha256(path.encode()).hexdigest()[:16],
                name=os.path.basename(path),
                dir=folder,
                config=dict(settings),
                resume="allow",
            )
        except Exception as error:  # the library has errors of many kinds
            raise ValueError(
                f"--metrics=wandb: no run could be begun ({str(error).strip()}): log in with "
                "`wandb login`, or set WANDB_MODE=offline."
            ) from error
        # What it has already it would not take again.
        self.begins_empty = not self._run.resumed

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)

    def flush(self) -> None:
        """Does nothing: wandb sends what it has by itself."""

    def close(self) -> None:
        self._run.finish()


def check_kinds(kinds: tuple[str, ...]) -> None:
    """Refuses names that are not of `KINDS`, and a list without metrics.jsonl.

    Raises:
        ValueError: naming the first that is wrong.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"--metrics names {kind!r}: give some of {', '.join(KINDS)}.")
    if JSONL not in kinds:
        raise ValueError(
            f"--metrics={','.join(kinds)} leaves out {JSONL}, from which a run is resumed and "
            f"reported: add it, as in --metrics={','.join((JSONL, *kinds))}."
        )
