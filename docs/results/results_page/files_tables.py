"""Tables and figures of the experiment "files as documents" (plan.md)."""

from collections.abc import Mapping, Sequence

import numpy as np
from results_page.files_entries import (
    HALF_RATE,
    LONG,
    OTHER_RATES,
    RATES,
    WINDOWS,
    Comparison,
    Entry,
    better_rates,
    carried_bytes,
    corrected_p,
    entries_of,
    longer_entries,
    mean_names_loss,
    of_seeds,
    plain_stacks,
    planned_rates,
    rate,
    step_time,
)
from results_page.files_rules import rules_table
from results_page.gain_tables import INTERVAL, NOTHING, shown
from results_page.gains import SPLIT, TEST, fresh_bits, known, paired, regime, test_bits
from results_page.memory_names import WINDOW
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table


def files_tables(ladders: Mapping[str, Sequence[Group]], times: StepTimes) -> list[Table]:
    """Returns `files_by_rate`, `files_by_window`, `files_as_planned`, `files_rules`,
    `files_rate_after_training`, as far as the runs are there.
    """
    rates = entries_of(ladders.get(RATES, ()))
    tables = [_rates_table(rates)] if rates else []
    planned, better = planned_rates(ladders), better_rates(ladders)
    if planned.entries:
        longer = longer_entries(better, ladders.get(LONG, ()))
        tables += [
            _windows_table("files_by_window", better, longer, times),
            _windows_table("files_as_planned", planned, longer_entries(planned), times),
            rules_table(rates, planned, better, times),
        ]
        if OTHER_RATES in ladders:
            every = (ladders.get(name, ()) for name in (WINDOWS, HALF_RATE, OTHER_RATES))
            tables.append(_trained_rates_table([e for own in every for e in entries_of(own)]))
    return tables


def files_plots(ladders: Mapping[str, Sequence[Group]], times: StepTimes) -> list[Plot]:
    """Returns bits against step time, and losses of names by the distance of the last one."""
    entries = better_rates(ladders).entries
    by_memory: dict[str, dict[float, float]] = {}
    for entry in entries:
        if (time := step_time(entry, times)) is not None:
            by_memory.setdefault(entry.memory, {})[time] = float(np.mean(known(entry.group)))
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
            f"Mean of the seeds on {SPLIT}, for windows of 8, 32 and 128 bytes along each line. "
            "Step time: one core, relative to Slide with W = 8.",
            "step time",
            "bits per byte",
            time_lines,
        ),
        Plot(
            "files_names",
            "Loss on words, by the distance of their last occurrence",
            f"Bits per byte of words that occurred before in the document, on {SPLIT}, by the "
            "bytes since then (320: 320 to 999, and so on). Mean of the seeds.",
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
        optimizer = str(settings["Trainer.optimizer"]).strip("@()")
        rows.append((entry.memory != WINDOW, entry.memory, optimizer, rate(entry.group),
                     shown(known(entry.group))))  # fmt: skip
    rows.sort(key=lambda row: row[:-1])
    titles = "memory", "optimizer", "rate", "bits per byte"
    shared = regime(entries[0].group)
    caption = (
        f"Bits per byte on {SPLIT} after {shared.steps:,} steps of {shared.tokens_per_step:,} "
        f"bytes, W = {shared.window}, one seed."
    )
    return plain_table("files_by_rate", "Rates", caption, titles, [row[1:] for row in rows])


def _trained_rates_table(entries: Sequence[Entry]) -> Table:
    """Returns the loss of each memory by its rate, at the shortest window and the shared seeds."""
    shortest = min(entry.window for entry in entries)
    found: dict[str, dict[float, Group]] = {}
    for entry in entries:
        if entry.window == shortest:
            found.setdefault(entry.memory, {})[rate(entry.group)] = entry.group
    every = [group for groups in found.values() for group in groups.values()]
    seeds = set.intersection(*({r.settings["Trainer.seed"] for r in g.runs} for g in every))
    rates = sorted({rate for groups in found.values() for rate in groups})
    rows = []
    for memory, groups in found.items():
        bits = {r: known(of_seeds(group, seeds)) for r, group in groups.items()}
        cells = [Cell(f"{np.mean(bits[r]):.3f}") if r in bits else NOTHING for r in rates]
        rows.append([memory, *cells])
    caption = (
        f"Bits per byte on {SPLIT} after training, W = {shortest}, mean over the seeds that all "
        f"have: {', '.join(map(str, sorted(seeds)))}."
    )
    titles = ("memory", *(f"rate {rate:g}" for rate in rates))
    return plain_table("files_rate_after_training", "Rates after training", caption, titles, rows)


def _windows_table(
    name: str, comparison: Comparison, longer: Sequence[tuple[str, Entry]], times: StepTimes
) -> Table:
    entries = comparison.entries
    plain = plain_stacks(entries)
    gained = [paired(e.group, plain[e.window]) if e.memory != WINDOW else () for e in entries]
    corrected = corrected_p(gained)
    rows = []
    for number, entry in enumerate(entries):
        slide = plain[entry.window]
        fresh, gained_on_test = (
            paired(entry.group, slide, measure) if entry.memory != WINDOW else ()
            for measure in (fresh_bits, test_bits)
        )
        p = Cell(f"{corrected[number]:.3f}") if number in corrected else NOTHING
        time = step_time(entry, times)
        kept, cleared = known(entry.group), known(entry.group, "cleared_")
        rows.append([entry.memory, entry.window, f"{rate(entry.group):g}", shown(kept),
                     shown(cleared), shown(gained[number]), p, shown(fresh),
                     shown(known(entry.group, split=TEST)), shown(gained_on_test),
                     NOTHING if time is None else Cell(f"{time:.2f}"),
                     f"{carried_bytes(entry):,}"])  # fmt: skip
    for label, (memory, window, group) in longer:
        kept, test = known(group), known(group, split=TEST)
        cleared = known(group, "cleared_")
        rows.append([f"{memory}, {label}", window, f"{rate(group):g}", shown(kept), shown(cleared),
                     *[NOTHING] * 3, shown(test), *[NOTHING] * 3])  # fmt: skip
    titles = ("memory", "W", "rate", "bits per byte", "cleared", "improvement", "p, Holm",
              "on fresh text", "test split", "on test split", "step time",
              "bytes carried")  # fmt: skip
    seeds = max(len(known(entry.group)) for entry in entries)
    caption = (
        f"Bits per byte on {SPLIT}, {seeds} seeds, documents read from their start; cleared: the "
        "memory emptied before every segment, windows kept. Improvement: over the plain stack with "
        f"the same W, seed by seed. {INTERVAL} p: two-sided paired t-test, corrected "
        "by Holm's method for all improvements. Step time: one core, relative to the first row."
    )
    return plain_table(name, "Windows and memories", caption, titles, rows)
