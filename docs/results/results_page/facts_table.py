"""Facts in real text (BABILong): answers of every memory by the text between fact and question."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from results_page.memory_names import memory_name
from results_page.recall_table import Recall, by_run, recalls

from brt.reporting.collect import Group
from brt.reporting.drawing.heat_map import HeatMap, study_maps
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Table, plain_table

BY_LENGTH, BY_DISTANCE = "state kept, by length", "state kept, by distance"
TEXT = "text_bits_per_token"
BY_DEPTH = "Answers by length and depth, state kept"
"""Title of a map of the study `answers`."""


def facts_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a memory: right answers by the length of the document, and loss on text."""
    found = _with_text(groups)
    lengths = sorted({x for each in found for curve in _curves(each, BY_LENGTH) for x in curve})
    rows: list[Sequence[Any]] = []
    for recall in found:
        curves = _curves(recall, BY_LENGTH)
        columns = [recall.in_training, *([c[x] for c in curves if x in c] for x in lengths)]
        for key in ("accuracy_cleared", TEXT):
            columns.append([study[key] for study in recall.numbers if key in study])
        rows.append([recall.memory, f"{recall.carried_bytes:,}", *map(by_run, columns)])
    titles = ["memory", "bytes carried", "as in training", *(f"{n:,.0f} pieces" for n in lengths),
              "state cleared", "bits per piece of text"]  # fmt: skip
    caption = (
        "Share of questions answered with the right word, one number a seed, by the length of the "
        "document in pieces. State cleared: the same questions, the state emptied before every "
        "segment. Text: loss on everything but the answers, state kept."
    )
    return plain_table(name, "Facts in text", caption, titles, rows) if rows else None


def facts_plot(name: str, groups: Iterable[Group]) -> Plot | None:
    """Returns the share answered against the distance of the fact, one line a memory."""
    lines = []
    for recall in _with_text(groups):
        curves = _curves(recall, BY_DISTANCE)
        shared = sorted(set.intersection(*map(set, curves))) if curves else []
        if shared:
            mean = [statistics.mean(curve[x] for curve in curves) for x in shared]
            lines.append(Line(recall.memory, shared, mean, "points"))
    if not lines:
        return None
    return Plot(
        name,
        "Facts in text, by distance",
        "Share of questions answered with the right word, by the pieces between the fact and the "
        "answer (from powers of two), mean over seeds.",
        "distance, pieces",
        "share answered",
        lines,
        log_x=True,
        y_range=(0.0, 1.02),
    )


def facts_map(name: str, groups: Iterable[Group]) -> HeatMap | None:
    """Returns the share of right answers by length and depth, of the run with the largest share."""
    runs = {
        run.studies["answers"]["numbers"]["accuracy_kept"]: run
        for group in groups
        for run in group.runs
        if TEXT in run.studies.get("answers", {}).get("numbers", {})
    }
    if not runs:
        return None
    best = runs[max(runs)]
    caption = (
        f"{memory_name(best.settings)}, one run: share of questions answered with the right word, "
        "by the length of the document in pieces and the position of the fact in it. "
        "A cell without a number has no question."
    )
    maps = (each for each in study_maps(best, "answers") if each.title == BY_DEPTH)
    return next((each._replace(name=name, caption=caption) for each in maps), None)


def _with_text(groups: Iterable[Group]) -> list[Recall]:
    return [each for each in recalls(groups) if any(TEXT in n for n in each.numbers)]


def _curves(recall: Recall, name: str) -> list[dict[float, float]]:
    return [study[name] for study in recall.studies if name in study]
