"""Facts in real text (BABILong): answers of every memory by the text between fact and question."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from results_page import facts_rule
from results_page.memory_names import memory_name
from results_page.recall_runs import Recall, recalls
from results_page.recall_table import BY_SEED, by_run

from brt.reporting.collect import Group
from brt.reporting.drawing.heat_map import HeatMap, study_maps
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Table, plain_table

BY_LENGTH, BY_DISTANCE = "state kept, by length", "state kept, by distance"
BY_FACTS = "state kept, by facts"
RULE = "the place that was named last"
TASK, FACTS = "BabiLong.task", "BabiLong.num_facts"
DRAWN = 3
"""Memories of the figure."""
TEXT = "text_bits_per_token"
BY_DEPTH = "Answers by length and depth, state kept"
"""Title of a map of the study `answers`."""


def facts_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns the rule "the place named last" and one row a memory: right answers by length.

    And loss on text.
    """
    groups = list(groups)
    found = _with_text(groups)
    if not found:
        return None
    lengths, facts = _values(found, BY_LENGTH), _values(found, BY_FACTS)
    trained = _facts_of_training(groups)
    mixes = (trained, *((number,) for number in facts), *[facts] * len(lengths))
    rule = [facts_rule.share(some) if some else None for some in mixes]
    nothing: list[float | None] = [None]
    rows: list[Sequence[Any]] = [
        [RULE, "–", *(by_run([share]) for share in rule), *map(by_run, [nothing, nothing])]
    ]
    for recall in found:
        columns: list[Sequence[float | None]] = [
            recall.in_training,
            *(_shares(recall, BY_FACTS, number) for number in facts),
            *(_shares(recall, BY_LENGTH, length) for length in lengths),
        ]
        for key in ("accuracy_cleared", TEXT):
            columns.append([study.get(key) for study in recall.numbers])
        rows.append([recall.memory, f"{recall.carried_bytes:,}", *map(by_run, columns)])
    titles = ["memory", "bytes carried", "as in training",
              *(f"{number} facts" for number in facts),
              *(f"{length:,.0f} pieces" for length in lengths),
              "state cleared", "bits per piece of text"]  # fmt: skip
    caption = (
        f"Share of questions answered with the right word, {BY_SEED} By the number of facts, and "
        "by the length of the document in pieces. A random place is right in "
        f"{facts_rule.CHANCE:.2f}. First row: the place that was named last, without reading the "
        f"question ({facts_rule.STORIES:,} stories of each number of facts). State cleared: the "
        "same questions, the state emptied before every segment. Text: loss on everything but the "
        "answers, state kept."
    )
    return plain_table(name, "Facts in text", caption, titles, rows)


def facts_plot(name: str, groups: Iterable[Group]) -> Plot | None:
    """Returns the share answered against the distance of the fact: the best memories and the rule.

    A line is the mean of a memory's runs.
    """
    found = _with_text(groups)
    found.sort(key=lambda recall: statistics.mean(_kept(recall)), reverse=True)
    lines = []
    for recall in found[:DRAWN]:
        curves = [study[BY_DISTANCE] for study in recall.studies if BY_DISTANCE in study]
        shared = sorted(set.intersection(*map(set, curves))) if curves else []
        if shared:
            mean = [statistics.mean(curve[x] for curve in curves) for x in shared]
            lines.append(Line(recall.memory, shared, mean, "points"))
    if not lines:
        return None
    facts, lengths = (_values(found, series) for series in (BY_FACTS, BY_LENGTH))
    rule = facts_rule.share_by_distance(facts, lengths) if facts else {}
    drawn = [x for x in rule if min(lines[0].x) <= x <= max(lines[0].x)]
    if drawn:
        lines.append(Line(RULE, drawn, [rule[x] for x in drawn], "published"))
    return Plot(
        name,
        "Facts in text, by distance",
        "Share of questions answered with the right word, by the pieces between the fact and the "
        f"answer (from powers of two), mean over seeds; the {DRAWN} memories that answer most, and "
        "the rule that never reads the question. The rule falls and rises because a distance comes "
        "from documents of several lengths.",
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


def _kept(recall: Recall) -> list[float]:
    return [numbers["accuracy_kept"] for numbers in recall.numbers if numbers]


def _values(found: Iterable[Recall], series: str) -> list[int]:
    """Returns the x of a series of all runs."""
    curves = (study.get(series, {}) for recall in found for study in recall.studies)
    return sorted({int(x) for curve in curves for x in curve})


def _shares(recall: Recall, series: str, x: float) -> list[float | None]:
    return [study.get(series, {}).get(x) for study in recall.studies]


def _facts_of_training(groups: Iterable[Group]) -> Sequence[int]:
    """Returns the numbers of facts in training of the runs of the rule's task; none of others."""
    settings = [run.settings for group in groups for run in group.runs]
    found = {tuple(one.get(FACTS, ())) for one in settings if one.get(TASK) == facts_rule.TASK}
    return max(found, default=())
