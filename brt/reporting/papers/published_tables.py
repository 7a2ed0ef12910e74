"""Reader of the papers' tables and figures, which are CSV files in this folder.

    NAME.csv       a published table as printed: labels, numbers, then the attributes of a
                   `PaperPosition` that the runs of a row have (`=system`; a row without any has no
                   runs), and a row's own scalars (`>best`, `–` for none)
    tables.csv     of each table its title and caption, a rule for all rows, the groups of
                   settings.csv behind its numbers, and `rest`: the labels of runs that have no row
                   in any table, "" in a table without such runs
    columns.csv    the columns of numbers, as in `Quantity`; those that NAME.csv lacks are measured
                   only
    contrasts.csv  questions that the difference of two rows answers
    figures.csv    of each figure its axes. x, size, order: attributes of a `Group` or of its
                   position: the x of a point, the size of its mark, the order of the points of a
                   curve. rest: whether runs of systems without a curve get one
    curves.csv     the published points of each curve, and the rule for its measured ones
    settings.csv   gin bindings behind published numbers; later ones of a group replace earlier
                   ones. `%NAME` is an attribute of the position, `%any` is not published. `own` in
                   a source: not published, and chosen in configs/
    sizes.csv      dimensions of the published models
    corpora.csv    corpora by the beginning of a store's name and the family of its vocabulary
    papers.csv     titles, and rules for the runs that may fill a paper's tables

A rule, `where`, is `system=Rec:*|Feedback:*; size=162M`: attributes, and patterns of their texts.
"""

import csv
import functools
import inspect
from collections.abc import Iterable
from fnmatch import fnmatchcase
from importlib import resources
from types import SimpleNamespace
from typing import Any, NamedTuple

from brt.reporting.gin_text import read_gin

TIMES = "step_time", "evaluation_speed"
"""Scalars of `brt.benchmark`, by system; the others are those of runs."""
NOT_PUBLISHED = inspect.Parameter.empty
"""An unpublished value of a binding, which equals every value."""


class Quantity(NamedTuple):
    """A column of printed numbers and of the measured numbers compared with them.

    Without a corpus in its rule or the table's, it has a measured column for each corpus.

    scalar: name in evaluation_<split>.json; one of `TIMES`; `parameters`; `perf/peak_bytes` and the
        like for the greatest value in metrics.jsonl; `studies/STUDY/NUMBER`, or
        `studies/STUDY/at/X` for the y of a study's only series at x.
    decimals: of measured numbers; None for three significant digits.
    split: of the evaluation; None for the one that tables report.
    of: statistic over seeds: `mean`, with its error bar, `spread`, `worst`, `count`.
    """

    head: str
    scalar: str = "bits_per_token"
    decimals: int | None = None
    split: str | None = None
    of: str = "mean"
    divisor: float = 1
    where: dict[str, str] = {}
    is_printed: bool = True


class Paper(NamedTuple):
    """A paper's tables, figures and settings. where: rule for the runs that may fill it."""

    name: str
    title: str
    where: dict[str, str]
    tables: list[SimpleNamespace]
    plots: list[SimpleNamespace]
    settings: dict[str, list[SimpleNamespace]]

    def table(self, name: str) -> SimpleNamespace:
        return next(table for table in self.tables if table.name == name)


def read_rows(name: str) -> list[dict[str, str]]:
    return list(_reader(name))


def _reader(name):
    text = resources.files(__package__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines(), strict=True)


def fits(position: Any, *rules: dict[str, str] | None) -> bool:
    """Returns whether a `PaperPosition` meets all rules; no run meets None."""
    return None not in rules and all(
        any(fnmatchcase(str(getattr(position, name)), one) for one in allowed.split("|"))
        for rule in rules
        for name, allowed in (rule or {}).items()
    )


def published_settings(settings: Iterable[SimpleNamespace], position: Any) -> dict[str, Any]:
    """Returns the bindings behind the number of a `PaperPosition`."""
    bindings: dict[str, Any] = {}
    for part in settings:
        if fits(position, part.where):
            for name, value in part.bind.items():
                if str(value).startswith("%"):
                    value = NOT_PUBLISHED if value == "%any" else getattr(position, value[1:])
                bindings[name] = value
    return bindings


@functools.cache
def read_paper(name: str) -> Paper:
    (paper,) = _of("papers", paper=name)
    settings: dict[str, list[SimpleNamespace]] = {}
    for part in _of("settings", paper=name):
        part.bind = read_gin(part.bindings.replace("; ", "\n"))
        settings.setdefault(part.group, []).append(part)
    tables, plots = (_of(kind, paper=name) for kind in ("tables", "figures"))
    for item in [*tables, *plots]:
        item.settings = [part for group in item.settings.split() for part in settings[group]]
    for table in tables:
        _read_table(table)
    for plot in plots:
        plot.rest = plot.where if plot.rest else None
        plot.y_range = tuple(map(float, plot.y_range.split())) or None
        plot.curves = _of("curves", figure=plot.name)
        for curve in plot.curves:
            curve.where = plot.where | curve.where
            for column in ("x", "y", "sizes"):
                setattr(curve, column, [float(number) for number in getattr(curve, column).split()])
    return Paper(name, paper.title, paper.where, tables, plots, settings)


def _of(file: str, **attributes: str) -> list[SimpleNamespace]:
    rows = [row for row in read_rows(file) if attributes.items() <= row.items()]
    return [SimpleNamespace(**row | {"where": _rule(row.get("where", ""))}) for row in rows]


def _rule(text):
    return dict(part.split("=", 1) for part in text.split("; ") if part)


def _read_table(table):
    reader = _reader(table.name)
    heads = reader.fieldnames or []
    columns = [row for row in read_rows("columns") if table.name in row.pop("tables").split()]
    table.quantities = [_quantity(row, heads) for row in columns]
    numbers = [quantity.head for quantity in table.quantities]
    table.labels = [head for head in heads if head not in numbers and head[0] not in "=>"]
    table.rest, table.contrasts = table.rest.split(), _of("contrasts", table=table.name)
    table.rows = []
    for cells in reader:
        labels = [cells[head] for head in table.labels]
        where = {head[1:]: cell for head, cell in cells.items() if head[0] == "=" and cell}
        table.rows.append(SimpleNamespace(labels=labels, cells=cells, where=where or None))


def _quantity(row, heads):
    types: dict[str, Any] = {"decimals": int, "divisor": float, "where": _rule}
    given: dict[str, Any] = {name: types.get(name, str)(text) for name, text in row.items() if text}
    return Quantity(**{"head": ""} | given, is_printed=row["head"] in heads)


NAMES = tuple(row["paper"] for row in read_rows("papers"))
PAPERS = tuple(map(read_paper, NAMES))
