"""A figure of means with their intervals."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.storage.csv_text import csv_text

ROW_HEIGHT, MARGIN_HEIGHT = 0.36, 1.1
"""Height in inches of a place with two means, and of the margins."""
APART = 0.16
"""Distance of the means of one place, in row heights."""
MOST_TICKS = 6
"""Numbers that fit below the axis."""


class Mean(NamedTuple):
    """A mean, with the interval mean ± half.

    place: a line of the figure.
    series: distinguishes means of one place by colour.
    values: drawn as small dots.
    """

    place: str
    series: str
    mean: float
    half: float
    values: tuple[float, ...] = ()


class IntervalPlot(NamedTuple):
    """A figure of intervals; means in the order of their places, from the top."""

    name: str
    title: str
    caption: str
    x_label: str
    means: Sequence[Mean]

    @property
    def has_measurements(self) -> bool:
        return bool(self.means)

    def as_csv(self) -> str:
        rows = [mean[:4] for mean in self.means]
        return csv_text([["place", "series", self.x_label, "half of the interval"], *rows])

    def draw(self, foreground: str) -> Any:
        places = list(dict.fromkeys(mean.place for mean in self.means))
        series = list(dict.fromkeys(mean.series for mean in self.means))
        figure = new_figure(height=ROW_HEIGHT * len(places) + MARGIN_HEIGHT)
        axes = figure.add_subplot()
        for number, name in enumerate(series):
            own = [mean for mean in self.means if mean.series == name]
            offset = APART * (2 * number - len(series) + 1)
            y = np.array([places.index(mean.place) for mean in own]) + offset
            for mean, height in zip(own, y):
                axes.plot(mean.values, [height] * len(mean.values), ".", markersize=3,
                          color=foreground, alpha=0.45, zorder=3)  # fmt: skip
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
