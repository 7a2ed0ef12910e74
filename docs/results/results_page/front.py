"""The first table of the page: windows, memories, compressors and n-grams on files of Python."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from results_page.files_entries import (
    LONG,
    Comparison,
    better_rates,
    carried_bytes,
    corrected_p,
    improvements,
    longer_entries,
    plain_stacks,
    planned_rates,
    step_time,
)
from results_page.gain_tables import INTERVAL, NOTHING, probability, shown
from results_page.gains import fresh_bits, gradient_tokens, known, paired, regime
from results_page.intervals import IntervalPlot, Mean
from results_page.memory_names import WINDOW
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.drawing.table import Cell, Table, plain_table

METHODS = {
    "gzip -9": "gzip -9, each file by itself",
    "xz -9": "xz -9, each file by itself",
    "4-gram": "4-gram",
    "4-gram, counting": "4-gram that goes on counting in the file",
    "6-gram, counting": "6-gram that goes on counting in the file",
}
"""Compressors and n-grams that are shown, and how they are called."""


def front_table(
    ladders: Mapping[str, Sequence[Group]], times: StepTimes, compressors: Path
) -> Table | None:
    """Returns the memories of "files as documents" by window, compressors and n-grams.

    compressors: CSV file with their bits per byte.
    """
    better, planned = better_rates(ladders), planned_rates(ladders)
    if not better.entries:
        return None
    entries, plain = better.entries, plain_stacks(better.entries)
    every = [*improvements(entries), *improvements(planned.entries)]
    corrected = corrected_p(every)
    rows: list[list[Any]] = []
    for number, (entry, gained) in enumerate(zip(entries, every)):
        is_memory = entry.memory != WINDOW
        fresh = paired(entry.group, plain[entry.window], fresh_bits) if is_memory else ()
        time = step_time(entry, times)
        rows.append([f"{entry.memory}, W = {entry.window}", _mean(entry.group), shown(gained),
                     probability(corrected.get(number)), shown(fresh), _cleared(entry.group),
                     NOTHING if time is None else Cell(f"{time:.2f}"),
                     f"{carried_bytes(entry):,}"])  # fmt: skip
    for label, (memory, window, group) in longer_entries(better, ladders.get(LONG, ())):
        gained = paired(group, plain[window]) if memory == WINDOW else ()
        rows.append([f"{memory}, W = {window}, {label}", _mean(group), shown(gained),
                     *[NOTHING] * 2, _cleared(group), *[NOTHING] * 2])  # fmt: skip
    if compressors.is_file():
        corpus = regime(entries[0].group).corpus
        with compressors.open(encoding="utf-8", newline="") as file:
            rows += [[METHODS[row["method"]], Cell(row["bits per byte"]), *[NOTHING] * 6]
                     for row in csv.DictReader(file)
                     if row["text"] == corpus and row["method"] in METHODS]  # fmt: skip
    titles = ("memory", "bits per byte", "improvement", "p, Holm", "on fresh text", "cleared costs",
              "step time", "bytes carried")  # fmt: skip
    tested = sum(len(values) > 2 for values in every)
    return plain_table("front", "Windows, memories and compressors",
                       _caption(entries, tested), titles, rows)  # fmt: skip


def improvements_plot(better: Comparison) -> IntervalPlot | None:
    """Returns the improvements of the memories, and of longer training, with all seeds."""
    plain = plain_stacks(better.entries)
    compared = [(f"{entry.memory}, W = {entry.window}", entry.group, plain[entry.window])
                for entry in better.entries if entry.memory != WINDOW]  # fmt: skip
    for label, (memory, window, group) in longer_entries(better) if better.longer else ():
        compared.append((f"{memory}, W = {window}, {label}", group, plain[window]))
    means = [
        Mean(place, loss, *confidence_interval(values), tuple(values))
        for place, group, other in compared
        for loss, values in (("validation", paired(group, other)),
                             ("fresh training text", paired(group, other, fresh_bits)))
        if len(values) > 1 and (loss == "validation" or _steps(group) == _steps(other))
    ]  # fmt: skip
    if not means:
        return None
    return IntervalPlot(
        "files_improvements",
        "Improvement over the plain stack with the same window",
        "Mean and 95 % interval over the seeds, which are the small dots.",
        "improvement, bits per byte",
        means,
    )


def _steps(group: Group) -> int:
    return regime(group).steps


def _mean(group: Group) -> Cell:
    return Cell(f"{np.mean(known(group)):.3f}")


def _cleared(group: Group) -> Cell:
    cleared = known(group, "cleared_")
    if not cleared:
        return NOTHING
    return Cell(f"{np.mean(cleared) - np.mean(known(group)):.3f}")


def _caption(entries, tested):
    seeds = max(len(known(entry.group)) for entry in entries)
    shared = regime(entries[0].group)
    million = shared.steps * shared.tokens_per_step / 1e6
    depth = max(gradient_tokens(run.settings) for entry in entries for run in entry.group.runs)
    return (
        f"Validation, each file read from its start, less is better; means of {seeds} seeds. "
        f"Improvement: over the plain stack with the same W, seed by seed. {INTERVAL} p: paired "
        f"t-test, corrected by Holm's method for all {tested} improvements that were looked at, "
        "with these and with the planned rates. On fresh text: improvement on batches of the last "
        f"fifth of training. Cleared costs: loss if the memory is emptied every "
        f"{shared.segment_length} bytes. Step time: one core, relative to the first row. Bytes "
        "carried: keys and values of windows, and memories. Gradients cross "
        f"{depth} bytes. Each model and n-gram was trained on {million:.1f} MB; the last two "
        "n-grams also count the file that they predict, so the file is their memory."
    )
