"""All systems of a ladder on the same tokens, compared with the deepest sliding window."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from results_page.gain_tables import INTERVAL, NOTHING, shown, system, text
from results_page.gains import (
    SPLIT,
    TEST,
    Measure,
    bits,
    fresh_bits,
    known,
    paired,
    regime,
    test_bits,
)
from results_page.significance import holm, p_value

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, plain_table

BASELINE = "Slide"
"""Prefix of the baseline's system."""
NOT_MEASURED = Cell("–"), Cell("–")


class StepTimes(NamedTuple):
    """Step times relative to the baseline's, measured and published, as cells.

    by_system: (ladder, system, window) to both.
    """

    by_system: dict[tuple[str, str, str], tuple[Cell, Cell]]

    def of(self, ladder: str, group: Group) -> tuple[Cell, Cell]:
        key = ladder, group.position.system, str(regime(group).window)
        return self.by_system.get(key, NOT_MEASURED)


def read_step_times(path: Path) -> StepTimes:
    """Returns the step times of a CSV file; none without the file."""
    if not path.is_file():
        return StepTimes({})
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = ((Cell(row["ratio"]), Cell(row["paper"] or "–")) for row in rows)
    keys = ((row["ladder"], row["system"], row["window"]) for row in rows)
    return StepTimes(dict(zip(keys, cells)))


def systems_table(
    name: str, groups: Sequence[Group], longer: Sequence[Group], times: StepTimes
) -> Table | None:
    """Returns one row a system, the best first; None without two systems, one a sliding window.

    A system on other tokens than the baseline, or not evaluated, has no row.

    Args:
        longer: runs of the baseline for as long a time as the slowest system takes.
    """
    baseline = deepest_slide(groups)
    if baseline is None:
        return None
    rivals = [baseline, next(iter(longer), None), baseline]
    measures: list[Measure] = [bits, bits, fresh_bits]
    shown_groups = sorted(
        (group for group in groups if paired(group, baseline)),
        key=lambda group: float(np.mean(known(group))),
    )
    if len(shown_groups) < 2:
        return None
    columns = [
        _below(shown_groups, baseline, rival, measure) for rival, measure in zip(rivals, measures)
    ]
    rows = []
    for number, group in enumerate(shown_groups):
        start = [system(group), regime(group).window or "–", _sequences(group)]
        end = times.of(name.removesuffix("_systems"), group)
        rows.append([*start, shown(known(group)), *(c for col in columns for c in col[number]),
                     *end])  # fmt: skip
    base = system(baseline)
    titles = ["system", "window", "sequences", "bits per byte", f"below {base}", "p, Holm",
              "at equal time", "p, Holm", "on fresh text", "p, Holm", "step time",
              "paper's"]  # fmt: skip
    caption = (
        f"Bits per byte on {SPLIT}. {INTERVAL} Sequences: into so many the split is cut, each of "
        "which starts without a past. p: two-sided paired t-test, corrected by Holm's method for "
        f"the number of recurrent systems. Step time: relative to {base}, measured and published."
    )
    return plain_table(name, "All systems", caption, titles, rows)


def deepest_slide(groups: Sequence[Group], split: str = SPLIT) -> Group | None:
    """Returns the evaluated sliding window with the most layers."""
    slides = [group for group in groups if group.position.system.startswith(BASELINE)]
    evaluated = (group for group in slides if known(group, split=split))
    return max(evaluated, key=lambda group: group.position.layers, default=None)


def test_table(name: str, ladders: Mapping[str, Sequence[Group]]) -> Table | None:
    """Returns one row a system that was evaluated on the test split, by text."""
    rows = []
    for groups in ladders.values():
        baseline = deepest_slide(groups, TEST)
        if baseline is None:
            continue
        for group in groups:
            below = paired(group, baseline, test_bits) if group is not baseline else ()
            kept, cleared = (known(group, prefix, TEST) for prefix in ("", "cleared_"))
            if kept:
                rows.append([text(regime(group).corpus), system(group), len(kept),
                             *map(shown, (kept, below, cleared))])  # fmt: skip
    titles = "text", "system", "seeds", "bits per byte", "below Slide:13L", "state cleared"
    caption = f"Bits per byte on the test split. {INTERVAL}"
    return plain_table(name, "Test split", caption, titles, rows) if rows else None


def _below(groups, baseline, rival, measure):
    """Returns two cells for each group: how far it is below a rival, and the corrected p."""
    found = [
        () if rival is None or group is baseline else paired(group, rival, measure)
        for group in groups
    ]
    tested = [i for i, group in enumerate(groups) if group.position.states and len(found[i]) > 2]
    corrected = dict(zip(tested, holm([p_value(found[i]) for i in tested])))
    return [
        (shown(values), Cell(f"{corrected[i]:.3f}") if i in corrected else NOTHING)
        for i, values in enumerate(found)
    ]


def _sequences(group):
    settings = group.runs[0].settings
    if settings.get("Trainer.stream") != "contiguous":
        return "documents"
    return settings["Evaluation.tokens_per_step"] // settings["Trainer.segment_length"]
