"""Figures as CSV, in the page, and as PNG files, by Altair."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.data.extras import extra_library
from brt.storage.csv_text import csv_text

COLOURS = ("#3b7dd8", "#e0712c", "#2f9e68", "#c2468f", "#8a6fd1", "#a8862a", "#6b7a8f", "#c0392b")
"""Most colour-blind readers can distinguish them in this order."""
INK = "currentColor"
"""The colour of the page's text in an SVG."""
MOST_POINTS, MOST_BORDERS, MOST_TICKS = 400, 100, 12
SMALL = 1e-3
"""Below, an axis has exponents."""
SCALE = 1.6
"""Pixels of a PNG file by pixel of a figure."""
WIDTH, HEIGHT, ROW_HEIGHT = 600, 230, 42
"""Pixels of a figure in a file, of every figure, and of a row."""
LEGEND_LETTERS, LETTERS, ROW_LETTERS = 84, 36, 26
"""Characters that fit the legend above a figure, its vertical axis, and the name of a row."""
MARKS: dict[str, dict[str, Any]] = {
    "line": {"type": "line", "strokeWidth": 1.5},
    "points": {"type": "line", "strokeWidth": 1.5},
    "marks": {"type": "point", "filled": True, "size": 60, "opacity": 1},
    "dots": {"type": "point", "filled": True, "size": 18, "opacity": 0.6},
    "stems": {"type": "rule"},
    "published": {"type": "line", "strokeDash": [5, 3], "point": {"shape": "square", "size": 28}},
    "frontier": {"type": "line", "interpolate": "step-after", "strokeWidth": 8, "opacity": 0.3},
}
"""Marks of Vega-Lite by the style of a line."""


