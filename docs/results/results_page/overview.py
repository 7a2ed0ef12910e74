"""All comparisons of several seeds as one table and one figure."""

from collections.abc import Iterable
from typing import NamedTuple

from results_page.gain_tables import NOTHING, USUAL
from results_page.gains import Gain, num_states
from results_page.intervals import IntervalPlot, Mean

from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.drawing.table import Cell, Table, plain_table

NAME = "overview"
FEWEST_SEEDS = 3
GATES = {"Rec:fixed:skip": "fixed gate", "Rec:lstm:skip": "LSTM gate"}
"""Systems that are shown."""
BETTER, WORSE, NEITHER = "recurrence", "one more layer", "not distinguishable"


class Comparison(NamedTuple):
    """An improvement with several seeds, its gate and its regime in words."""

    gate: str
    place: str
    gain: Gain


def comparisons(found: Iterable[Gain]) -> list[Comparison]:
    """Returns the comparisons of at least `FEWEST_SEEDS` seeds with the usual gates and memories.

    Each regime, number of states and gate occurs once, from the ladder with the most seeds.
    """
    kept: dict[tuple, Comparison] = {}
    for gain in found:
        settings = gain.recurrent.runs[0].settings
        gate = GATES.get(gain.recurrent.position.system)
        usual = all(settings.get(name, value) == value for name, value in USUAL.items())
        if gate is None or not usual or len(gain.gains) < FEWEST_SEEDS:
            continue
        own, states = gain.regime, num_states(gain.recurrent)
        order = (own.corpus, own.segment_length, own.window, own.steps, own.optimizer, states,
                 list(GATES.values()).index(gate), own)  # fmt: skip
        place = f"{own.corpus}, W {own.window}, S {states}, N {own.segment_length}"
        place += f", {own.steps:,} steps"
        place += "" if own.optimizer == "adamw" else f", {own.optimizer}"
        if order not in kept or len(gain.gains) > len(kept[order].gain.gains):
            kept[order] = Comparison(gate, place, gain)
    return [kept[order] for order in sorted(kept)]


def overview_table(found: Iterable[Gain]) -> Table | None:
    """Returns one row a comparison, with its interval and the better side; None without any."""
    rows = []
    for gate, _, gain in comparisons(found):
        own = gain.regime
        texts = (own.corpus, own.window, own.segment_length, f"{own.steps:,}", own.optimizer,
                 num_states(gain.recurrent), gate, len(gain.gains))  # fmt: skip
        mean, half = confidence_interval(gain.gains)
        verdict = BETTER if mean > half else WORSE if mean < -half else NEITHER
        worth = _cell(gain.worth) if len(gain.worth) >= FEWEST_SEEDS else NOTHING
        rows.append([*texts, _cell(gain.gains), worth, verdict])
    titles = ("corpus", "window", "segment", "steps", "optimizer", "states", "gate", "seeds",
              "gain", "clearing the state costs", "better")  # fmt: skip
    caption = (
        f"Every comparison of {FEWEST_SEEDS} seeds, all of the validation split: bits per byte by "
        "which the recurrent stack is better than a plain one with one layer more, after the same "
        "tokens in the same order. ± is half of the 95 % interval (Student's t). Better: the side "
        "that the whole interval is on."
    )
    return plain_table(NAME, "Where recurrence pays", caption, titles, rows) if rows else None


def overview_plot(found: Iterable[Gain]) -> IntervalPlot | None:
    """Returns the intervals of `overview_table` as a figure; None without any."""
    means = [Mean(place, gate, *confidence_interval(gain.gains))
             for gate, place, gain in comparisons(found)]  # fmt: skip
    if not means:
        return None
    return IntervalPlot(
        NAME,
        "Where recurrence pays",
        "Bits per byte by which the recurrent stack is better than a plain one with one layer "
        f"more: mean and 95 % interval of {FEWEST_SEEDS} seeds. Right of zero recurrence wins.",
        "gain over one more layer, bits per byte",
        means,
    )


def _cell(values):
    mean, half = confidence_interval(values)
    return Cell(f"{mean:.3f} ± {half:.3f}", tuple(values))
