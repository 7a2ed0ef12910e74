"""A trace of some steps of a run, for TensorBoard and Perfetto.

Operations have the named scopes of the models (`layer3/attention`, `optimizer`); the compiled step,
next to the trace, has them too.
"""

import glob
import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import logging

from brt.storage.replaced_files import replace_file

STEP_TEXT = "step.hlo.txt.gz"


class ProfiledSteps(NamedTuple):
    first: int
    last: int


def parse_steps(text: str) -> ProfiledSteps:
    match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", text)
    if not match:
        raise ValueError(f"--profile = {text}: give the first and the last step, like 100:105.")
    steps = ProfiledSteps(int(match[1]), int(match[2]))
    if not 1 <= steps.first <= steps.last:
        raise ValueError(
            f"--profile = {text} has no step: the first step is 1, and the last is not before it."
        )
    return steps


class Profiler:
    """Traces steps of a run, with idle devices before and after.

    folder: TensorBoard's. start: steps that are done already. end: the last step of the run.
    """

    def __init__(self, steps: ProfiledSteps | None, folder: str, start: int, end: int):
        if steps and steps.last > end:
            raise ValueError(
                f"--profile = {steps.first}:{steps.last} is not within the steps of the run, 1 to "
                f"{end:,} (Trainer.steps): choose some of these."
            )
        if steps and steps.first <= start:  # a job that is queued again repeats its flags
            logging.warning(
                "--profile = %d:%d: the run is at step %s already, so no step is traced.",
                *(steps.first, steps.last, f"{start:,}"),
            )
            steps = None
        self.steps = steps
        self.folder = folder
        self.tracing = False

    def before(self, step: int, state: Any) -> None:
        if self.steps and step == self.steps.first:
            jax.block_until_ready(state)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # Python calls would hide the operations
            jax.profiler.start_trace(
                self.folder,
                create_perfetto_trace=jax.process_count() == 1,  # JAX expects the file of one
                profiler_options=options,
            )
            self.tracing = True

    def after(self, step: int, step_function: Callable, state: Any, batch: Any) -> str | None:
        """Ends the trace if this step was its last, and returns the trace's folder."""
        if not (self.tracing and self.steps and step == self.steps.last):
            return None
        jax.block_until_ready(state)
        self.close()
        folder = newest_trace(self.folder)
        lower = getattr(step_function, "lower", None)
        if jax.process_index() == 0 and lower is not None:
            text = lower(state, batch).compile().as_text()
            replace_file(Path(folder), STEP_TEXT, gzip.compress(text.encode()))
        return folder

    def close(self) -> None:
        if self.tracing:
            self.tracing = False
            jax.profiler.stop_trace()


def newest_trace(folder: str) -> str:
    traces = glob.glob(os.path.join(folder, "plugins", "profile", "*", ""))
    if not traces:
        raise FileNotFoundError(f"{folder} has no trace: train with --profile=FROM:TO.")
    return max(traces)
