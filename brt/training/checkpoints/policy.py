"""Rules of checkpoints."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from brt.checks import Count, OneOf, configurable

LOWEST = re.compile(r"loss|perplexity|bits_per")
"""Scalars whose lowest value is best."""
HIGHEST = re.compile(r"accuracy|f1|precision|recall|exact")
OF_LABELS = ("answer_f1", "f1", "micro_f1", "macro_f1", "accuracy")
"""Default metrics of labelled documents; the first available one counts."""
BEST_STEP = "best/step"
"""Scalar in an evaluation's record: the step of the best one so far."""
STOPPED_EARLY = "best/stopped_early"


class NoSuchMetric(ValueError):
    """An evaluation lacks the scalar that decides."""


class Best(NamedTuple):
    """The best evaluation so far; None before the first finite one.

    since: evaluations after it, in a row, that were not better.
    """

    step: int | None = None
    value: float | None = None
    since: int = 0


@configurable
@dataclass(eq=False)
class CheckpointPolicy:
    """Rules of when checkpoints are written, which are kept, and when a run stops early.

    Args:
        every: steps between checkpoints.
        keep_last: how many of the newest to keep.
        keep_every: also keep checkpoints at multiples of this many steps, or None.
        keep_best: also keep the checkpoint of the best evaluation, the default of `brt.evaluate`
            and `load_run`.
        metric: with `keep_best`, the scalar of the evaluation that decides, such as
            "recall_accuracy" of `@RecallScore`. None takes the loss, or with labelled documents F1
            or accuracy (`OF_LABELS`).
        mode: "min" or "max", the best value; None follows the name of the metric.
        patience: with `keep_best`, evaluations in a row without improvement after which to stop;
            None for never.
    """

    every: Count = 1000
    keep_last: Count = 3
    keep_every: Count | None = None
    keep_best: bool = False
    metric: str | None = None
    mode: Annotated[str, OneOf(("min", "max"))] | None = None
    patience: Count | None = None

    def __post_init__(self):
        for name in ("metric", "mode", "patience"):
            value = getattr(self, name)
            if value is not None and not self.keep_best:
                raise ValueError(
                    f"CheckpointPolicy.{name} = {value!r} needs CheckpointPolicy.keep_best = True: "
                    "bind it as well."
                )
        self.metric = self.metric.removeprefix("eval/") if self.metric else None
        self.mode = self.mode or (_mode_of(self.metric) if self.metric else None)

    def kept(self, steps: Collection[int], best: int | None = None) -> set[int]:
        kept = set(sorted(steps)[-self.keep_last :])
        if self.keep_every:
            kept |= {step for step in steps if step % self.keep_every == 0}
        return kept | {step for step in steps if step == best}

    def metric_of(self, scalars: Mapping[str, Any], labelled: bool = False) -> str:
        if self.metric is None:
            candidates = OF_LABELS if labelled else ()
            return next((name for name in candidates if name in scalars), "loss")
        if self.metric not in scalars:
            raise NoSuchMetric(
                f"CheckpointPolicy.metric = {self.metric!r} is not a scalar of the evaluation in "
                f"the loop: choose one of {', '.join(sorted(scalars))}."
            )
        return self.metric

    def after(self, best: Best, step: int, metric: str, value: float) -> Best:
        """Returns the best evaluation after one more, at `step`; of equal ones the first."""
        sign = 1 if (self.mode or _mode_of(metric)) == "max" else -1
        better = value == value and (best.value is None or sign * value > sign * best.value)
        return Best(step, value) if better else best._replace(since=best.since + 1)

    def best_of(self, records: Iterable[Mapping], labelled: bool = False) -> Best:
        best = Best()
        for record in records:
            scalars = _evaluation(record)
            if scalars and (self.metric is None or self.metric in scalars):
                metric = self.metric_of(scalars, labelled)
                best = self.after(best, record["step"], metric, float(scalars[metric]))
        return best

    def stops(self, best: Best) -> bool:
        return self.patience is not None and best.since >= self.patience

    def reason(self, best: Best) -> str:
        which = "none was finite" if best.step is None else f"best at step {best.step:,}"
        return (
            f"the last {best.since} evaluations were not better than the best one ({which}; "
            f"CheckpointPolicy.patience = {self.patience})"
        )


def recorded_best(
    records: Iterable[Mapping], steps: Collection[int] | None = None
) -> tuple[int, str] | None:
    """Returns step and metric of the last best evaluation in the records of a run, oldest first.

    steps: of the checkpoints to consider; None for any.
    """
    best = None
    for record in records:
        step = record.get(BEST_STEP)
        if isinstance(step, int) and (steps is None or step in steps):
            names = (name for name in record if name.startswith("best/") and name != BEST_STEP)
            best = step, next(names, "").removeprefix("best/")
    return best


def stopped_early(records: Sequence[Mapping]) -> bool:
    return bool(records) and STOPPED_EARLY in records[-1]


def _evaluation(record):
    return {
        name.removeprefix("eval/"): value
        for name, value in record.items()
        if name.startswith("eval/") and not isinstance(value, str)
    }


def _mode_of(metric):
    name = metric.partition("/")[0]
    if LOWEST.search(name):
        return "min"
    if HIGHEST.search(name):
        return "max"
    low, high = (pattern.pattern.replace("|", ", ") for pattern in (LOWEST, HIGHEST))
    raise ValueError(
        f"CheckpointPolicy.metric = {metric!r} has no known direction (names with {low}, {high} "
        'have): bind CheckpointPolicy.mode to "min" or "max".'
    )