class Line(NamedTuple):
    """One curve.

    style: one of `MARKS`; "marks" and "dots" are not connected, "stems" begin at zero.
    errors: of each y, drawn as a band, or as bars at marks.
    sizes: numbers that the areas of the marks show.
    colour: index of its colour, the same in several figures; None for that of its name among the
        names of the figure.
    state: distinguishes it from others of its name and colour, by dashes.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    on_second_axis: bool = False
    errors: Sequence[float] | None = None
    sizes: Sequence[float] | None = None
    colour: int | None = None
    state: str = ""

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.name, self.state)))


class Plot(NamedTuple):
    """A figure.

    second_label: of the axis on the right, for lines `on_second_axis`.
    y_range: of the axis on the left, which cuts off the lines; None for all values.
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
    y_range: tuple[float, float] | None = None
    rows: tuple[str, ...] = ()

    @property
    def has_measurements(self) -> bool:
        return any(line.style not in ("published", "frontier") for line in self.lines)

    @property
    def height(self) -> int:
        return ROW_HEIGHT * len(self.rows) or HEIGHT

    def as_csv(self) -> str:
        has_errors = any(line.errors for line in self.lines)
        lines: list[Sequence] = [["line", self.x_label, self.y_label, *["error"] * has_errors]]
        for line in self.lines:
            columns: list[Sequence] = [[line.label] * len(line.x), line.x, line.y]
            columns += [line.errors or [""] * len(line.x)] * has_errors
            lines += zip(*columns)
        return csv_text(lines)

    def drawn(self, alt: Any) -> Any:
        """Returns an Altair chart without a size and a theme."""
        picked = alt.selection_point(fields=["line"], bind="legend")
        sides: dict[bool, list] = {False: [], True: []}
        if 0 < len(self.borders) <= MOST_BORDERS:
            borders = alt.Chart(inline(alt, along=self.borders)).mark_rule(opacity=0.3, color=INK)
            sides[False].append(borders.encode(x=self._along(alt)))
        kinds: dict[tuple, list[Line]] = {}
        for line in self.lines:
            kinds.setdefault((line.style, line.on_second_axis, bool(line.errors)), []).append(line)
        for (style, is_second, _), lines in kinds.items():
            sides[is_second] += self._layers(alt, style, lines, is_second, picked)
        charts = [alt.layer(*layers) for layers in sides.values() if layers]
        whole = alt.layer(*charts).resolve_scale(y="independent") if charts[1:] else charts[0]
        return whole.add_params(picked)

    def _layers(self, alt, style, lines, is_second, picked):
        at, across = ("x", "y") if self.rows else ("y", "x")
        label, mark = self.second_label if is_second else self.y_label, MARKS[style]

        def opacity(usual):
            return alt.condition(picked, alt.value(usual), alt.value(usual / 8))

        # Vega-Lite puts these titles into expressions without escaping backslashes.
        titles = {"line:N": " ", "state:N": " ", "along:N": self.x_label or " ", "value:Q": label}
        chart = alt.Chart(_data(alt, lines, self.rows)).encode(
            **{at: self._value(alt, label, is_second), across: self._along(alt)},
            color=self._colour(alt),
            detail="state:N",
            opacity=opacity(mark.get("opacity", 1)),
            tooltip=[
                alt.Tooltip(
                    of, title=title.replace("\\", "/"), format=".5~g" if of[-1] == "Q" else ""
                )
                for of, title in titles.items()
            ],
        )
        clip, layers, drawn = bool(self.y_range), [], chart
        if lines[0].errors:
            spread = chart.encode(**{f"{at}Error": "error:Q"})
            band = spread.mark_errorband(clip=clip).encode(opacity=opacity(0.2))
            layers.append(band if mark["type"] == "line" else spread.mark_errorbar())
        states = list(dict.fromkeys(line.state for line in self.lines if line.style != "dots"))
        if style in ("line", "points") and len(states) > 1:
            legend, scale = _legend(alt, states, "stroke"), alt.Scale(domain=states)
            drawn = chart.encode(strokeDash=alt.StrokeDash("state:N", scale=scale, legend=legend))
        elif style == "stems":
            drawn = chart.encode(y2=alt.datum(0))
        drawn.mark = mark | {"clip": clip}
        layers.append(drawn)
        if any(line.sizes for line in lines):
            size = alt.Size("size:Q", legend=None, scale=alt.Scale(range=[20, 300]))
            layers.append(chart.mark_point(filled=True).encode(size=size, opacity=opacity(0.5)))
        if style == "points":  # without dashes
            layers.append(chart.mark_point(filled=True, size=28, clip=clip))
        elif style == "line":  # invisible, for the pointer
            points = chart.mark_point(size=60, clip=clip)
            layers.append(points.encode(opacity=alt.value(0)))
        return layers

    def _colour(self, alt):
        chosen: dict[str, Any] = {line.name: line.colour for line in reversed(self.lines)}
        names = list(dict.fromkeys(line.name for line in self.lines))
        indices = [n if chosen[name] is None else chosen[name] for n, name in enumerate(names)]
        scale = alt.Scale(domain=names, range=[COLOURS[index % len(COLOURS)] for index in indices])
        legend = _legend(alt, names, "circle" if self.rows else "stroke")
        is_named = len(names) > 1 or chosen[names[0]] is not None
        return alt.Color("line:N", scale=scale, legend=legend if is_named else None)

    def _along(self, alt):
        if self.rows:
            axis = alt.Axis(labelLimit=260, title=None, labelExpr=r"split(datum.label, '\n')")
            return alt.Y("along:N", sort=_wrapped(self.rows), axis=axis)
        x = sorted({x for line in self.lines for x in line.x})
        axis = alt.Axis(grid=False, labelOverlap="greedy", title=self.x_label, tickCount=8)
        if self.log_x and len(x) <= MOST_TICKS:
            axis.values = x
        elif all(number % 1 == 0 for number in x):
            axis.tickMinStep = 1
        scale = alt.Scale(type="log" if self.log_x else "linear", nice=False, zero=False, padding=8)
        return alt.X("along:Q", axis=axis, scale=scale)

    def _value(self, alt, label, is_second):
        limits = None if is_second else self.y_range
        scale = alt.Scale(zero=False, nice=not limits)
        if limits:
            scale.domain = list(limits)
        grid = alt.condition("datum.value === 0", alt.value(0.5), alt.value(0.12))
        axis = alt.Axis(gridOpacity=grid, title=textwrap.wrap(label, LETTERS), tickCount=6)
        if all(abs(y) < SMALL for line in self.lines for y in line.y):
            axis.format = ".1~e"
        if is_second:
            axis.orient, axis.grid = "right", False
        return (alt.X if self.rows else alt.Y)("value:Q", axis=axis, scale=scale)


