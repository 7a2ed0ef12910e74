"""Tables of the tokens that recurrence improves: by kind of token, and in excerpts."""

import math
import re
from collections.abc import Iterable
from typing import Any

from results_page.gain_tables import described

from brt.evaluation.token_kinds import KINDS
from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, measured, plain_table

STUDY = "compare-cleared"
"""The study that holds excerpts."""
SHOWN = 60
"""Characters shown before the token."""
EACH = 2
"""Excerpts shown of each document."""
BITS = 1
"""Decimals of a token's bits."""


def excerpts_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns the first excerpts of each document of the first run with the study, or None."""
    both = [(group, run) for group in groups for run in group.runs if STUDY in run.studies]
    if not both:
        return None
    group, run = both[0]
    by_title: dict[str, list] = {}
    for one in run.studies[STUDY].get("excerpts", ()):
        if one["direction"] == "better":
            by_title.setdefault(one["title"], []).append(one)
    chosen = [one for excerpts in by_title.values() for one in excerpts[:EACH]]
    titles = ("document", "text before the token, and the token", "bits, state cleared",
              "bits, state kept", "word last seen")  # fmt: skip
    caption = (
        f"{described(group)}: the tokens of each document whose loss the state improves most, "
        "compared with a state that is cleared at every segment."
    )
    return plain_table(name, "Where the state helps most", caption, titles, map(_row, chosen))


def kinds_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one column a run that was compared with a plain one; None without any."""
    titles = ["kind of byte"]
    rows: list[list[Any]] = [[kind] for kind in KINDS] + [["all"]]
    both = [(group, run) for group in groups for run in group.runs]
    for group, run in both:
        for study in run.studies.values():
            numbers = study.get("numbers", {})
            compared = study.get("study") == "compare" and not study.get("against")
            title = described(group)
            if compared and f"{_key(KINDS[0])}_tokens" in numbers and title not in titles:
                titles.append(title)
                adds = [numbers[f"{_key(kind)}_contribution_bits"] for kind in KINDS]
                for row, value in zip(rows, [*adds, sum(adds)]):
                    row.append(Cell(f"{value:.3f}", (value,)))
    caption = (
        "What each kind of byte adds to the improvement over a plain stack with one more layer, "
        "bits per byte; one seed each, validation read by documents. By `--study=compare`."
    )
    if len(titles) == 1:
        return None
    return plain_table(name, "Where the improvement is", caption, titles, rows)


def _key(kind):
    return kind.replace(" ", "_")


def _row(excerpt: dict[str, Any]) -> list[Any]:
    before = _plain(excerpt["before"][-SHOWN:])
    bits = (excerpt[which] / math.log(2) for which in ("other_nats", "nats"))
    seen = excerpt["last_seen"]
    return [
        _plain(excerpt["title"]),
        f"{before}<b>{_plain(excerpt['text'], breaks='↵').strip() or '␣'}</b>",
        *(measured([value], BITS) for value in bits),
        "never" if seen is None else f"{seen:,} back",
    ]


def _plain(text, breaks=" "):
    line = re.sub(r"\s+", " ", text.replace("\n", breaks))
    return re.sub(r"([\\`*_\[\]<>&#~])", r"\\\1", line)
