"""Entries of a report: groups of runs with a name."""

import re
from collections.abc import Iterable, Sequence

from brt.reporting.collect import Group
from brt.reporting.paper_positions import paper_position
from brt.reporting.runs import Run
from brt.reporting.sweep_folder import SEED, Sweep

MOST_NAMED = 3
"""Settings in the name of an entry, at most."""
OF_SEED = r"[-_]?(seed)?_?\d+$"
"""End of a run's name."""


def entries_of(runs: Iterable[Run], sweep: Sweep | None = None) -> list[Group]:
    """Returns the entries in the order of the sweep, or of their first runs.

    Names the runs of sweeps by label and seed.
    """
    members: dict[str, list[Run]] = {name: [] for name in (sweep.labels if sweep else ())}
    for run in runs:
        name = run.folder.name.rpartition(SEED)[0] if sweep else run.entry_key()
        members.setdefault(name, []).append(run)
    members = {name: found for name, found in members.items() if found}
    for found in members.values():
        found.sort(key=lambda run: run.seed)
    labels = [sweep.labels.get(name, name) if sweep else name for name in members]
    if not sweep or labels == list(members):  # which only repeat names
        labels = _labels(list(members.values()))
    entries = []
    for label, found in zip(labels, members.values()):
        for run in found if sweep or found[0].stands_for else ():
            run.name = f"{label}, seed {run.seed}"
        entries.append(Group(found, paper_position(found[0]), name=label))
    return entries


def _labels(members: Sequence[list[Run]]) -> list[str]:
    names_of = [(found[0].name, len(found)) for found in members]
    named = [re.sub(OF_SEED, "", name) if seeds > 1 else name for name, seeds in names_of]
    if not any(len(found) > 1 or found[0].stands_for for found in members) or len(members) < 2:
        return named
    settings = [found[0].identity() for found in members]
    names = dict.fromkeys(name for bound in settings for name in bound)
    differ = [name for name in names if len({bound.get(name) for bound in settings}) > 1]
    # Without a recurrent layer, for example, a run does not bind the settings of its cell.
    of_all = [name for name in differ if all(name in bound for bound in settings)]
    for chosen in (of_all, differ):
        last = [name.rpartition(".")[2] for name in chosen]
        short = last if len(set(last)) == len(last) else chosen
        labels = [
            ", ".join(f"{s}={bound.get(n, '–')}".replace("'", "") for s, n in zip(short, chosen))
            for bound in settings
        ]
        if len(chosen) <= MOST_NAMED and len(set(labels)) == len(members):
            return labels
    return named
