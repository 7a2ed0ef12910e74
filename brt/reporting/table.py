"""A table of published and measured numbers, and its forms: text, Markdown, CSV, JSON, HTML."""

import csv
import html
import io
from typing import NamedTuple

from brt.reporting.rounding import three_digits, with_error_bar

NOT_RUN = "not run"
NOT_EVALUATED = "not evaluated"


class Cell(NamedTuple):
    """What a cell shows, and the numbers behind it.

    Attributes:
        text: as shown.
        values: the measured numbers, one a seed; empty for published ones and labels.
        note: what a reader has to know, such as the step of an unfinished run.
    """

    text: str
    values: tuple[float, ...] = ()
    note: str = ""


def published(text: str | None) -> Cell:
    """A published number; a dash where the paper has one."""
    return Cell(text or "–")


def measured(values, decimals: int | None = None, note: str = "") -> Cell:
    """A mean over seeds with its error bar, `not run` without any value.

    Args:
        values: one a seed.
        decimals: None for three significant digits.
    """
    values = tuple(float(value) for value in values)
    if not values:
        return Cell(NOT_RUN)
    if decimals is None:
        decimals = three_digits(sum(values) / len(values))
    return Cell(with_error_bar(values, decimals), values, note)


class Column(NamedTuple):
    """A column; neighbours of the same group share a heading above their own."""

    group: str
    title: str


class Table(NamedTuple):
    """A table as the paper has it.

    Attributes:
        name: for files, `table_1`.
        title: what it shows.
        caption: what to look at, what is compared with what, and the source.
        columns: (columns,)
        rows: each with (columns,) cells.
    """

    name: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]

    @property
    def has_measurements(self) -> bool:
        return any(cell.values for row in self.rows for cell in row)

    def heads(self) -> list[str]:
        """One heading a column: `PG19 tokens, measured`."""
        return [", ".join(filter(None, column)) for column in self.columns]

    def notes(self) -> list[str]:
        """The notes of all cells, each once, in order."""
        return list(dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note))

    def _marked(self):
        """Cells as text, with a mark for each note: `2.07 [1]`."""
        notes = self.notes()
        return [
            [f"{c.text} [{notes.index(c.note) + 1}]" if c.note else c.text for c in row]
            for row in self.rows
        ]

    def _footnotes(self):
        return [f"[{number}] {note}" for number, note in enumerate(self.notes(), 1)]

    def as_text(self) -> str:
        """For a terminal: aligned, the headings in two lines."""
        lines = [[c.group for c in self.columns], [c.title for c in self.columns], *self._marked()]
        widths = [max(map(len, cells)) for cells in zip(*lines)]
        shown = [
            "  ".join(f"{text:<{w}}" if i == 0 else f"{text:>{w}}" for i, (text, w) in pairs)
            for pairs in (enumerate(zip(line, widths)) for line in lines)
        ]
        return "\n".join([self.title, *(line.rstrip() for line in shown), *self._footnotes()])

    def as_markdown(self) -> str:
        def line(cells):
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = "|---|" + "---:|" * (len(self.columns) - 1)
        body = [line(row) for row in self._marked()]
        parts = [f"### {self.title}", "", line(self.heads()), rule, *body, ""]
        return "\n".join([*parts, *self._footnotes(), "", self.caption, ""])

    def as_csv(self) -> str:
        """The shown text; of measured cells the values too, in a column of their own."""
        has_values = [any(row[i].values for row in self.rows) for i in range(len(self.columns))]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")

        def line(texts, values):
            pairs = zip(texts, values, has_values)
            return [x for t, v, has in pairs for x in ((t, v) if has else (t,))]

        heads = self.heads()
        writer.writerow(line(heads, [f"{head}, every seed" for head in heads]))
        for row in self.rows:
            values = [" ".join(map(repr, cell.values)) for cell in row]
            writer.writerow(line([cell.text for cell in row], values))
        return file.getvalue()

    def as_json(self) -> dict:
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "columns": self.heads(),
            "rows": [[_cell_json(cell) for cell in row] for row in self.rows],
        }

    def as_html(self) -> str:
        """A `<table>`; measured cells carry their numbers in `data-values`."""
        groups, spans = [], []
        for column in self.columns:
            if groups and groups[-1] == column.group and column.group:
                spans[-1] += 1
            else:
                groups.append(column.group)
                spans.append(1)
        notes = self.notes()
        head = "".join(
            f'<th colspan="{span}" scope="colgroup">{html.escape(group)}</th>'
            for group, span in zip(groups, spans)
        )
        titles = "".join(f'<th scope="col">{html.escape(c.title)}</th>' for c in self.columns)
        body = []
        for row in self.rows:
            cells = [f'<th scope="row">{html.escape(row[0].text)}</th>']
            for cell in row[1:]:
                kind = "measured" if cell.values else "missing" if _missing(cell) else "given"
                values = " ".join(map(repr, cell.values))
                data = f' data-values="{values}"' if cell.values else ""
                mark = f"<sup>{notes.index(cell.note) + 1}</sup>" if cell.note else ""
                cells.append(f'<td class="{kind}"{data}>{html.escape(cell.text)}{mark}</td>')
            body.append(f"<tr>{''.join(cells)}</tr>")
        foot = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        return (
            f'<div class="scroll"><table id="{self.name}"><thead><tr>{head}</tr>'
            f"<tr>{titles}</tr></thead>\n<tbody>\n"
            + "\n".join(body)
            + "\n</tbody></table></div>"
            + (f'\n<ol class="notes">{foot}</ol>' if foot else "")
        )


def _missing(cell):
    return cell.text in (NOT_RUN, NOT_EVALUATED)


def _cell_json(cell):
    entry = {"text": cell.text}
    if cell.values:
        entry["values"] = list(cell.values)
    if cell.note:
        entry["note"] = cell.note
    return entry
