"""Heat maps of matrices."""

import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.storage.csv_text import csv_text
from brt.storage.regular_files import open_regular

SHADE, MARK = COLOURS[0], COLOURS[7]
BRIGHTEST = 99.5
"""Percentile of the numbers that gets the full colour."""
FADES = 0.5
"""Exponent from a number to its shade, so that small numbers differ from zero."""
UNREADABLE = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, SyntaxError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
NUMBERED = 16
TALLEST, PER_ROW = 5.0, 0.06
"""Height of a map, and of a row, in inches."""


class HeatMap(NamedTuple):
    """A figure of a matrix.

    values_RC: (rows, columns), the first row at the top; a negative number is an empty cell.
    x_ends, y_ends: values of the first and the last column, and row.
    x_borders, y_borders: columns and rows before which a line is drawn.
    marked: columns that are marked.
    x_values, y_values: values of all columns, and rows; empty if they are evenly spaced.
    most: the number with the full colour, for linear shades with numbers in the cells; 0 for
        shades by percentile.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    values_RC: np.ndarray
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]
    x_borders: Sequence[int] = ()
    y_borders: Sequence[int] = ()
    marked: Sequence[int] = ()
    x_values: Sequence[float] = ()
    y_values: Sequence[float] = ()
    most: float = 0.0

    @property
    def has_measurements(self) -> bool:
        return True

    def as_csv(self) -> str:
        x_values, y_values = self._positions()
        lines = [[f"{self.y_label} \\ {self.x_label}", *map(_short, x_values)]]
        for name, values in zip(y_values, np.asarray(self.values_RC).tolist()):
            lines.append([_short(name), *(f"{x:.6g}" if x >= 0 else "" for x in values)])
        return csv_text(lines)

    def draw(self, foreground: str) -> Any:
        rows, columns = self.values_RC.shape
        figure = new_figure(7.2, min(max(1.2 + PER_ROW * rows, 2.6), TALLEST))
        axes = figure.add_subplot()
        axes.imshow(self._shades(), aspect="auto", interpolation="none", origin="upper")
        for border in self.x_borders:
            axes.axvline(border - 0.5, color=foreground, linewidth=0.8, linestyle=":")
        for border in self.y_borders:
            axes.axhline(border - 0.5, color=foreground, linewidth=0.5, alpha=0.5, linestyle=":")
        if self.marked:
            high = [-0.5 - 0.03 * rows] * len(self.marked)
            axes.scatter(self.marked, high, 10, color=MARK, marker="v", clip_on=False)
        for axis, values in zip((axes.xaxis, axes.yaxis), self._positions()):
            most = len(values) if self.most else 9
            at = np.linspace(0, len(values) - 1, min(len(values), most))
            at = np.unique(np.round(at).astype(int))
            axis.set_ticks(at, [_short(values[index]) for index in at])
        if self.most and columns <= NUMBERED:
            for (row, column), value in np.ndenumerate(self.values_RC):
                if value >= 0:
                    axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        return figure

    def _positions(self):
        rows, columns = self.values_RC.shape
        x_values = self.x_values or np.linspace(*self.x_ends, columns)
        return x_values, self.y_values or np.linspace(*self.y_ends, rows)

    def _shades(self):
        values_RC = np.asarray(self.values_RC, np.float64)
        most = self.most or np.percentile(values_RC, BRIGHTEST) or values_RC.max() or 1.0
        shades = np.empty((*values_RC.shape, 4))
        shades[..., :3] = [int(SHADE[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        shades[..., 3] = np.clip(values_RC / most, 0, 1) ** (1 if self.most else FADES)
        return shades


ENTRIES = {*HeatMap._fields} - {"name", "values_RC"}


def _short(number):
    return f"{number:.0f}" if abs(number - round(number)) < 1e-9 else f"{number:.1f}"


def study_maps(run: Any, name: str) -> list[HeatMap]:
    """Returns the maps of a study of a `brt.reporting.runs.Run`, from the arrays next to its file.

    A torn or missing file becomes a problem of the run.
    """
    study = run.studies[name]
    label = re.sub(r"\W+", "_", f"{name}_{run.name}")
    if "gains" in study:
        return _gains(label, study)
    if not (entries := study.get("maps")):
        return []
    path = run.folder / "studies" / str(study.get("arrays"))
    try:
        # NumPy does not close a damaged file that it has opened.
        with open_regular(path) as file, np.load(file, allow_pickle=False) as content:
            arrays = {entry["array"]: content[entry["array"]] for entry in entries}
        for entry in entries:
            _check(arrays[entry["array"]], entry)
    except UNREADABLE as error:
        run.problems.append(f"{path} was left out: its maps cannot be read ({error})")
        return []
    maps = []
    for number, entry in enumerate(entries, 1):
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in entry.items()
            if key in ENTRIES
        }
        values_RC = arrays[entry["array"]]
        part = re.sub(r"\W+", "_", f"{entry['array']:.40}")
        maps.append(HeatMap(name=f"{label}_map_{number}_{part}", values_RC=values_RC, **fields))
    return maps


def _check(array, entry):
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise ValueError(f"{entry['array']} is not a matrix of numbers")
    if not np.isfinite(array).all():
        raise ValueError(f"{entry['array']} has numbers that are not finite")
    sides = [len(entry.get(name, ())) for name in ("y_values", "x_values")]
    if any(n and n != side for n, side in zip(sides, array.shape)):
        raise ValueError(f"{entry['array']} has no value for each row and column")


def _gains(label, study):
    contexts = study["contexts"]
    return [
        HeatMap(
            f"{label}_gains_{number}",
            f"Gains of longer contexts: {os.path.basename(model.rstrip('/'))}",
            "Perplexity that the longer context takes off, beside the group's best with the "
            "short one, r = 0.1: dark far to the right is a long memory (Figure 3).",
            "longer context, tokens",
            "short context, tokens",
            np.array([[max(gain or 0.0, 0.0) for gain in line] for line in gains_CC]),
            (contexts[0], contexts[-1]),
            (contexts[0], contexts[-1]),
        )
        for number, (model, gains_CC) in enumerate(study["gains"].items(), 1)
    ]
