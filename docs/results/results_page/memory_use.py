"""Cost of ablations of the state, and its half-life."""

import re
from collections.abc import Iterable

from results_page.gain_tables import NOTHING

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Column, Table, measured

STUDY = "memory_use"
"""The study that holds costs and half-lives."""
CLEARED = "compare-cleared"
"""The study with the cost of clearing by place in the segment."""
BY_PLACE = "difference by place in the segment"
"""The series of it."""
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
                    *(Cell(run.name), Cell(_counted_from_one(layer)), *costs),
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
    columns = [Column("", title) for title in titles]
    return Table(name, "What the state is worth", caption, columns, rows) if rows else None


def _counted_from_one(layer):
    return re.sub(r"layer(\d+)", lambda found: f"layer {int(found[1]) + 1}", layer)


def _cost(numbers, what):
    cost, error = numbers.get(f"cost_{what}"), numbers.get(f"cost_{what}_error")
    if cost is None or error is None:
        return NOTHING
    return Cell(f"{cost:.{COST_DECIMALS}f} ± {error:.{COST_DECIMALS}f}", (cost,))


def segment_plot(name: str, groups: Iterable[Group]) -> Plot | None:
    """Returns the cost of clearing the state by place in the segment; None without the study."""
    lines = []
    for run in (run for group in groups for run in group.runs):
        for series in run.studies.get(CLEARED, {}).get("series", ()):
            if series["name"] == BY_PLACE:
                lines.append(Line(run.name, series["x"], series["y"], "points"))
    if not lines:
        return None
    return Plot(
        name,
        "Cost of clearing the state, by place in the segment",
        "Bits per token that runs lose when their state is cleared at every segment, at so many "
        "tokens after the segment's begin: each mark is the mean from there to the next.",
        "place in the segment, tokens",
        "cost of clearing, bits per token",
        lines,
    )
