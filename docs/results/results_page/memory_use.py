"""Cost of ablations of the state, and its half-life."""

import re
from collections.abc import Iterable

from results_page.gain_tables import NOTHING, described

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, measured, plain_table

STUDY = "memory_use"
"""The study that holds costs and half-lives."""
LAYER = re.compile(r"(.*)/state_norm")


def memory_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a layer with states of each run with the study; None without one."""
    rows = []
    both = [(group, run) for group in groups for run in group.runs]
    for group, run in both:
        numbers = run.studies.get(STUDY, {}).get("numbers", {})
        for layer in (match[1] for match in map(LAYER.fullmatch, numbers) if match):
            share = numbers.get(f"{layer}/state_share")
            life = numbers.get(f"{layer}/half_life_tokens")
            rows.append(
                [
                    described(group),
                    _cost(numbers, "swapped"),
                    _cost(numbers, "cleared"),
                    NOTHING if share is None else measured([100 * share], 0),
                    NOTHING if life is None else measured([life], 0),
                ]
            )
    titles = ["run, one seed", "another document's state costs", "a cleared state costs"]
    titles += ["attention to states, %", "half-life, bytes"]
    caption = (
        "Bits per byte after a document's first segment, on validation; ± is the standard error "
        "over segments. By `--study=memory_use`."
    )
    return plain_table(name, "What the state holds", caption, titles, rows) if rows else None


def _cost(numbers, what):
    cost, error = numbers.get(f"cost_{what}"), numbers.get(f"cost_{what}_error")
    if cost is None or error is None:
        return NOTHING
    return Cell(f"{cost:.3f} ± {error:.3f}", (cost,))
