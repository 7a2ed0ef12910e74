"""Tables of published and measured numbers as Markdown and CSV; page.html has the HTML."""

import itertools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from brt.reporting.drawing.rounding import mean_and_spread, three_digits, with_error_bar
from brt.storage.csv_text import csv_text

NOT_RUN = "not run"
NOT_EVALUATED = "not evaluated"
PUBLISHED = "paper"
"""Title of a column of published numbers."""


class Cell(NamedTuple):
    """A cell.

    values: measured numbers, one a seed; empty for published ones and labels.
    note: footnote, such as the step of an unfinished run.
    """

    text: str
    values: tuple[float, ...] = ()
    note: str = ""


def measured(values: Iterable[float], decimals: int | None = None, note: str = "") -> Cell:
    """Returns a mean over seeds with its error bar; `not run` without values.

    decimals: None for three significant digits.
    """
    values = tuple(float(value) for value in values)
    if not values:
        return Cell(NOT_RUN)
    mean, spread = mean_and_spread(values)
    decimals = three_digits(mean) if decimals is None else decimals
    return Cell(with_error_bar(mean, spread, decimals), values, note)


class Column(NamedTuple):
    group: str
    title: str


class Table(NamedTuple):
    name: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]

    @property
    def has_measurements(self) -> bool:
        return any(cell.values for row in self.rows for cell in row)

    def rows_worth_showing(self) -> "Table":
        """Returns all rows if a published one was run; without published ones, those that were."""
        rows = [row for row in self.rows if any(cell.values for cell in row)]
        at = [i for i, column in enumerate(self.columns) if column.title == PUBLISHED]
        if any(re.search(r"\d", row[i].text) for row in rows for i in at):
            return self
        return self._replace(rows=[] if at else rows)

    def heads(self) -> list[str]:
        return [", ".join(filter(None, column)) for column in self.columns]

    def groups(self) -> list[tuple[str, int]]:
        """Returns the names of adjacent columns of one group, and their number; none without."""
        groups = [(k, len([*of])) for k, of in itertools.groupby(c.group for c in self.columns)]
        return groups if any(name for name, _ in groups) else []

    def notes(self) -> list[str]:
        return list(dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note))

    def marked(self) -> list[list[str]]:
        """Returns the texts of all cells, with the numbers of their notes."""
        notes = self.notes()
        return [
            [f"{c.text} [{notes.index(c.note) + 1}]" if c.note else c.text for c in row]
            for row in self.rows
        ]

    def is_text(self) -> list[bool]:
        """Returns which columns are aligned to the left."""
        empty = ("", "–", NOT_RUN, NOT_EVALUATED)
        return [
            any(
                text not in empty and not re.match(r"[-−+]?[\d.]", text)
                for text in (row[i].text for row in self.rows)
            )
            or i == 0
            for i in range(len(self.columns))
        ]

    def as_markdown(self) -> str:
        lines = [[text.replace("|", "\\|") for text in line] for line in self.marked()]
        lines = [self.heads(), *lines]
        widths = [max(map(len, cells)) for cells in zip(*lines)]
        sides = ["<" if is_text else ">" for is_text in self.is_text()]
        rule = ["-" * (w - (side == ">")) + ":" * (side == ">") for w, side in zip(widths, sides)]
        shown = [
            "| " + " | ".join(f"{t:{s}{w}}" for t, s, w in zip(line, sides, widths)) + " |"
            for line in (lines[0], rule, *lines[1:])
        ]
        notes = [f"[{number}] {note}" for number, note in enumerate(self.notes(), 1)]
        return "\n".join([f"### {self.title}", "", *shown, "", *notes, "", self.caption, ""])

    def as_csv(self) -> str:
        """Returns the text, with measured values in a separate column."""
        has_values = [any(row[i].values for row in self.rows) for i in range(len(self.columns))]

        def line(texts, values):
            pairs = zip(texts, values, has_values)
            return [x for t, v, has in pairs for x in ((t, v) if has else (t,))]

        heads = self.heads()
        lines = [line(heads, [f"{head}, every seed" for head in heads])]
        for row in self.rows:
            values = [" ".join(map(repr, cell.values)) for cell in row]
            lines.append(line([cell.text for cell in row], values))
        return csv_text(lines)


def plain_table(
    name: str, title: str, caption: str, titles: Iterable[str], rows: Iterable[Iterable[Any]]
) -> Table:
    cells = [[x if isinstance(x, Cell) else Cell(str(x)) for x in row] for row in rows]
    return Table(name, title, caption, [Column("", text) for text in titles], cells)
