"""The figure of improvements against training time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from results_page import records
from results_page.records import Entry
from results_page.tables import Times, rows_of, step_time

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.reporting.drawing.rounding import confidence_interval
from brt.storage.csv_text import csv_text


class TimePlot(NamedTuple):
    """Improvements against training time, without lines: nothing was run between the points.

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
        for number, memory in enumerate(memories):
            own = [point for point in self.points if point[0] == memory]
            times, means, halves = zip(*(point[2:5] for point in own))
            axes.errorbar(times, means, yerr=halves, fmt="o", capsize=3, label=memory,
                          color=COLOURS[number])  # fmt: skip
            for _, label, time, mean, half, values in own:
                axes.plot([time] * len(values), values, ".", markersize=4, color=foreground,
                          alpha=0.5, zorder=3)  # fmt: skip
                end, side, away = (mean + half, "bottom", 6) if number else (mean - half, "top", -6)
                axes.annotate(label, (time, end), (0, away), textcoords="offset points", va=side,
                              fontsize=9, color=COLOURS[number], ha="center")  # fmt: skip
        axes.axhline(0, color=foreground, linewidth=1.2, linestyle="--", zorder=0)
        axes.set_xlabel("training time, relative to that of the dashed line")
        axes.set_ylabel("improvement, bits per byte")
        axes.grid(axis="y", color=foreground, alpha=0.12, linewidth=0.6)
        figure.legend(loc="outside upper left", ncols=len(memories), fontsize=9)
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
