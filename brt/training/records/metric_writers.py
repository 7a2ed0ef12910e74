"""Further writers of a run's numbers."""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from brt.data.extras import extra_library

JSONL = "jsonl"
KINDS = (JSONL, "tensorboard", "wandb")
"""Values of `--metrics`. metrics.jsonl is always written, for resuming."""
USUAL = (JSONL, "tensorboard")


class Wandb:
    """A run of Weights & Biases, the same one when training is resumed.

    The project is WANDB_PROJECT, by default `brt`; WANDB_MODE=offline sends nothing. folder: local,
    for wandb's files. path: of the run folder, which identifies the run. settings: shown.
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
        except Exception as error:  # the library has many kinds of errors
            raise ValueError(
                f"--metrics=wandb: no run could be started ({str(error).strip()}): log in with "
                "`wandb login`, or set WANDB_MODE=offline."
            ) from error
        # Whether it lacks earlier records: it refuses steps that it has.
        self.begins_empty = not self._run.resumed

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)

    def flush(self) -> None:
        """Does nothing: wandb flushes by itself."""

    def close(self) -> None:
        self._run.finish()


def check_kinds(kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"--metrics names {kind!r}: give some of {', '.join(KINDS)}.")
    if JSONL not in kinds:
        raise ValueError(
            f"--metrics={','.join(kinds)} leaves out {JSONL}, from which a run is resumed and "
            f"reported: add it, as in --metrics={','.join((JSONL, *kinds))}."
        )
