"""Improvement over the baseline on fresh training text, by training step."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from results_page.gains import FRESH, Gain, pairs
from results_page.overview import GATES

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.reporting.drawing.rounding import confidence_interval
from brt.storage.csv_text import csv_text

LOSS = "train/bits_per_token"
MARGIN = 0.02
"""Space above and below the curves, in bits per byte."""


class Curve(NamedTuple):
    """Means and halves of 95 % intervals at training steps; halves are 0 of one seed."""

    gate: str
    window: int
    seeds: int
    steps: tuple[int, ...]
    means: tuple[float, ...]
    halves: tuple[float, ...]


class LearningPlot(NamedTuple):
    """Curves of each gate in a panel of its own, with one colour a window."""

    name: str
    title: str
    caption: str
    curves: list[Curve]

    def as_csv(self) -> str:
        rows = [
            (curve.gate, curve.window, *point)
            for curve in self.curves
            for point in zip(curve.steps, curve.means, curve.halves)
        ]
        return csv_text([["gate", "window", "step", "improvement", "half of the interval"], *rows])

    def draw(self, foreground: str) -> Any:
        figure = new_figure()
        gates = list(dict.fromkeys(curve.gate for curve in self.curves))
        windows = sorted({curve.window for curve in self.curves})
        panels = figure.subplots(1, len(gates), sharey=True, squeeze=False)[0]
        for axes, gate in zip(panels, gates):
            for curve in (curve for curve in self.curves if curve.gate == gate):
                colour = COLOURS[windows.index(curve.window)]
                seeds = "" if curve.seeds > 1 else " (one seed)"
                axes.plot(curve.steps, curve.means, color=colour, linewidth=1.4,
                          linestyle="-" if curve.seeds > 1 else ":",
                          label=f"W = {curve.window}{seeds}")  # fmt: skip
                low, high = (np.add(curve.means, sign * np.array(curve.halves)) for sign in (-1, 1))
                axes.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.axhline(0, color=foreground, alpha=0.5, linewidth=0.7, zorder=0)
            axes.set_title(f"{gate} gate", fontsize=10)
            axes.set_xlabel("training step")
            axes.grid(axis="y", color=foreground, alpha=0.12, linewidth=0.6)
        means = [mean for curve in self.curves for mean in curve.means]
        panels[0].set_ylim(min(means) - MARGIN, max(means) + MARGIN)
        panels[0].set_ylabel("improvement over one more\nlayer, bits per byte")
        handles = panels[0].get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=9)
        return figure


def learning_plot(name: str, found: Iterable[Gain]) -> LearningPlot | None:
    """Returns the curves of all comparisons; None if no pair logged its training loss."""
    curves = [curve for gain in found if (curve := _curve(gain))]
    if not curves:
        return None
    seeds = max(curve.seeds for curve in curves)
    caption = (
        "Improvement of a recurrent stack over one more layer with the same window, on fresh "
        "training text: mean of a fifth of training up to each step, 95 % interval of "
        f"{seeds} seeds."
    )
    curves.sort(key=lambda curve: (curve.gate, curve.window))
    return LearningPlot(name, "Improvement while training", caption, curves)


def _curve(gain):
    gate = GATES.get(gain.recurrent.position.system)
    if gate is None or gain.plain is None:
        return None
    differences = []
    for run, plain in pairs(gain.recurrent, gain.plain):
        its, own = (dict(zip(*one.series(LOSS))) for one in (plain, run))
        differences.append({step: its[step] - own[step] for step in its.keys() & own.keys()})
    steps = sorted(set.intersection(*map(set, differences))) if differences else []
    span = FRESH * gain.regime.steps
    points = [
        (end, [float(np.mean([one[s] for s in steps if end - span < s <= end]))
               for one in differences])
        for end in steps if end >= span
    ]  # fmt: skip
    if not points:
        return None
    intervals = [
        confidence_interval(values) if len(values) > 1 else (values[0], 0.0) for _, values in points
    ]
    means, halves = zip(*intervals)
    ends = tuple(end for end, _ in points)
    return Curve(gate, gain.regime.window, len(differences), ends, means, halves)
