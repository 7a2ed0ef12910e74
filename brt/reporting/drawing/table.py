"""Tables of published and measured numbers as Markdown, CSV, JSON and HTML."""

import math
import re
from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple

from brt.reporting.drawing.rounding import rounded_up, three_digits, with_error_bar
from brt.storage.csv_text import csv_text

NOT_RUN = "not run"
NOT_EVALUATED = "not evaluated"
LONG = 16
"""Characters of a text above which it may be broken anywhere."""
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


def published(text: str | None) -> Cell:
    return Cell(text or "–")


def measured(
    values: Iterable[float],
    decimals: int | None = None,
    note: str = "",
    rounds_up: bool = False,
) -> Cell:
    """Returns the cell of a mean over seeds with its error bar, `not run` without values.

    decimals: None for three significant digits. rounds_up: for a spread of a single value.
    """
    values = tuple(float(value) for value in values)
    if not values:
        return Cell(NOT_RUN)
    if decimals is None:
        decimals = three_digits(sum(values) / len(values))
    text = rounded_up(values[0], decimals) if rounds_up else with_error_bar(values, decimals)
    return Cell(text, values, note)


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

    def notes(self) -> list[str]:
        return list(dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note))

    def _marked(self):
        notes = self.notes()
        return [
            [f"{c.text} [{notes.index(c.note) + 1}]" if c.note else c.text for c in row]
            for row in self.rows
        ]

    def _texts(self):
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
        lines = [[text.replace("|", "\\|") for text in line] for line in self._marked()]
        lines = [self.heads(), *lines]
        widths = [max(map(len, cells)) for cells in zip(*lines)]
        sides = ["<" if is_text else ">" for is_text in self._texts()]
        rule = ["-" * (w - (side == ">")) + ":" * (side == ">") for w, side in zip(widths, sides)]
        shown = [
            "| " + " | ".join(f"{t:{s}{w}}" for t, s, w in zip(line, sides, widths)) + " |"
            for line in (lines[0], rule, *lines[1:])
        ]
        notes = [f"[{number}] {note}" for number, note in enumerate(self.notes(), 1)]
        return "\n".join([f"### {self.title}", "", *shown, "", *notes, "", self.caption, ""])

    def as_csv(self) -> str:
        """Returns the shown text, with the values of measured cells in a separate column."""
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

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "columns": self.heads(),
            "rows": [[_cell_json(cell) for cell in row] for row in self.rows],
        }

    def as_html(self) -> str:
        kinds, notes = self._column_classes(), self.notes()
        titles = "".join(
            f'<th scope="col"{kind}>{escape(column.title)}</th>'
            for column, kind in zip(self.columns, kinds)
        )
        body = []
        first = ' class="long"' if "long" in kinds[0] else ""
        bars = [max(map(_bar, cells), key=len) for cells in zip(*self.rows)]
        for row in self.rows:
            cells = [f'<th scope="row"{first}>{escape(row[0].text)}</th>']
            for cell, kind, bar in list(zip(row, kinds, bars))[1:]:
                missing = cell.text in (NOT_RUN, NOT_EVALUATED)
                state = "measured" if cell.values else "missing" if missing else ""
                values = " ".join(map(repr, cell.values))
                data = f' data-values="{values}"' if cell.values else ""
                # Numbers without an error bar leave room for one, so that points are aligned.
                data += f' data-pad="{escape(bar)}"' if bar and not _bar(cell) else ""
                mark = f"<sup>{notes.index(cell.note) + 1}</sup>" if cell.note else ""
                kind = f'{kind[:-1]} {state}"' if kind else f' class="{state}"'
                cells.append(f"<td{kind}{data}>{escape(cell.text)}{mark}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        foot = "".join(f"<li>{escape(note)}</li>" for note in notes)
        return (
            f'<div class="scroll"><table id="{escape(self.name)}"><thead>{self._groups(kinds)}'
            f"<tr>{titles}</tr></thead>\n<tbody>\n"
            + "\n".join(body)
            + "\n</tbody></table></div>"
            + (f'\n<ol class="notes">{foot}</ol>' if foot else "")
        )

    def _groups(self, kinds):
        spans: list[list] = []
        for column, kind in zip(self.columns, kinds):
            if spans and spans[-1][0] == column.group != "":
                spans[-1][1] += 1
            else:
                spans.append([column.group, 1, kind if column.group else ""])
        cells = (
            f'<th colspan="{span}" scope="colgroup"{kind}>{escape(group)}</th>'
            for group, span, kind in spans
        )
        return f"<tr>{''.join(cells)}</tr>\n" if any(group for group, *_ in spans) else ""

    def _column_classes(self):
        classes, last = [], ""
        for i, (column, is_text) in enumerate(zip(self.columns, self._texts())):
            is_long = is_text and any(len(row[i].text) > LONG for row in self.rows)
            names = ["words"] * is_text + ["long"] * is_long + ["first"] * (column.group != last)
            last = column.group
            classes.append(f' class="{" ".join(names)}"' if names else "")
        return classes


def plain_table(
    name: str, title: str, caption: str, titles: Iterable[str], rows: Iterable[Iterable[Any]]
) -> Table:
    """Returns a table without groups of columns; values other than `Cell` are shown as text."""
    cells = [[x if isinstance(x, Cell) else Cell(str(x)) for x in row] for row in rows]
    return Table(name, title, caption, [Column("", text) for text in titles], cells)


def _bar(cell):
    return cell.text[cell.text.find(" ±") :] if " ±" in cell.text else ""


def _cell_json(cell):
    entry = {"text": cell.text}
    if cell.values:
        # JSON has no NaN.
        entry["values"] = [value if math.isfinite(value) else None for value in cell.values]
    if cell.note:
        entry["note"] = cell.note
    return entry
