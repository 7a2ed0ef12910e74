"""A figure of means with their intervals, one line below the other, beside zero."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.storage.csv_text import csv_text

ROW_HEIGHT, MARGIN_HEIGHT = 0.36, 1.1
"""Inches of a place with two means, and of what stands above and below all places."""
APART = 0.16
"""Of a row's height, by which the means of one place stand above or below it."""
MOST_TICKS = 6
"""Numbers that fit below the axis."""


class Mean(NamedTuple):
    """One mean.

    place: what it is of, one line of the figure. series: tells means of one place apart, by colour.
    mean, half: the interval is mean ± half.
    """

    place: str
    series: str
    mean: float
    half: float


class IntervalPlot(NamedTuple):
    """A figure of intervals.

    Attributes:
        name: for files.
        title, caption: what is shown, and what to look at.
        x_label: of the means, with their unit.
        means: in the order of their places, the first at the top.
    """

    name: str
    title: str
    caption: str
    x_label: str
    means: Sequence[Mean]

    @property
    def has_measurements(self) -> bool:
        return bool(self.means)

    def as_csv(self) -> str:
        """Returns one row a mean: place, series, mean, half of the interval."""
        return csv_text([["place", "series", self.x_label, "half of the interval"], *self.means])

    def draw(self, foreground: str) -> Any:
        """Returns a matplotlib figure whose lines and letters have that colour."""
        places = list(dict.fromkeys(mean.place for mean in self.means))
        series = list(dict.fromkeys(mean.series for mean in self.means))
        figure = new_figure(height=ROW_HEIGHT * len(places) + MARGIN_HEIGHT)
        axes = figure.add_subplot()
        for number, name in enumerate(series):
            own = [mean for mean in self.means if mean.series == name]
            offset = APART * (2 * number - len(series) + 1)
            y = np.array([places.index(mean.place) for mean in own]) + offset
            x, halves = ([getattr(mean, part) for mean in own] for part in ("mean", "half"))
            axes.errorbar(x, y, xerr=halves, fmt="o", markersize=4, linewidth=1.4, capsize=2,
                          color=COLOURS[number % len(COLOURS)], label=name)  # fmt: skip
        axes.axvline(0, color=foreground, alpha=0.5, linewidth=0.7, zorder=0)
        axes.set_yticks(range(len(places)), places)
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.set_xlabel(self.x_label)
        axes.locator_params(axis="x", nbins=MOST_TICKS)
        axes.grid(axis="x", color=foreground, alpha=0.12, linewidth=0.6)
        if len(series) > 1:
            figure.legend(loc="outside upper left", ncols=len(series), fontsize=9)
        return figure
