"""Tables and figures of the experiment "files as documents" (plan.md)."""

from collections.abc import Mapping, Sequence

import numpy as np
from results_page.files_entries import (
    HALF_RATE,
    RATES,
    TIME,
    WINDOWS,
    Entry,
    carried_bytes,
    corrected_p,
    entries_of,
    mean_names_loss,
    other_entries,
    plain_stacks,
    rate,
    step_time,
)
from results_page.files_rules import rules_table
from results_page.gain_tables import INTERVAL, NOTHING, shown
from results_page.gains import SPLIT, TEST, fresh_bits, known, paired, regime
from results_page.memory_names import WINDOW
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table


def files_tables(ladders: Mapping[str, Sequence[Group]], times: StepTimes) -> list[Table]:
    """Returns `files_by_rate`, `files_by_window`, `files_rules`, `files_at_half_the_rate`, as far
    as the runs are there.
    """
    entries = entries_of(ladders.get(WINDOWS, ()))
    rates = entries_of(ladders.get(RATES, ()))
    tables = []
    if rates:
        tables.append(_rates_table(rates))
    if entries:
        slide_for_longer = next(iter(ladders.get(TIME, ())), None)
        tables += [
            _windows_table(entries, other_entries(ladders), times),
            rules_table(rates, entries, slide_for_longer, times),
        ]
    if slower := entries_of(ladders.get(HALF_RATE, ())):
        tables.append(_half_rate_table(entries, slower))
    return tables


def files_plots(ladders: Mapping[str, Sequence[Group]], times: StepTimes) -> list[Plot]:
    """Returns bits against step time, and losses of names by the distance of the last one."""
    entries = entries_of(ladders.get(WINDOWS, ()))
    by_memory: dict[str, dict[float, float]] = {}
    for entry in entries:
        if (time := step_time(entry, times)) is not None:
            by_memory.setdefault(entry.memory, {})[time] = float(np.mean(known(entry.group)))
    for entry in entries_of(ladders.get(HALF_RATE, ())):
        if (time := step_time(entry, times)) is not None:
            label = f"{entry.memory}, rate {rate(entry):g}"
            by_memory.setdefault(label, {})[time] = float(np.mean(known(entry.group)))
    names = [
        Line(f"{entry.memory}, W = {entry.window}", list(curve), [*curve.values()], "points")
        for entry in entries
        if (curve := mean_names_loss(entry.group))
    ]
    time_lines = [
        Line(memory, list(by_window), list(by_window.values()), "points")
        for memory, by_window in by_memory.items()
    ]
    plots = [
        Plot(
            "files_time",
            "Bits per byte against step time",
            f"Mean of the seeds on {SPLIT}, for windows of 8, 32 and 128 bytes along each line, "
            "of which half the rate has one or two. "
            "Step time: one core, relative to Slide with W = 8.",
            "step time",
            "bits per byte",
            time_lines,
        ),
        Plot(
            "files_names",
            "Loss on words, by the distance of their last occurrence",
            f"Bits per byte of words that occurred before in the document, on {SPLIT}, by the "
            "least number of bytes since then. Mean of the seeds.",
            "bytes since the word's last occurrence, at least",
            "bits per byte of words",
            names,
            log_x=True,
        ),
    ]
    return [plot for plot in plots if plot.lines]


def _rates_table(entries: Sequence[Entry]) -> Table:
    rows = []
    for entry in entries:
        settings = entry.group.runs[0].settings
        optimizer, rate = _optimizer(settings), settings["cosine.maximum"]
        rows.append((entry.memory != WINDOW, entry.memory, optimizer, rate,
                     shown(known(entry.group))))  # fmt: skip
    rows.sort(key=lambda row: row[:-1])
    titles = "memory", "optimizer", "rate", "bits per byte"
    shared = regime(entries[0].group)
    caption = (
        f"Bits per byte on {SPLIT} after {shared.steps:,} steps of {shared.tokens_per_step:,} "
        f"bytes, W = {shared.window}, one seed."
    )
    return plain_table("files_by_rate", "Rates", caption, titles, [row[1:] for row in rows])


