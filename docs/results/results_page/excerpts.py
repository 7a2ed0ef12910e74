"""Tables of the tokens that recurrence improves: by kind of token, and in excerpts."""

import math
import re
from collections.abc import Iterable
from typing import Any

from brt.evaluation.token_kinds import KINDS
from brt.reporting.collect import Group
from brt.reporting.drawing.table import Table, measured, plain_table

STUDY = "compare-cleared"
"""The study that holds them."""
SHOWN = 60
"""Characters shown before the token."""
BITS = 2
"""Decimals of a token's bits."""


def excerpts_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row an excerpt of the first run with the study; None without one."""
    runs = (run for group in groups for run in group.runs if STUDY in run.studies)
    run = next(runs, None)
    if run is None:
        return None
    excerpts = run.studies[STUDY].get("excerpts", ())
    found = [one for one in excerpts if one["direction"] == "better"]
    titles = ("document", "token", "what stands before it, and the token", "bits, state cleared",
              "bits, state kept", "seen before")  # fmt: skip
    caption = (
        f"{run.name}: the tokens of each document that the run predicts better with its state kept "
        "than with it cleared at every segment, by the most bits. Seen before: how many tokens "
        "back the token's word stood last, and whether that is within one window."
    )
    return plain_table(name, "Where the state helps most", caption, titles, map(_row, found))


def kinds_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a kind of token, for each run that was compared; None without any."""
    rows = []
    for run in (run for group in groups for run in group.runs):
        for study in run.studies.values():
            numbers = study.get("numbers", {})
            if study.get("study") == "compare" and f"{_key(KINDS[0])}_tokens" in numbers:
                rows += _kind_rows(run.name, study)
    titles = ["run", "compared with", "tokens", "share of all"]
    titles += ["bits, the other", "bits, the run", "adds to the difference, bits per token"]
    caption = (
        "Losses by kind of token. What the kinds add is together the difference of the two; it is "
        "positive where the run is better."
    )
    return plain_table(name, "Where the difference is", caption, titles, rows) if rows else None


def _kind_rows(run, study):
    numbers = study["numbers"]
    other = study.get("against") or str(study.get("other")).rstrip("/").split("/")[-1]
    rows = []
    for kind in KINDS:
        tokens, own, others, adds = (
            numbers[f"{_key(kind)}_{what}"]
            for what in ("tokens", "bits", "other_bits", "contribution_bits")
        )
        share = measured([100 * tokens / numbers["tokens"]], 1)
        losses = (measured([value], 4) for value in (others, own, adds))
        who = run, f"state {other}" if study.get("against") else other
        rows.append([*who, kind, share._replace(text=f"{share.text} %"), *losses])
    return rows


def _key(kind):
    return kind.replace(" ", "_")


def _row(excerpt: dict[str, Any]) -> list[Any]:
    before = _plain(excerpt["before"][-SHOWN:])
    bits = (excerpt[which] / math.log(2) for which in ("other_nats", "nats"))
    return [
        _plain(excerpt["title"]),
        f"{excerpt['token']:,}",
        f"{before}<b>{_plain(excerpt['text'], breaks='↵').strip() or '␣'}</b>",
        *(measured([value], BITS) for value in bits),
        _last_seen(excerpt),
    ]


def _last_seen(excerpt):
    if excerpt["last_seen"] is None:
        return "never"
    where = "within" if excerpt["where"] == "window" else "beyond"
    return f"{excerpt['last_seen']:,} back, {where} the window"


def _plain(text, breaks=" "):
    line = re.sub(r"\s+", " ", text.replace("\n", breaks))
    return re.sub(r"([\\`*_\[\]<>&#~])", r"\\\1", line)
