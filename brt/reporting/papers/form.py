"""The types of a paper's tables and figures.

A rule is a dict from attributes of a `PaperPosition` to a value, to a set of values, or to a
pattern of names such as `Rec:*`. The rules of a table, a row and a column together select the runs
of a cell.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import gin

TIMES = "step_time", "evaluation_speed"
"""Scalars of `brt.benchmark`, by system; the others are those of runs."""
NOT_PUBLISHED = gin.REQUIRED
"""An unpublished value of a binding, which equals every value."""


def fits(position: Any, *rules: dict | None) -> bool:
    """Returns whether a `PaperPosition` meets all rules; None is a rule that no run meets."""
    return None not in rules and all(
        _allows(value, getattr(position, name))
        for rule in rules
        for name, value in (rule or {}).items()
    )


def _allows(allowed, value):
    if isinstance(allowed, set):
        return any(_allows(one, value) for one in allowed)
    if isinstance(allowed, str) and "*" in allowed:
        return fnmatchcase(str(value), allowed)
    return value == allowed


class Row(NamedTuple):
    """A row of a published table.

    printed: numbers as printed, one for each printed column; None for a dash.
    where: rule; None for systems that brt does not run.
    scalars: those that replace scalars of columns, by heading; None for an empty cell.
    """

    labels: tuple[str, ...]
    printed: tuple[str | None, ...]
    where: dict | None
    scalars: dict[str, str | None] = {}


class Quantity(NamedTuple):
    """A column of printed numbers and of the measured numbers compared with them.

    Without a corpus in its rule or the table's, it has a measured column for each corpus.

    scalar: name in evaluation_<split>.json; one of `TIMES`; `parameters`; `perf/peak_bytes` and the
        like for the greatest value in metrics.jsonl; `studies/STUDY/NUMBER`, or
        `studies/STUDY/at/X` for the y of a study's only series at x.
    decimals: of measured numbers; None for three significant digits.
    is_printed: False for a column that the paper does not have.
    split: of the evaluation; None for the one that tables report.
    of: statistic over seeds: `mean`, with its error bar, `spread`, `worst`, `count`.
    """

    head: str
    scalar: str = "bits_per_token"
    decimals: int | None = None
    where: dict = {}
    is_printed: bool = True
    split: str | None = None
    of: str = "mean"
    divisor: float = 1


class Settings(NamedTuple):
    """Bindings behind published numbers.

    when: rule for the position of the run that is compared.
    bind: bindings to values; `%NAME` is an attribute of the position, `%any` is not published.
    source: section, table or file of the released code.
    last: whether no later settings apply.
    """

    when: dict
    bind: dict[str, Any]
    source: str
    last: bool = False


def published_settings(settings: Iterable[Settings], position: Any) -> dict[str, Any]:
    """Returns the bindings behind a `PaperPosition`'s number; later ones replace earlier ones."""
    bindings: dict[str, Any] = {}
    for part in settings:
        if fits(position, part.when):
            for name, value in part.bind.items():
                if str(value).startswith("%"):
                    value = NOT_PUBLISHED if value == "%any" else getattr(position, value[1:])
                bindings[name] = value
            if part.last:
                break
    return bindings


class PaperTable(NamedTuple):
    """A published table.

    caption: ends in its position in the paper, `Source: Table 1`; the paper's title follows.
    labels: headings of the label columns.
    where: rule for all rows.
    rest: attributes of a `PaperPosition` that label, after its name, a run without a row in any
        table; None in a table that does not show such runs.
    contrasts: of a second table, of differences: a question, and the first labels of two rows.
    of_contrasts: a sentence for its caption.
    """

    name: str
    title: str
    caption: str
    labels: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    rows: tuple[Row, ...]
    where: dict = {}
    rest: tuple[str, ...] | None = None
    contrasts: tuple[tuple[str, str, str], ...] = ()
    of_contrasts: str = ""
    settings: tuple[Settings, ...] = ()


class Curve(NamedTuple):
    """A published curve, and the rule for the runs of its measured points."""

    name: str
    x: tuple[float, ...]
    y: tuple[str, ...]
    where: dict
    scalar: str = "bits_per_token"
    on_second_axis: bool = False
    sizes: tuple[float, ...] | None = None


class PaperPlot(NamedTuple):
    """A published figure.

    x, size, order: attributes of a `Group` or of its `PaperPosition`: the x of a point, the size of
        its mark or "", and the order of the points of a curve ("" for x).
    second_label: of the axis on the right.
    source: of the published numbers: the paper, or its released logs.
    rest: rule for runs without a curve, which get curves by their system; None for none.
    split: of the evaluations of measured points; None for the one that tables report.
    frontier: whether Pareto frontiers in x and y are drawn, of the published points and of the
        measured ones of each corpus.
    """

    name: str
    title: str
    caption: str
    x: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    second_label: str = ""
    log_x: bool = True
    source: str = "paper"
    rest: dict | None = None
    size: str = ""
    y_range: tuple[float, float] | None = None
    order: str = ""
    split: str | None = None
    frontier: bool = False
    settings: tuple[Settings, ...] = ()


class Size(NamedTuple):
    """Dimensions of a published model, by the number of parameters that its paper prints."""

    name: str
    layers: int
    width: int
    num_heads: int
    head_size: int
    feed_forward_size: int


class Paper(NamedTuple):
    """A paper's tables and figures, in its own order, and groups of settings by name.

    where: rule for the runs that may fill it.
    """

    name: str
    title: str
    tables: tuple[PaperTable, ...]
    plots: tuple[PaperPlot, ...]
    where: dict = {}
    sizes: tuple[Size, ...] = ()
    settings: dict[str, tuple[Settings, ...]] = {}

    def table(self, name: str) -> PaperTable:
        return next(table for table in self.tables if table.name == name)


def number(printed: str) -> float:
    """Returns the number of a printed cell without its error bar; `32k` is 32,000."""
    text = printed.split("±")[0].replace(",", "").strip()
    unit = {"k": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:])
    return float(text[:-1]) * unit if unit else float(text)
