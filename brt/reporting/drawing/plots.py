"""Plots as SVG in the page's colours, as PNG, and as CSV."""

import io
import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.data.extras import extra_library
from brt.storage.csv_text import csv_text

COLOURS = ("#3b7dd8", "#e0712c", "#2f9e68", "#c2468f", "#8a6fd1", "#a8862a", "#6b7a8f", "#c0392b")
"""Distinguished in this order by most colour-blind readers."""
FOREGROUND = "#123457"  # replaced by the page's text colour in the SVG
MOST_POINTS, MOST_BORDERS, MOST_TICKS, MOST_NAMED = 2000, 100, 12, 30
MARK, PER_SIZE = 12, 1.0
"""Area of a mark of size 0, and the addition of each unit, in square points."""
LEGEND_LETTERS, LABEL_LETTERS, TICK_LETTERS = 96, 36, 28
"""Characters that fit the legend above a plot, an axis, and the name of a row."""
ROWS_WIDTH = 5.2
"""Inches of a figure of rows, whose names are then readable on a phone."""
NO_LEGEND = "_nolegend_"
"""Label of a line that matplotlib leaves out of a legend."""
SHIFT = 0.06
LEGEND_ROWS, ROW_HEIGHT = 3, 0.2
"""Rows of a legend that fit a plot; each further one adds so many inches to its height."""


