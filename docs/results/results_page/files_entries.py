"""Runs of the experiment "files as documents" (plan.md), by memory and window."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from results_page.gain_tables import NOTHING
from results_page.gains import known, paired, regime
from results_page.memory_names import WINDOW, memory_name
from results_page.significance import holm, p_value
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.model_settings import model_setting

PREFIX = "files_"
"""Beginning of its ladders' names."""
RATES, WINDOWS, TIME, LONG = "files_rates", "files_windows", "files_time", "files_long"
"""Ladders of the plan's parts."""
CONFIRMATION = "files_confirmation"
"""Ladder of a seed that took no part in the choice of rates."""
HALF_RATE, OTHER_RATES = "files_half_rate", "files_other_rates"
"""Ladders with other rates, after the plan; the second one of some memories and seeds."""
BYTES = 4
"""Of a float32."""


class Entry(NamedTuple):
    """Runs of one memory (or `WINDOW`) and window length; 0 of a model without windows."""

    memory: str
    window: int
    group: Group


def entries_of(groups: Sequence[Group]) -> list[Entry]:
    """Returns the evaluated groups by window, the plain stacks first."""
    found = []
    for group in groups:
        settings = group.runs[0].settings
        if known(group):
            window = model_setting(settings, "window") or 0
            found.append(Entry(memory_name(settings), window, group))
    return sorted(found, key=lambda entry: (entry.window, entry.memory != WINDOW, entry.memory))


class Comparison(NamedTuple):
    """Every memory and window at one choice of rates, and the plain stack trained for longer."""

    entries: list[Entry]
    longer: Entry | None


def planned_rates(ladders: Mapping[str, Sequence[Group]]) -> Comparison:
    """Returns the comparison of the plan; without entries before its runs."""
    return _comparison(entries_of(ladders.get(WINDOWS, ())), ladders)


def better_rates(ladders: Mapping[str, Sequence[Group]]) -> Comparison:
    """Returns each memory and window at the better of two rates, of those with all seeds."""
    half = {entry[:2]: entry for entry in entries_of(ladders.get(HALF_RATE, ()))}
    planned = planned_rates(ladders).entries
    return _comparison([_better(entry, half.get(entry[:2], entry)) for entry in planned], ladders)


def _comparison(entries, ladders):
    plain = next((entry for entry in entries if entry.memory == WINDOW), None)
    longer = (one for one in entries_of(ladders.get(TIME, ()))
              if plain and rate(one.group) == rate(plain.group))  # fmt: skip
    return Comparison(entries, next(longer, None))


def _better(entry, other):
    bits, others = known(entry.group), known(other.group)
    is_complete = len(others) == len(bits)
    return other if is_complete and np.mean(others) < np.mean(bits) else entry


def longer_entries(comparison: Comparison, long: Sequence[Group] = ()) -> list[tuple[str, Entry]]:
    """Returns the entries that were trained for longer, and a label that says for how long.

    long: further groups.
    """
    usual = regime(comparison.entries[0].group).steps
    longer = [comparison.longer] if comparison.longer else []
    found = []
    for entry in (*longer, *entries_of(long)):
        label = f"{regime(entry.group).steps / usual:g} times the steps"
        found.append((label + ", one seed" * (len(known(entry.group)) == 1), entry))
    return found


def rate(group: Group) -> float:
    return group.runs[0].settings["cosine.maximum"]


def of_seeds(group: Group, seeds: Container[int]) -> Group:
    runs = [run for run in group.runs if run.settings.get("Trainer.seed", 0) in seeds]
    return group._replace(runs=runs)


def plain_stacks(entries: Sequence[Entry]) -> dict[int, Group]:
    return {entry.window: entry.group for entry in entries if entry.memory == WINDOW}


def memories_at(entries: Sequence[Entry], window: int) -> list[Entry]:
    return [entry for entry in entries if entry.window == window and entry.memory != WINDOW]


def improvements(entries: Sequence[Entry]) -> list[tuple[float, ...]]:
    """Returns the improvement of each memory over the plain stack with its window, by seed."""
    plain = plain_stacks(entries)
    return [paired(entry.group, plain[entry.window]) if entry.memory != WINDOW else ()
            for entry in entries]  # fmt: skip


def corrected_p(gained: Sequence[Sequence[float]]) -> dict[int, float]:
    """Returns Holm's p of each comparison of at least three seeds, by its index."""
    tested = [number for number, values in enumerate(gained) if len(values) > 2]
    return dict(zip(tested, holm([p_value(gained[number]) for number in tested])))


def step_time(entry: Entry, times: StepTimes) -> float | None:
    measured, _ = times.by_system.get((WINDOWS, entry.memory, str(entry.window)), (NOTHING, None))
    return None if measured.text == NOTHING.text else float(measured.text)


def carried_bytes(entry: Entry) -> int:
    settings = entry.group.runs[0].settings
    layers, heads, size = (model_setting(settings, name)
                           for name in ("num_layers", "num_heads", "head_size"))  # fmt: skip
    numbers = 2 * layers * entry.window * heads * size
    if "GatedDeltaMemory" in str(model_setting(settings, "memories", ())):
        numbers += heads * size**2
    elif model_setting(settings, "recurrent_layers", ()):
        numbers += settings["RecurrentCell.num_states"] * model_setting(settings, "width")
    return BYTES * numbers
