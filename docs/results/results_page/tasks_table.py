"""Accuracies of algorithmic tasks: one row a task and number of segments, one column a model."""

from collections.abc import Iterable

import numpy as np
from results_page.gain_tables import INTERVAL, NOTHING, shown

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Table, plain_table

SYSTEMS = {
    "Baseline": "nothing carried",
    "Tr-XL": "Transformer-XL",
    "RMT": "RMT",
    "Rec:fixed:skip": "Rec:fixed:skip",
}
"""Columns by the systems of the runs."""


def tasks_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns the best group of each system and task; None without a run of a task."""
    best: dict[tuple, tuple[float, ...]] = {}
    for group in groups:
        system = group.position.system.split(" ")[0]
        found = (run.evaluations.get("test", {}).get("task_accuracy") for run in group.runs)
        values = tuple(value for value in found if value is not None)
        if group.position.task and system in SYSTEMS and values:
            key = group.position.task, group.position.segments, system
            best[key] = max(best.get(key, (0.0,)), values, key=np.mean)
    systems = [system for system in SYSTEMS if any(key[2] == system for key in best)]
    rows = [
        [task, segments]
        + [
            shown(best[task, segments, system]) if (task, segments, system) in best else NOTHING
            for system in systems
        ]
        for task, segments in sorted({key[:2] for key in best})
    ]
    caption = (
        "Share of scored characters that are right on 10,000 test samples, the model reading its "
        f"own predictions. {INTERVAL}"
    )
    titles = ["task", "segments", *map(SYSTEMS.__getitem__, systems)]
    return plain_table(name, "Algorithmic tasks", caption, titles, rows) if rows else None