def _optimizer(settings):
    return str(settings["Trainer.optimizer"]).strip("@()")


def _half_rate_table(entries: Sequence[Entry], half: Sequence[Entry]) -> Table:
    """Returns every memory at the windows of `half`, compared with plain stacks of both rates and
    with the longest window at half the rate.
    """
    plain, plain_half = plain_stacks(entries), plain_stacks(half)
    longest = max(plain_half)
    rows = []
    for entry in (*entries, *half):
        if entry.window in plain_half:
            stacks = plain[entry.window], plain_half[entry.window], plain_half[longest]
            gained = (paired(entry.group, s) if s is not entry.group else () for s in stacks)
            values = (shown(known(entry.group)), shown(known(entry.group, "cleared_")),
                      *map(shown, gained))  # fmt: skip
            rows.append((entry.window, entry.memory != WINDOW, entry.memory, rate(entry), values))
    rows.sort(key=lambda row: row[:-1])
    first, second = (f"rate {rate(next(e for e in some if e.memory == WINDOW)):g}"
                     for some in (entries, half))  # fmt: skip
    titles = ("memory", "W", "rate", "bits per byte", "cleared", f"below Slide, {first}",
              f"below Slide, {second}", f"below Slide, W = {longest}, {second}")  # fmt: skip
    caption = (
        f"Bits per byte on {SPLIT}; cleared: the memory emptied before every segment. Below Slide: "
        f"improvement over the plain stack, with the same W unless given, by seed. {INTERVAL}"
    )
    cells = [(name, W, f"{rate:g}", *values) for W, _, name, rate, values in rows]
    return plain_table("files_at_half_the_rate", "Half the rate", caption, titles, cells)


def _windows_table(
    entries: Sequence[Entry], longer: Sequence[tuple[str, Entry]], times: StepTimes
) -> Table:
    plain = plain_stacks(entries)
    gained = [paired(e.group, plain[e.window]) if e.memory != WINDOW else () for e in entries]
    corrected = corrected_p(gained)
    rows = []
    for number, entry in enumerate(entries):
        slide = plain[entry.window]
        fresh = paired(entry.group, slide, fresh_bits) if entry.memory != WINDOW else ()
        p = Cell(f"{corrected[number]:.3f}") if number in corrected else NOTHING
        time = step_time(entry, times)
        rows.append([entry.memory, entry.window, len(known(entry.group)), shown(known(entry.group)),
                     shown(known(entry.group, "cleared_")), shown(gained[number]), p, shown(fresh),
                     shown(known(entry.group, split=TEST)),
                     NOTHING if time is None else Cell(f"{time:.2f}"),
                     f"{carried_bytes(entry):,}"])  # fmt: skip
    for label, (memory, window, group) in longer:
        kept, test = known(group), known(group, split=TEST)
        cleared = shown(known(group, "cleared_"))
        rows.append([f"{memory}, {label}", window, len(kept), shown(kept), cleared,
                     *[NOTHING] * 3, shown(test), *[NOTHING] * 2])  # fmt: skip
    titles = ("memory", "W", "seeds", "bits per byte", "cleared", "improvement", "p, Holm",
              "on fresh text", "test split", "step time", "bytes carried")  # fmt: skip
    caption = (
        f"Bits per byte on {SPLIT}, documents read from their start; cleared: the memory "
        "emptied before every segment, windows kept. Improvement: over the plain stack with the "
        f"same W, seed by seed. {INTERVAL} p: two-sided paired t-test, corrected "
        "by Holm's method for all improvements. Step time: one core, relative to the first row."
    )
    return plain_table("files_by_window", "Windows and memories", caption, titles, rows)
