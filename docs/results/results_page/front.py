"""The first table of the page: windows, memories and compressors on files of Python."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from results_page.files_entries import (
    LONG,
    better_rates,
    carried_bytes,
    longer_entries,
    plain_stacks,
    step_time,
)
from results_page.gain_tables import INTERVAL, NOTHING, shown
from results_page.gains import known, paired, regime
from results_page.memory_names import WINDOW
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, plain_table

METHODS = ("gzip -9", "xz -9", "4-gram")
"""Compressors that are shown."""


def front_table(
    ladders: Mapping[str, Sequence[Group]], times: StepTimes, compressors: Path
) -> Table | None:
    """Returns the memories of "files as documents" by window, and compressors.

    compressors: CSV file with their bits per byte.
    """
    better = better_rates(ladders)
    if not better.entries:
        return None
    entries, plain = better.entries, plain_stacks(better.entries)
    rows = []
    for entry in entries:
        gained = paired(entry.group, plain[entry.window]) if entry.memory != WINDOW else ()
        time = step_time(entry, times)
        rows.append([f"{entry.memory}, W = {entry.window}", shown(known(entry.group)),
                     shown(gained), NOTHING if time is None else Cell(f"{time:.2f}"),
                     f"{carried_bytes(entry):,}"])  # fmt: skip
    for label, (memory, window, group) in longer_entries(better, ladders.get(LONG, ())):
        gained = paired(group, plain[window]) if memory == WINDOW else ()
        rows.append([f"{memory}, W = {window}, {label}", shown(known(group)),
                     shown(gained), *[NOTHING] * 2])  # fmt: skip
    if compressors.is_file():
        corpus = regime(entries[0].group).corpus
        with compressors.open(encoding="utf-8", newline="") as file:
            rows += [[row["method"], Cell(row["bits per byte"]), *[NOTHING] * 3]
                     for row in csv.DictReader(file)
                     if row["text"] == corpus and row["method"] in METHODS]  # fmt: skip
    seeds = max(len(known(entry.group)) for entry in entries)
    titles = ("memory", "bits per byte", "improvement", "step time", "bytes carried")
    caption = (
        f"Validation, each file read from its start, less is better; {seeds} seeds. Improvement: "
        f"over the plain stack with the same W, seed by seed. {INTERVAL} Step time: one core, "
        "relative to the first row. Bytes carried: keys and values of windows, and memories. "
        "gzip, xz: each file by itself. 4-gram: of as much training text."
    )
    return plain_table("front", "Windows, memories and compressors", caption, titles, rows)
