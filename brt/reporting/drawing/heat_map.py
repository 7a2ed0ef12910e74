"""Heat maps of matrices."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from brt.reporting.drawing.plots import COLOURS, HEIGHT, INK, LETTERS, inline
from brt.storage.csv_text import csv_text
from brt.storage.regular_files import open_regular

SHADE, MARK = COLOURS[0], COLOURS[7]
BRIGHTEST = 99.5
"""Percentile of the numbers that gets the full colour."""
FADES = 0.5
"""Exponent from a number to its shade, so that small numbers differ from zero."""
NUMBERED = 16
MOST_CELLS = 64, 160
"""Rows and columns that are drawn."""
PER_ROW = 20
"""Height in pixels of a row of a low map."""


class HeatMap(NamedTuple):
    """A figure of a matrix.

    values_RC: (rows, columns), the first row at the top; a negative number is an empty cell.
    x_values, y_values: values of all columns, and rows.
    x_borders, y_borders: columns and rows before which a line is drawn.
    marked: columns that are marked.
    most: the number with the full colour, for linear shades with numbers in the cells; 0 for
        shades by percentile.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    values_RC: np.ndarray
    x_values: Sequence[float]
    y_values: Sequence[float]
    x_borders: Sequence[int] = ()
    y_borders: Sequence[int] = ()
    marked: Sequence[int] = ()
    most: float = 0.0

    def as_csv(self) -> str:
        lines = [[f"{self.y_label} \\ {self.x_label}", *map(_short, self.x_values)]]
        for name, values in zip(self.y_values, np.asarray(self.values_RC).tolist()):
            lines.append([_short(name), *(f"{x:.6g}" if x >= 0 else "" for x in values)])
        return csv_text(lines)

    @property
    def height(self) -> int:
        return min(max(PER_ROW * len(self.values_RC), 60), HEIGHT)

    def drawn(self, alt: Any) -> Any:
        """Returns an Altair chart; large matrices show the maximum of each group of cells."""
        values_RC, kept, places = np.asarray(self.values_RC, np.float64), {}, {}
        at = {
            "y": (self.y_values, self.y_borders, ()),
            "x": (self.x_values, self.x_borders, self.marked),
        }
        for axis, (name, (values, *indices)) in enumerate(at.items()):
            count = min(len(values), MOST_CELLS[axis])
            starts = np.linspace(0, len(values), count, endpoint=False).astype(int)
            values_RC = np.maximum.reduceat(values_RC, starts, axis)
            kept[name] = np.asarray(values, np.float64)[starts]
            places[name] = [kept[name][np.searchsorted(starts, of, "right") - 1] for of in indices]
        style: dict[str, Any] = {"labelExpr": "format(datum.value, ',.5~g')", "ticks": False}
        style |= {"labelOverlap": "greedy", "labelAngle": 0, "labelSeparation": 12}
        x, y = (
            channel(name, sort=None, axis=alt.Axis(title=textwrap.wrap(label, LETTERS), **style))
            for channel, name, label in ((alt.X, "x:O", self.x_label), (alt.Y, "y:O", self.y_label))
        )
        grid = dict(zip("xy", map(np.ravel, np.meshgrid(kept["x"], kept["y"]))))
        most = self.most or np.percentile(values_RC, BRIGHTEST) or values_RC.max() or 1.0
        shade = {} if self.most else {"type": "pow", "exponent": FADES}
        scale = alt.Scale(domain=[0, float(most)], range=[0, 1], clamp=True, **shade)
        chart = alt.Chart(inline(alt, **grid, value=values_RC.ravel()))
        chart = chart.encode(x=x, y=y, tooltip=["x:Q", "y:Q", "value:Q"])
        opacity = alt.FillOpacity("value:Q", scale=scale, legend=None)
        layers = [chart.mark_rect(color=SHADE).encode(fillOpacity=opacity)]
        if self.most and len(kept["x"]) <= NUMBERED:
            numbers = chart.transform_filter("datum.value >= 0").mark_text(color=INK)
            layers.append(numbers.encode(text=alt.Text("value:Q", format=".2f")))
        for name, channel in (("y", alt.Y), ("x", alt.X)):
            rule = alt.Chart(inline(alt, **{name: places[name][0]})).mark_rule(
                color=INK, strokeDash=[1, 2]
            )
            layers.append(rule.encode(**{name: channel(f"{name}:O", bandPosition=0)}))
        marks = alt.Chart(inline(alt, x=places["x"][1])).mark_point(
            shape="triangle-down", color=MARK
        )
        return alt.layer(*layers, marks.encode(x="x:O", y=alt.value(-4)))


def _short(number):
    return f"{number:.0f}" if abs(number - round(number)) < 1e-9 else f"{number:.1f}"


def study_maps(run: Any, name: str) -> list[HeatMap]:
    """Returns the maps of a `Run`'s study; notes a damaged file as a problem of the run."""
    study = run.studies[name]
    label = re.sub(r"\W+", "_", f"{name}_{run.name}")
    if not (entries := study.get("maps")):
        return []
    path = run.folder / "studies" / Path(str(study.get("arrays"))).name
    try:
        # NumPy does not close a damaged file that it has opened.
        with open_regular(path) as file, np.load(file, allow_pickle=False) as content:
            return [_map(f"{label}_map_{n}", content, entry) for n, entry in enumerate(entries, 1)]
    except Exception as error:  # NumPy, zlib and Python's tokenizer raise their own kinds
        run.problems.append(f"{path} was left out: its maps cannot be read ({error})")
        return []


def _map(label, content, entry):
    array, values_RC = entry["array"], content[entry["array"]]
    if values_RC.ndim != 2 or not values_RC.size or values_RC.dtype.kind not in "fiu":
        raise ValueError(f"{array} is not a matrix of numbers")
    if not np.isfinite(values_RC).all():
        raise ValueError(f"{array} has numbers that are not finite")
    fields: dict[str, Any] = {name: entry[name] for name in entry.keys() & {*HeatMap._fields}}
    for name, count in zip(("y", "x"), values_RC.shape):
        ends, values = entry[f"{name}_ends"], entry.get(f"{name}_values")
        fields[f"{name}_values"] = values = values or np.linspace(ends[0], ends[1], count)
        if len(values) != count:
            raise ValueError(f"{array} has no value for each row and column")
    name = re.sub(r"\W+", "_", f"{label}_{array:.40}")
    return HeatMap(**fields | {"name": name, "values_RC": values_RC})
