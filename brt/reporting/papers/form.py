"""The form a paper's tables and figures take here: data, with a rule that tells which runs belong.

A rule is a dict from attributes of a `PaperPosition` to the value asked for, or to a set of values.
A table's, a row's and a quantity's rule together say whose numbers a cell holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gin

TIMES = "step_time", "evaluation_speed"
"""Scalars of `brt.benchmark`, by system; the others are those of runs."""
NOT_PUBLISHED = gin.REQUIRED
"""In the settings of a published number: the value of a binding that has none and any run's own."""


class Row(NamedTuple):
    """A row of a published table.

    Attributes:
        labels: one for each of the table's label columns.
        printed: what the paper prints, as printed, so that 3.60 stays 3.60; None for nothing.
        where: rule; None for systems that are not brt's to run.
        scalars: by the heading of a column, what this row shows in place of the column's scalar;
            None for nothing.
    """

    labels: tuple[str, ...]
    printed: tuple[str | None, ...]
    where: dict | None
    scalars: dict[str, str | None] = {}


class Quantity(NamedTuple):
    """A column of printed numbers, with those measured beside it.

    Without a corpus in its rule, or the table's, it has a measured column for each corpus found.

    Attributes:
        head: heading.
        scalar: in evaluation_<split>.json; `step_time` or `evaluation_speed` of `brt.benchmark`;
            `parameters`; `perf/peak_bytes` and the
            like for the greatest value in metrics.jsonl; `studies/STUDY/NUMBER` for a number of a
            study, `studies/STUDY/at/X` for the y of its only series at x.
        decimals: of measured numbers; None for three significant digits.
        where: rule.
        is_printed: False for what the paper does not have, such as the reader's own corpora.
        split: of the evaluation; None for the one that tables report.
        of: what is shown of several seeds: `mean`, with its error bar, `spread`, `worst`, `count`.
        divisor: the scalar is divided by it: 1e6 for millions.
    """

    head: str
    scalar: str = "bits_per_token"
    decimals: int | None = None
    where: dict = {}
    is_printed: bool = True
    split: str | None = None
    of: str = "mean"
    divisor: float = 1


class Contrast(NamedTuple):
    """A question that the difference of two rows answers, named by their first labels."""

    question: str
    row: str
    other: str


@dataclass(frozen=True)
class PaperTable:
    """A published table.

    Attributes:
        name: for files, `table_1`.
        caption: ends in its position in the paper, `Source: Table 1`; the paper's title follows.
        labels: headings of the label columns.
        where: rule for all of its rows.
        rest: attributes of a `PaperPosition` that label, after its name, a measured run that no
            table has a row for; None in a table that does not show such runs.
        contrasts: shown below it as a table of their own.
        of_contrasts: a sentence for the caption of that table.
        settings: from the position of a run that fills a row to the bindings behind the printed
            number, `NOT_PUBLISHED` where any value will do; `differences` says what is compared.

    Raises:
        ValueError: runs stand beside printed numbers, and no `settings` to compare them by.
    """

    name: str
    title: str
    caption: str
    labels: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    rows: tuple[Row, ...]
    where: dict = field(default_factory=dict)
    rest: tuple[str, ...] | None = None
    contrasts: tuple[Contrast, ...] = ()
    of_contrasts: str = ""
    settings: Callable[[Any], dict] | None = None

    def __post_init__(self):
        if self.settings is None and any(self.compares(row) for row in self.rows):
            raise ValueError(
                f"PaperTable {self.name} shows runs beside printed numbers: give it `settings`, so "
                "that a cell can name what differs."
            )

    def compares(self, row: Row) -> bool:
        """Returns whether a row shows a measured number of a run beside a printed one."""
        scalars = (row.scalars.get(q.head, q.scalar) for q in self.quantities if q.is_printed)
        return row.where is not None and any(scalar and scalar not in TIMES for scalar in scalars)


class Curve(NamedTuple):
    """A published curve, and the rule for runs that give it measured points.

    Attributes:
        sizes: of each published point's mark: what the figure shows by it.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[str, ...]
    where: dict
    scalar: str = "bits_per_token"
    on_second_axis: bool = False
    sizes: tuple[float, ...] | None = None


class PaperPlot(NamedTuple):
    """A published figure.

    Attributes:
        x: attribute of a `Group`, or of its `PaperPosition`, where measured points stand:
            `vocabulary_size`, or `parameters` in millions.
        second_label: of the axis on the right.
        log_x: whether x is logarithmic.
        source: where the published numbers come from: the paper, or its released logs.
        rest: rule for runs that no curve has; they get curves by their system. None for none.
        size: attribute of a `PaperPosition` that the size of a measured mark shows, or empty.
        y_range: of the axis, or None.
        order: as x: what the points of a measured curve are joined by, where that is not x.
        split: of the evaluations that give measured points; None for the one that tables report.
        frontier: whether points that no other is below in both x and y are joined: of the published
            ones, and of the measured ones of each corpus.
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


class Paper(NamedTuple):
    """A paper's tables and figures, in its own order.

    Attributes:
        name: for links within the page.
        about: rule for the runs whose report shows it, measured or not.
        where: rule for the runs that may fill it.
    """

    name: str
    title: str
    tables: tuple[PaperTable, ...]
    plots: tuple[PaperPlot, ...]
    about: dict
    where: dict = {}


def number(printed: str) -> float:
    """The number of a printed cell, without its error bar: `3.62 ± 0.01` is 3.62."""
    return float(printed.split("±")[0].replace(",", ""))
