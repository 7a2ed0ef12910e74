"""Improvements over the baseline by training step."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from results_page.gain_tables import told_apart
from results_page.gains import Gain, pairs

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.runs import Run

OWN, CLEARED = "eval/bits_per_token", "eval/cleared_bits_per_token"
"""Scalars of the evaluations in training."""


def training_plot(name: str, found: Iterable[Gain]) -> Plot | None:
    """Returns improvements over plain runs by step; None without two evaluations of a pair."""
    both = [
        (gain.recurrent, list(pairs(gain.recurrent, gain.plain))) for gain in found if gain.plain
    ]
    lines = _lines(both, lambda own, plain: _difference(own, plain, OWN))
    caption = "than the plain stack of the same seed"
    return _plot(name, "Gain over a plain stack while training", caption, "gain", lines)


def clearing_plot(name: str, found: Iterable[Gain]) -> Plot | None:
    """Returns the cost of clearing the state by step; None without two evaluations of a run."""
    both = [(gain.recurrent, [(run, run) for run in gain.recurrent.runs]) for gain in found]
    lines = _lines(both, lambda own, same: _difference(own, same, CLEARED))
    caption = "than with their state cleared at every segment"
    return _plot(name, "Worth of the state while training", caption, "worth", lines)


def _lines(
    both: Sequence[tuple[Group, list[tuple[Run, Run]]]],
    difference: Callable[[Run, Run], dict[int, float]],
) -> list[Line]:
    lines = []
    names = told_apart([group for group, _ in both])
    for name, (_, runs) in zip(names, both):
        values = [difference(*pair) for pair in runs]
        steps = sorted(set.intersection(*map(set, values))) if values else []
        if len(steps) > 1:
            means = [float(np.mean([one[step] for one in values])) for step in steps]
            seeds = f"{len(runs)} seed" + "s" * (len(runs) > 1)
            lines.append(Line(f"{name}, {seeds}", steps, means, "points"))
    return lines


def _difference(own, other, name):
    its, mine = (dict(zip(*run.series(key))) for run, key in ((other, name), (own, OWN)))
    return {step: its[step] - mine[step] for step in its.keys() & mine.keys()}


def _plot(name, title, caption, what, lines):
    if not lines:
        return None
    text = f"Bits per token by which recurrent runs are better {caption}, on a part of validation; "
    label = f"{what}, bits per token"
    return Plot(name, title, text + "means over seeds.", "steps", label, lines)
