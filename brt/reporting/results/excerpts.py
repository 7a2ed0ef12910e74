"""Excerpts of documents where the state helps most, as a table for the page of results."""

import math
import re
from collections.abc import Iterable
from typing import Any

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Column, Table, measured

STUDY = "compare-cleared"
"""The study that holds them: one run with its state kept and with it cleared."""
SHOWN = 60
"""Characters before the token that are shown, the last of the excerpt's."""
BITS = 2
"""Decimals of a token's bits."""


def excerpts_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row an excerpt of the first run with the study; None without such a run.

    Args:
        name: of the table.
        groups: of a ladder's runs.
    """
    runs = (run for group in groups for run in group.runs if STUDY in run.studies)
    run = next(runs, None)
    if run is None:
        return None
    found = [one for one in run.studies[STUDY]["excerpts"] if one["direction"] == "better"]
    titles = "document", "token", "what stands before it, and the token", "bits, state cleared"
    columns = [Column("", title) for title in (*titles, "bits, state kept", "seen before")]
    caption = (
        f"{run.name}: the tokens of each document that the run predicts better with its state kept "
        "than with it cleared at every segment, by the most bits. Seen before: how many tokens "
        "back the token's word stood last, and whether attention reaches that far."
    )
    return Table(name, "Where the state helps most", caption, columns, [_row(one) for one in found])


def _row(excerpt: dict[str, Any]) -> list[Cell]:
    before = _plain(excerpt["before"])[-SHOWN:]
    bits = (excerpt[which] / math.log(2) for which in ("other_nats", "nats"))
    return [
        Cell(_plain(excerpt["title"])),
        Cell(f"{excerpt['token']:,}"),
        Cell(f"{before}**{_plain(excerpt['text']).strip() or '␣'}**"),
        *(measured([value], BITS) for value in bits),
        Cell(_last_seen(excerpt)),
    ]


def _last_seen(excerpt):
    if excerpt["last_seen"] is None:
        return "never"
    where = "in reach" if excerpt["where"] == "window" else "out of reach"
    return f"{excerpt['last_seen']:,} back, {where}"


def _plain(text):
    """Returns text in one line in which Markdown and HTML mark nothing."""
    line = re.sub(r"\s+", " ", text)
    return re.sub(r"([\\`*_\[\]<>&#~])", r"\\\1", line)
