"""Aligned text tables."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A column: the value at `key`, divided by `unit`, in a format such as "{:.3f}"."""

    key: str
    title: str
    form: str
    unit: float = 1


def aligned(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[str]:
    """Returns a line of titles and a line per row, which starts with its `name`."""
    name_width = max(len(row["name"]) for row in rows)
    widths = [max(10, len(column.title)) for column in columns]
    titles = (f"{column.title:>{width}}" for column, width in zip(columns, widths))
    lines = [" ".join([" " * name_width, *titles])]
    for row in rows:
        cells = (
            "" if row.get(key) is None else form.format(row[key] / unit)
            for key, _, form, unit in columns
        )
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths))
        lines.append(" ".join([f"{row['name']:<{name_width}}", *padded]))
    return lines
