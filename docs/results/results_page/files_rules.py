"""Decisions by the rules of the experiment "files as documents" (plan.md)."""

import functools
from collections.abc import Sequence

import numpy as np
from results_page.files_entries import (
    Comparison,
    Entry,
    corrected_p,
    memories_at,
    plain_stacks,
    step_time,
)
from results_page.gain_tables import shown
from results_page.gains import SPLIT, fresh_bits, known, paired
from results_page.memory_names import WINDOW
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.drawing.table import Table, plain_table

LEAST_RATE_GAIN, NOTHING_GAINED, SURE = 0.02, 0.01, 0.05
"""Of rules (a) and (d), bits per byte; and the largest p that counts."""
MIDDLE = 0.4
"""Share of the steps at which the earlier fifth of rule (c) ends."""


def rules_table(
    rates: Sequence[Entry], planned: Comparison, better: Comparison, times: StepTimes
) -> Table:
    """Returns one row a rule, and what it decides with the planned and with the better rates."""
    rows: list[list[str]] = [["(a) Is it the rate?", _rate_rule(rates) or "not run", "–"]]
    columns = [_decided(comparison, times) for comparison in (planned, better)]
    rows += [
        [question, *(answers[question] or "not run" for answers in columns)]
        for question in columns[0]
    ]
    caption = "The rules were written down before the runs ([plan](plan.md))."
    titles = ("question", "planned rates", "better rates")
    return plain_table("files_rules", "Rules", caption, titles, rows)


def _decided(comparison: Comparison, times: StepTimes) -> dict[str, str]:
    entries = comparison.entries
    longer = comparison.longer.group if comparison.longer else None
    return {
        "(b) Does a memory pay at W = 8?": _time_rule(entries, longer),
        "(c) Does it grow with training?": _growth_rule(entries),
        **{f"(d) Does it pay at W = {window}?": _window_rule(entries, window)
           for window in sorted(plain_stacks(entries))[1:]},
        "(e) Which memory?": _memory_rule(entries),
        "(f) Is it a cheaper window?": _frontier_rule(entries, times),
        "(g) Names from far back": _names_rule(entries),
    }  # fmt: skip


def _rate_rule(rates: Sequence[Entry]) -> str:
    best = {
        memory: min(known(entry.group)[0] for entry in rates if entry.memory == memory)
        for memory in {entry.memory for entry in rates}
    }
    if len(best) < 2 or WINDOW not in best:
        return ""
    memory = min((name for name in best if name != WINDOW), key=best.__getitem__)
    gained = best[WINDOW] - best[memory]
    verdict = "no" if gained >= LEAST_RATE_GAIN else "**yes**: the earlier statement is withdrawn"
    return f"{verdict}; at its best rate {memory} is {gained:.3f} below Slide at its best"


def _time_rule(entries: Sequence[Entry], longer: Group | None) -> str:
    if longer is None:
        return ""
    memories = memories_at(entries, min(plain_stacks(entries)))
    gained = [paired(entry.group, longer) for entry in memories]
    fresh = [
        paired(entry.group, plain_stacks(entries)[entry.window], fresh_bits) for entry in memories
    ]
    corrected = corrected_p(gained)
    stands = [
        entry.memory
        for number, entry in enumerate(memories)
        if corrected.get(number, 1.0) < SURE
        and np.mean(gained[number]) > 0 < np.mean(fresh[number])
    ]
    over = ", ".join(f"{one.memory} {shown(values).text}" for one, values in zip(memories, gained))
    verdict = _listed(stands, "stands for", "**fails**")
    return f"{verdict}; over the longer trained Slide {over}"


def _growth_rule(entries: Sequence[Entry]) -> str:
    shortest = min(plain_stacks(entries))
    slide, found, stands = plain_stacks(entries)[shortest], [], []
    for entry in memories_at(entries, shortest):
        late = paired(entry.group, slide, fresh_bits)
        early = paired(entry.group, slide, functools.partial(fresh_bits, end=MIDDLE))
        grown = sum(last > first for last, first in zip(late, early))
        found.append(f"{entry.memory} in {grown} of {len(late)} seeds")
        stands += [entry.memory] if late and grown == len(late) else []
    return f"{_listed(stands, 'stands for', '**fails**')}; larger at the end: {', '.join(found)}"


def _window_rule(entries: Sequence[Entry], window: int) -> str:
    found = []
    for entry in memories_at(entries, window):
        values = paired(entry.group, plain_stacks(entries)[window])
        fresh = paired(entry.group, plain_stacks(entries)[window], fresh_bits)
        if len(values) < 2:
            continue
        mean, half = confidence_interval(values)
        verdict = "not decided"
        if mean - half > 0 and np.mean(fresh) > 0:
            verdict = "yes"
        elif mean + half < NOTHING_GAINED:
            verdict = "**no**"
        found.append(f"{entry.memory}: {verdict} ({shown(values).text})")
    return ", ".join(found)


def _memory_rule(entries: Sequence[Entry]) -> str:
    found = []
    for window in sorted(plain_stacks(entries)):
        memories = memories_at(entries, window)
        if len(memories) != 2:
            continue
        first, second = memories
        differences = paired(first.group, second.group)
        wins = sum(value > 0 for value in differences)
        verdict = {0: second.memory, len(differences): first.memory}.get(wins, "not decided")
        found.append(f"W = {window}: {verdict} ({first.memory} in {wins} of {len(differences)})")
    return ", ".join(found)


def _frontier_rule(entries: Sequence[Entry], times: StepTimes) -> str:
    measured = {entry[:2]: time for entry in entries if (time := step_time(entry, times))}
    bits = {entry[:2]: float(np.mean(known(entry.group))) for entry in entries}
    found = []
    for memory, window in measured:
        if memory == WINDOW or window != min(plain_stacks(entries)):
            continue
        bits_there, time_there = bits[memory, window], measured[memory, window]
        beaten = any(
            other == WINDOW and time <= time_there and bits[other, its] < bits_there
            for (other, its), time in measured.items()
        )
        verdict = "**no**, a plain stack is as fast and better" if beaten else "yes"
        found.append(f"{memory}: {verdict}")
    return ", ".join(found)


def _names_rule(entries: Sequence[Entry]) -> str:
    """Returns why the rule decides nothing: the runs kept no parameters for another study."""
    studies = [study for entry in entries for run in entry.group.runs
               for study in run.studies.values() if study.get("study") == "compare"]  # fmt: skip
    if not studies:
        return ""
    read = min(len(study["documents"]) for study in studies)
    every = max(run.evaluations[SPLIT]["documents"] for run in entries[0].group.runs)
    return f"not decided: the studies read {read} of {every} documents" if read < every else ""


def _listed(names: Sequence[str], before: str, otherwise: str) -> str:
    return f"{before} {' and '.join(names)}" if names else otherwise