class Line(NamedTuple):
    """One curve.

    style: "line", "points" (with marks), "marks" (alone), "dots" (small marks), "stems" (a line
        from zero to each point), "published", or "frontier" (wide steps behind the points of other
        lines).
    errors: standard error of each y, drawn as a band; as bars at marks.
    sizes: numbers that the areas of the marks show.
    colour: index of its colour; None for its index among the lines.
    legend: its name in the legend; None for `name`, "" for none.
    is_dashed, is_thin: of one measure with the state cleared; of one of several seeds.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    on_second_axis: bool = False
    errors: Sequence[float] | None = None
    sizes: Sequence[float] | None = None
    colour: int | None = None
    legend: str | None = None
    is_dashed: bool = False
    is_thin: bool = False

    @property
    def shown(self) -> str:
        return self.name if self.legend is None else self.legend


class Plot(NamedTuple):
    """A figure.

    second_label: of the axis on the right, for lines `on_second_axis`.
    fits_later: whether the y axis fits the values after the first tenth of x.
    rows: names of x = 1, 2, ..., which are drawn from top to bottom, with y along the horizontal
        axis; empty for numbers.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    lines: list[Line]
    log_x: bool = False
    borders: tuple[float, ...] = ()
    second_label: str = ""
    fits_later: bool = False
    y_range: tuple[float, float] | None = None
    rows: tuple[str, ...] = ()

    @property
    def has_measurements(self) -> bool:
        return any(line.style not in ("published", "frontier") for line in self.lines)

    def as_csv(self) -> str:
        has_errors = any(line.errors for line in self.lines)
        lines: list[Sequence] = [["line", self.x_label, self.y_label, *["error"] * has_errors]]
        for line in self.lines:
            columns: list[Sequence] = [[line.name] * len(line.x), line.x, line.y]
            columns += [line.errors or [""] * len(line.x)] * has_errors
            lines += zip(*columns)
        return csv_text(lines)

    def draw(self, foreground: str) -> Any:
        if self.rows:
            return self._draw_rows(foreground)
        figure = new_figure()
        axes = figure.add_subplot()
        second: Any = axes.twinx() if self.second_label else None
        for number, line in enumerate(self.lines):
            _draw(second if line.on_second_axis else axes, line, number)
        for border in self.borders if len(self.borders) <= MOST_BORDERS else ():
            axes.axvline(border, color=foreground, alpha=0.2, linewidth=0.5, zorder=0)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(textwrap.fill(self.y_label, LABEL_LETTERS))
        axes.grid(axis="y", color=foreground, alpha=0.12, linewidth=0.6)
        if min(axes.get_ylim()) < 0 < max(axes.get_ylim()):
            axes.axhline(0, color=foreground, alpha=0.5, linewidth=0.7, zorder=0)
        if self.log_x:
            _logarithmic(axes, sorted({x for line in self.lines for x in line.x}))
        elif all(x % 1 == 0 for line in self.lines for x in line.x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        if limits := _later_range(self.lines) if self.fits_later else self.y_range:
            axes.set_ylim(*limits)
        if second is not None:
            second.set_ylabel(textwrap.fill(self.second_label, LABEL_LETTERS))
            second.spines["right"].set_visible(True)
            if all(y % 1 == 0 for line in self.lines if line.on_second_axis for y in line.y):
                second.yaxis.get_major_locator().set_params(integer=True)
        self._add_legend(figure, [axes, second] if second else [axes])
        return figure

    def _draw_rows(self, foreground):
        height = 1.1 + ROW_HEIGHT * sum(1.6 + name.count("\n") for name in self._names())
        figure = new_figure(ROWS_WIDTH, height)
        axes = figure.add_subplot()
        for number, line in enumerate(self.lines):
            style = _style(line, number)
            # Points of one row are drawn below each other.
            colour = number if line.colour is None else line.colour
            rows = np.asarray(line.x, np.float64) + SHIFT * (2 * colour - 1)
            axes.plot(line.y, rows, label=line.shown or NO_LEGEND, **style)
        axes.set_yticks(range(1, len(self.rows) + 1), self._names())
        axes.set_ylim(len(self.rows) + 0.5, 0.5)
        axes.set_xlabel(self.y_label)
        axes.grid(color=foreground, alpha=0.12, linewidth=0.6)
        self._add_legend(figure, [axes])
        return figure

    def _names(self):
        return [textwrap.fill(name, TICK_LETTERS) for name in self.rows]

    def _add_legend(self, figure, axes):
        shown = [line.shown for line in self.lines if line.shown]
        if not 1 < len(shown) <= MOST_NAMED:
            return
        handles = [h for one in axes for h in one.get_legend_handles_labels()[0]]
        columns = LEGEND_LETTERS // (max(map(len, shown)) + 8)
        columns = min(max(columns, 1), len(shown))
        rows = -(-len(handles) // columns)
        figure.set_figheight(figure.get_figheight() + ROW_HEIGHT * max(rows - LEGEND_ROWS, 0))
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, fontsize=9)


def _draw(axes, line, number):
    x, y = _thinned(line)
    if line.style == "stems":
        x, y = np.repeat(x, 3), np.stack([0 * y, y, np.nan * y], 1).ravel()
    if line.style == "marks":
        x = x + SHIFT * number  # bars at the same x are drawn side by side
    style = _style(line, number)
    axes.plot(x, y, label=line.shown or NO_LEGEND, **style)
    if line.sizes:
        areas = [MARK + PER_SIZE * size for size in line.sizes]
        axes.scatter(line.x, line.y, areas, color=style["color"], alpha=0.5)
    if line.errors and line.style == "marks":
        axes.errorbar(x, y, line.errors, fmt="none", color=style["color"], capsize=3)
    elif line.errors:
        low, high = (np.add(line.y, sign * np.array(line.errors)) for sign in (-1, 1))
        axes.fill_between(line.x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _theme(name, foreground):
    matplotlib = extra_library("matplotlib", "brt.report", "report")
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,  # titles of documents are not formulas
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return matplotlib.rc_context(settings | dict.fromkeys(coloured, foreground))


def new_figure(width: float = 7.2, height: float = 3.4) -> Any:
    figures = extra_library("matplotlib.figure", "brt.report", "report")
    return figures.Figure(figsize=(width, height), layout="constrained")


def png(shown: Any) -> bytes:
    """Returns a `Plot` or `HeatMap` for slides and papers: dark on white, 200 dpi, 128 colours."""
    from PIL import Image

    drawn = Image.open(io.BytesIO(_save(shown, "#222222", "png", facecolor="white", dpi=200)))
    file = io.BytesIO()
    drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return file.getvalue()


def svg(shown: Any) -> str:
    """Returns a figure for the page, with text as text in the page's colour."""
    text = _save(shown, FOREGROUND, "svg", transparent=True).decode("utf-8")
    text = text[text.index("<svg") :]
    text = text.replace(FOREGROUND, "currentColor")
    # Coordinates are half the page: a hundredth of a point is enough.
    text = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r' id="[\w.]*_\d+"', "", text)  # the same in every plot of a page
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    return re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1 role="img"', text, count=1)


def _style(line, number):
    colour = COLOURS[(number if line.colour is None else line.colour) % len(COLOURS)]
    styles: dict[str, dict[str, Any]] = {
        "line": {"linewidth": 1.4 if len(line.x) < 300 else 0.9},
        "stems": {"linewidth": 0.7},
        "marks": {"linestyle": "none", "marker": "o", "markersize": 5},
        "dots": {"linestyle": "none", "marker": "o", "markersize": 2.5, "alpha": 0.6},
        "points": {"linewidth": 1.4, "marker": "o", "markersize": 4},
        "published": {"linewidth": 1.2, "marker": "s", "markersize": 4, "linestyle": "--"},
        "frontier": {"linewidth": 6, "alpha": 0.3, "drawstyle": "steps-post", "zorder": 1},
    }
    again = (number if line.colour is None else line.colour) >= len(COLOURS)
    style = {"color": colour, "linestyle": ":" if again else "-", **styles[line.style]}
    if line.is_dashed:
        style["linestyle"] = "-." if again else "--"
    if line.is_thin:
        style |= {"linewidth": 0.8, "alpha": 0.8, "markersize": 2.5}
    return style


def _thinned(line):
    """Returns the points to draw: of a long line the outermost of each stretch."""
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    if len(x) <= MOST_POINTS:
        return x, y
    indices, middle = [], np.nanmedian(y) if np.isfinite(y).any() else 0.0
    for part in np.array_split(np.arange(len(x)), MOST_POINTS):
        indices.append(part[np.nanargmax(np.abs(np.nan_to_num(y[part], nan=middle) - middle))])
    return x[indices], y[indices]


def _logarithmic(axes, x):
    axes.set_xscale("log")
    if len(x) > MOST_TICKS or min(b / a for a, b in itertools.pairwise([*x, x[-1] * 2])) < 1.15:
        if x[-1] < 100 * x[0]:  # fewer than two powers of ten may lie between
            axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axes.xaxis.set_major_formatter(lambda value, _: _plain(value))
    else:
        axes.set_xticks(x, map(_plain, x))
    axes.minorticks_off()


def _plain(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _later_range(lines):
    lines = [line for line in lines if not line.on_second_axis]
    start = max(max(line.x) for line in lines) / 10
    later = [y for line in lines for x, y in zip(line.x, line.y) if x >= start and np.isfinite(y)]
    if not later or min(later) == max(later):
        return None, None
    margin = (max(later) - min(later)) / 15
    return min(later) - margin, max(later) + margin


def _save(shown, foreground, kind, **options):
    file = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with _theme(shown.name, foreground):
        shown.draw(foreground).savefig(file, format=kind, metadata=metadata, **options)
    return file.getvalue()
