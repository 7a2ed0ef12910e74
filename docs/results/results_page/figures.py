"""The figure of improvements by training time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from results_page import records
from results_page.records import Entry
from results_page.tables import Times, rows_of, step_time

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.reporting.drawing.rounding import confidence_interval
from brt.storage.csv_text import csv_text


class TimePlot(NamedTuple):
    """Improvements in the order of training time, which each row names.

    points: memory, label, relative time, mean and half of its interval, values of all seeds.
    """

    name: str
    title: str
    points: list[tuple[str, str, float, float, float, tuple[float, ...]]]
    caption: str = ""

    def as_csv(self) -> str:
        return csv_text([["memory", "label", "time", "improvement", "half of the interval"],
                         *(point[:5] for point in self.points)])  # fmt: skip

    def draw(self, foreground: str) -> Any:
        figure = new_figure(height=3.8)
        axes = figure.add_subplot()
        memories = list(dict.fromkeys(point[0] for point in self.points))
        points = sorted(self.points, key=lambda point: -point[2])
        for place, (memory, _, _, mean, half, values) in enumerate(points):
            colour = COLOURS[memories.index(memory)]
            axes.errorbar(mean, place, xerr=half, fmt="o", capsize=3, color=colour)
            axes.plot(values, [place - 0.3] * len(values), ".", markersize=4, color=colour)
        axes.axvline(0, color=foreground, linewidth=1.2, linestyle="--", zorder=0)
        axes.set_yticks(range(len(points)), [f"{memory}, {label}: {time:.2f}"
                                             for memory, label, time, *_ in points])  # fmt: skip
        axes.set_xlabel("improvement, bits per byte")
        axes.grid(axis="x", color=foreground, alpha=0.12, linewidth=0.6)
        return figure


def time_plot(
    name: str, spec: Mapping[str, Any], entries: Sequence[Entry], times: Times
) -> TimePlot | None:
    """Returns the improvement of each row over one baseline, seed by seed; None without runs."""
    points = []
    for row in rows_of(spec, entries):
        values = row.entry.below(row.other, records.bits)
        time = step_time(row.entry, times) or step_time(row.other, times)
        if len(values) > 1 and time and row.other:
            longer = row.entry.fields["steps"] / row.other.fields["steps"]
            label = f"W = {row.entry.fields['W']}" + f", {longer:g} × steps" * (longer != 1)
            mean, half = confidence_interval(values)
            points.append((row.entry.memory, label, longer * time, mean, half, values))
    return TimePlot(name, spec["title"], points) if points else None
