"""All comparisons of several seeds as one table and one figure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from results_page.gain_tables import INTERVAL, TEXTS, USUAL, shown, text
from results_page.gains import SPLIT, Gain, gradient_tokens, known, num_states
from results_page.intervals import IntervalPlot, Mean
from results_page.significance import holm, p_value

from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.drawing.table import Table, plain_table

NAME = "overview"
FEWEST_SEEDS, SURE = 3, 0.05
"""Seeds of a comparison, and the largest corrected p that counts."""
GATES = {"Rec:fixed:skip": "fixed", "Rec:lstm:skip": "LSTM"}
"""Systems that are shown."""
BETTER, WORSE, NEITHER = "recurrence", "one more layer", "not distinguishable"
DEPENDS = "depends on how states begin"
"""Verdict where the two losses disagree."""


class Comparison(NamedTuple):
    """An improvement with several seeds, its gate and its regime in words."""

    gate: str
    place: str
    gain: Gain


def comparisons(found: Iterable[Gain]) -> list[Comparison]:
    """Returns the comparisons of at least `FEWEST_SEEDS` seeds with the usual gates and memories.

    Each regime, number of states and gate occurs once, from the ladder with the most seeds, and of
    these the best.
    """
    kept: dict[tuple, Comparison] = {}
    texts = list(TEXTS)
    for gain in found:
        settings = gain.recurrent.runs[0].settings
        gate = GATES.get(gain.recurrent.position.system)
        usual = all(settings.get(name, value) == value for name, value in USUAL.items())
        if gate is None or not usual or len(gain.gains) < FEWEST_SEEDS:
            continue
        own, states = gain.regime, num_states(gain.recurrent)
        corpus = texts.index(own.corpus) if own.corpus in texts else len(texts)
        order = (corpus, own.corpus, own.window, own.segment_length, own.steps, own.optimizer,
                 states, list(GATES.values()).index(gate), own)  # fmt: skip
        place = f"{text(own.corpus)}, W {own.window}, N {own.segment_length}"
        place += "" if own.optimizer == "adamw" else f", {own.optimizer.capitalize()}"
        place += "" if states == 8 else f", S {states}"
        if order not in kept or _rank(gain) > _rank(kept[order].gain):
            kept[order] = Comparison(gate, place, gain)
    return [kept[order] for order in sorted(kept)]


def _rank(gain):
    values = known(gain.recurrent)
    return len(gain.gains), -sum(values) / len(values)


def verdict(values: Sequence[float]) -> str:
    """Returns the side that the whole 95 % interval is on."""
    mean, half = confidence_interval(values)
    return BETTER if mean > half else WORSE if mean < -half else NEITHER


def overview_table(found: Iterable[Gain]) -> Table | None:
    """Returns one row a comparison, with both losses and the better side; None without any."""
    rows = []
    compared = comparisons(found)
    for gate, place, gain in compared:
        better = verdict(gain.gains)
        if gain.fresh and verdict(gain.fresh) != better:
            better = DEPENDS
        numbers = gain.plain_bits, known(gain.recurrent), gain.gains, gain.fresh
        rows.append([place, gate, *map(shown, numbers), better])
    titles = ("text, window, segment", "gate", "one more layer", "recurrent", "improvement",
              "on fresh text", "better")  # fmt: skip
    caption = (
        f"Bits per byte on {SPLIT}, at least {FEWEST_SEEDS} seeds. Improvement: of the recurrent "
        "stack over a plain one with one more layer, after the same tokens in the same order. On "
        f"fresh text: the same of the batches of the last fifth of training. {INTERVAL} Better: "
        f'the side that both intervals are on, not corrected for {len(rows)} rows; "{DEPENDS}" '
        f"where the two losses disagree. By Holm's method {_surviving(compared)}. Gradients cross "
        f"one segment, N {_lengths(compared)} bytes or pieces."
    )
    return plain_table(NAME, "Where recurrence pays", caption, titles, rows) if rows else None


def _surviving(compared: Sequence[Comparison]) -> str:
    """Returns how many rows Holm's method leaves on each loss, in words."""
    found = []
    for loss, values in ((f"on {SPLIT}", [each.gain.gains for each in compared]),
                         ("on fresh text", [each.gain.fresh for each in compared])):  # fmt: skip
        p = holm([p_value(some) for some in values if len(some) >= FEWEST_SEEDS])
        survive = sum(value < SURE for value in p)
        found.append(f"{survive} of {len(p)} survive {loss} (smallest p {min(p, default=1.0):.3f})")
    return ", ".join(found)


def _lengths(compared: Sequence[Comparison]) -> str:
    depths = {
        gradient_tokens(run.settings) for each in compared for run in each.gain.recurrent.runs
    }
    return " or ".join(map(str, sorted(depths)))


def overview_plot(found: Iterable[Gain]) -> IntervalPlot | None:
    """Returns the intervals of `overview_table` as a figure; None without any."""
    means = [
        Mean(f"{place}, {gate}", loss, *confidence_interval(values), tuple(values))
        for gate, place, gain in comparisons(found)
        for loss, values in ((SPLIT, gain.gains), ("fresh training text", gain.fresh))
        if values
    ]
    if not means:
        return None
    return IntervalPlot(
        NAME,
        "Where recurrence pays",
        "The improvements of the table: mean and 95 % interval of the seeds, which are the small "
        "dots.",
        "improvement over one more layer, bits per byte",
        means,
    )
