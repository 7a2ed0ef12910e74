"""Cost of ablations of the state, and its half-life."""

import re
from collections.abc import Iterable

from results_page.gain_tables import NOTHING

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, measured, plain_table

STUDY = "memory_use"
"""The study that holds costs and half-lives."""
COST_DECIMALS = 4
LAYER = re.compile(r"(.*)/state_norm")


def memory_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a layer with states of each run with the study; None without one."""
    rows = []
    for run in (run for group in groups for run in group.runs):
        numbers = run.studies.get(STUDY, {}).get("numbers", {})
        for layer in (match[1] for match in map(LAYER.fullmatch, numbers) if match):
            costs = (_cost(numbers, what) for what in ("cleared", "zeroed", "swapped"))
            share = numbers.get(f"{layer}/state_share")
            life = numbers.get(f"{layer}/half_life_tokens")
            rows.append(
                [
                    *(run.name, _counted_from_one(layer), *costs),
                    NOTHING if share is None else measured([100 * share], 1),
                    NOTHING if life is None else measured([life], 1),
                ]
            )
    titles = ["run", "layer", "cleared costs", "zeroed costs", "another document's costs"]
    titles += ["share of attention from states, %", "half of the state is left after, tokens"]
    caption = (
        "What it costs, in bits per token after a document's first segment, when the state is set "
        "to its learned beginning (cleared), to zero, or to another document's; ± the standard "
        "error over segments. By `--study=memory_use`."
    )
    return plain_table(name, "What the state is worth", caption, titles, rows) if rows else None


def _counted_from_one(layer):
    return re.sub(r"layer(\d+)", lambda found: f"layer {int(found[1]) + 1}", layer)


def _cost(numbers, what):
    cost, error = numbers.get(f"cost_{what}"), numbers.get(f"cost_{what}_error")
    if cost is None or error is None:
        return NOTHING
    return Cell(f"{cost:.{COST_DECIMALS}f} ± {error:.{COST_DECIMALS}f}", (cost,))