def _legend(alt, names, symbol):
    columns = min(max(LEGEND_LETTERS // (max(map(len, names)) + 4), 1), len(names))
    narrow = alt.ExprRef(f"containerSize()[0] < 480 ? 1 : {columns}")
    style = {"symbolType": symbol, "symbolOpacity": 1, "symbolStrokeWidth": 2, "labelLimit": 320}
    return alt.Legend(title=None, orient="top", columns=narrow, **style)


def inline(alt: Any, **columns: Any) -> Any:
    """Returns columns as CSV inside of a chart; those named line, state and row hold text."""
    pandas = extra_library("pandas", "brt.report", "report")
    frame = pandas.DataFrame(columns)
    numbers = {name: "number" for name in frame.select_dtypes("number")}
    parse = dict.fromkeys(frame, "string") | numbers
    text = frame.to_csv(index=False, float_format="%.6g")
    return alt.InlineData(text, format=alt.CsvDataFormat(type="csv", parse=parse))


def _wrapped(rows):
    return ["\n".join(textwrap.wrap(row, ROW_LETTERS)) for row in rows]


def _data(alt, lines, rows):
    columns: dict[str, list] = {}
    rows = _wrapped(rows)
    for line in lines:
        found = {"along": [rows[int(number) - 1] for number in line.x] if rows else line.x}
        found |= {"value": line.y, "error": line.errors or (), "size": line.sizes or ()}
        found |= {"line": [line.name] * len(line.x), "state": [line.state] * len(line.x)}
        for name, values in found.items():
            kept = [values[i] for i in kept_points(line.y)] if len(values) else []
            columns.setdefault(name, []).extend(kept)
    return inline(alt, **{name: values for name, values in columns.items() if values})


def kept_points(y: Sequence[float]) -> np.ndarray:
    """Returns the indices of points to draw: of many, the extremes of each stretch."""
    y_T = np.asarray(y, np.float64)
    if len(y_T) <= MOST_POINTS:
        return np.arange(len(y_T))
    middle = np.nanmedian(y_T) if np.isfinite(y_T).any() else 0.0
    distance_T = np.abs(np.nan_to_num(y_T, nan=middle) - middle)
    parts = np.array_split(np.arange(len(y_T)), MOST_POINTS)
    return np.array([part[np.argmax(distance_T[part])] for part in parts])


def later_range(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Returns a range of y that fits the values after the first tenth of x, if they differ."""
    start = max((x for line in lines for x in line.x), default=0) / 10
    later = [y for line in lines for x, y in zip(line.x, line.y) if x >= start and np.isfinite(y)]
    if not later or min(later) == max(later):
        return None
    margin = (max(later) - min(later)) / 15
    return min(later) - margin, max(later) + margin


def chart(shown: Any, ink: str = INK, **properties: Any) -> Any:
    """Returns a `Plot` or `HeatMap` as an Altair chart, which notebooks show.

    ink: the colour of its text. properties: of the chart, such as its width.
    """
    alt = extra_library("altair", "brt.report", "report")
    text: dict[str, Any] = {f"{part}Color": ink for part in ("label", "title")}
    axis = text | {f"{part}Color": ink for part in ("domain", "tick", "grid")}
    axis |= {"titleFontWeight": "normal", "domainOpacity": 0.4, "tickOpacity": 0.4}
    usual = {"height": shown.height, "width": WIDTH, "background": "transparent"}
    return (
        shown.drawn(alt)
        .properties(**usual | properties)
        .configure(
            aria=False, font="system-ui, sans-serif", axis=axis, legend=text, view={"stroke": None}
        )
    )


def image(shown: Any) -> bytes:
    """Returns a `Plot` or `HeatMap` as a PNG file."""
    extra_library("vl_convert", "brt.report", "report")
    file = io.BytesIO()
    chart(shown, "#222222", background="white").save(file, format="png", scale_factor=SCALE)
    return file.getvalue()
