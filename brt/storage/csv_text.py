"""CSV text that spreadsheets do not execute."""

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a formula, half-width and full-width."""
NUMBERS = re.compile(r"[-+\d.,e ±%]*|-?inf", re.I)


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Returns lines as CSV, with `'` before texts that are formulas."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_inert(value) for value in line] for line in lines)
    return file.getvalue()


def _inert(value):
    if not isinstance(value, str) or NUMBERS.fullmatch(value):
        return value
    value = value.replace("\r", "\n")  # csv does not quote a carriage return, which ends a line
    return f"'{value}" if value.lstrip().startswith(FORMULA) else value
