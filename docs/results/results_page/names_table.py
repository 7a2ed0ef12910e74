"""Loss on names from far back, of every memory (part of the experiment on files, plan.md)."""

from collections.abc import Mapping, Sequence

import numpy as np
from results_page.files_entries import (
    Entry,
    better_rates,
    entries_of,
    mean_names_loss,
    names_loss,
    of_seeds,
)
from results_page.gain_tables import NOTHING, shown
from results_page.gains import SPLIT, known, pairs
from results_page.memory_names import WINDOW

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, plain_table

OTHERS = "files_memories", "files_other_models"
"""Ladders of the memories that the plan's rules do not decide on."""
FAR = 320
"""Least bytes since a name's last occurrence in rule (g)."""
NAMES_WINDOW = 32
"""W of the plain stack that memories are compared with."""
SHOWN = 32, 320, 3_200, 32_000
"""Distances of the table, bytes."""


def names_table(ladders: Mapping[str, Sequence[Group]]) -> Table | None:
    """Returns one row a memory with its shortest window, best first, and the longer plain stack.

    Of the seeds that all have; None without the ladders `OTHERS`.
    """
    others = [entry for name in OTHERS for entry in entries_of(ladders.get(name, ()))]
    seeds = {run.settings.get("Trainer.seed", 0) for entry in others for run in entry.group.runs}
    better = better_rates(ladders).entries
    entries = [entry._replace(group=of_seeds(entry.group, seeds)) for entry in better]
    entries = [entry for entry in entries if mean_names_loss(entry.group)]
    slide = next((e for e in entries if (e.memory, e.window) == (WINDOW, NAMES_WINDOW)), None)
    if slide is None or not others:
        return None
    shortest = min(entry.window for entry in entries)
    entries = [*others, *(entry for entry in entries if entry.window == shortest)]
    entries.sort(key=lambda entry: float(np.mean(known(entry.group))))
    rows = [_row(slide, slide), *(_row(entry, slide) for entry in entries)]
    names = [f"names, {at:,} bytes" for at in SHOWN]
    below = f"below the first from {FAR} bytes"
    titles = ["memory", "bits per byte", "cleared", *names, below]
    caption = (
        f"Bits per byte on {SPLIT}, documents read from their start, W = {shortest} but in the "
        f"first row; seed {' and '.join(map(str, sorted(seeds)))}. Names: words that "
        "occurred before in the document, by the bytes since then (320: 320 to 999, and so on). "
        "Last column: improvement over the first row, mean of all five bins from 320 bytes on. "
        "The last three read segments of 8, pad documents less and read 0.8 % more text in as many "
        "steps."
    )
    return plain_table("files_far_names", "Names from far back", caption, titles, rows)


def _row(entry: Entry, slide: Entry):
    by_distance = mean_names_loss(entry.group)
    names = [Cell(f"{by_distance[at]:.3f}") if at in by_distance else NOTHING for at in SHOWN]
    label = f"{entry.memory}, W = {NAMES_WINDOW}" if entry is slide else entry.memory
    gained = () if entry is slide else [_far_below(by_distance, mean_names_loss(slide.group))]
    return [label, shown(known(entry.group)),
            shown(known(entry.group, "cleared_")), *names, shown(gained)]  # fmt: skip


def far_improvements(group: Group, plain: Group) -> list[float]:
    """Returns by how much each run is below the plain one on names from far back, bits per byte."""
    both = [(names_loss(run), names_loss(other)) for run, other in pairs(group, plain)]
    return [_far_below(own, its) for own, its in both if own and its]


def _far_below(own: Mapping[float, float], its: Mapping[float, float]) -> float:
    return float(np.mean([its[at] - own[at] for at in own if at >= FAR and at in its]))
