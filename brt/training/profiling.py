"""A trace of some steps of a run, for TensorBoard and Perfetto.

Operations carry the named scopes of the models (`layer3/attention`, `optimizer`). Where a viewer
shows an operation's name only, the text of the compiled step beside the trace tells its scope.
"""

import glob
import gzip
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

STEP_TEXT = "step.hlo.txt.gz"
"""The compiled step, beside a trace."""


class ProfiledSteps(NamedTuple):
    """The first and the last step that are traced, counted from 1."""

    first: int
    last: int


def parse_steps(text: str) -> ProfiledSteps:
    """Returns the steps that a text like "100:105" names.

    Raises:
        ValueError: it names none.
    """
    match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", text)
    if not match:
        raise ValueError(f"--profile = {text}: give the first and the last step, like 100:105.")
    steps = ProfiledSteps(int(match[1]), int(match[2]))
    if not 1 <= steps.first <= steps.last:
        raise ValueError(
            f"--profile = {text} holds no step: the first step is 1, and the last must not lie "
            "before the first."
        )
    return steps


class Profiler:
    """Traces the steps of a run that it is asked to.

    The trace begins and ends with nothing in flight on the devices.

    Args:
        steps: what to trace; None for nothing.
        folder: TensorBoard's folder; the trace lies in `plugins/profile/` below it.
        start: steps that are done already.
        end: the last step of the run.

    Raises:
        ValueError: steps that the run does not take any more, or never.
    """

    def __init__(self, steps: ProfiledSteps | None, folder: str, start: int, end: int):
        if steps and not start < steps.first <= steps.last <= end:
            raise ValueError(
                f"--profile = {steps.first}:{steps.last} does not lie within the steps to come, "
                f"{start + 1:,} to {end:,} (Trainer.steps): choose some of these."
                if start < end
                else f"--profile = {steps.first}:{steps.last}: the run is trained to its last "
                f"step, {end:,}, and takes none that could be traced."
            )
        self.steps = steps
        self.folder = folder
        self.tracing = False

    def before(self, step: int, state: Any) -> None:
        """Begins the trace if this step is the first of it; `state` is what the step is given."""
        if self.steps and step == self.steps.first:
            jax.block_until_ready(state)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every call of Python would hide the operations
            jax.profiler.start_trace(
                self.folder, create_perfetto_trace=True, profiler_options=options
            )
            self.tracing = True

    def after(self, step: int, step_function: Callable, state: Any, batch: Any) -> str | None:
        """Ends the trace if this step was its last, and returns the folder it lies in.

        Args:
            step: its number.
            step_function: what took it, compiled with `jax.jit`.
            state: what it returned.
            batch: what it was given.
        """
        if not (self.tracing and self.steps and step == self.steps.last):
            return None
        jax.block_until_ready(state)
        self.close()
        folder = newest_trace(self.folder)
        lower = getattr(step_function, "lower", None)
        if jax.process_index() == 0 and lower is not None:
            with gzip.open(os.path.join(folder, STEP_TEXT), "wt", encoding="utf-8") as file:
                file.write(lower(state, batch).compile().as_text())
        return folder

    def close(self) -> None:
        """Ends a trace that is not ended yet."""
        if self.tracing:
            self.tracing = False
            jax.profiler.stop_trace()


def newest_trace(folder: str) -> str:
    """Returns the folder of the newest trace of a run.

    Raises:
        FileNotFoundError: the run has none.
    """
    found = glob.glob(os.path.join(folder, "plugins", "profile", "*", ""))
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no trace: train with --profile=FROM:TO to write one."
        )
    return max(found)
