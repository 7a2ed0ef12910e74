"""Tables and figures of the experiment "files as documents" (plan.md)."""

from collections.abc import Mapping, Sequence

import numpy as np
from results_page.files_entries import (
    CONFIRMATION,
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
    improvements,
    longer_entries,
    memories_at,
    of_seeds,
    plain_stacks,
    planned_rates,
    rate,
    step_time,
)
from results_page.files_rules import rules_table
from results_page.gain_tables import INTERVAL, NOTHING, probability, shown
from results_page.gains import SPLIT, TEST, bits, fresh_bits, known, paired, regime, test_bits
from results_page.memory_names import WINDOW
from results_page.significance import p_value
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, plain_table


def files_tables(ladders: Mapping[str, Sequence[Group]], times: StepTimes) -> list[Table]:
    """Returns `files_by_rate`, `files_by_window`, `files_as_planned`, `files_rules`,
    `files_rate_after_training`, `files_across`, `files_confirmed`, as far as the runs are there.
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
            *_across_table(better, times),
            *_confirmation_table(better, ladders),
        ]
        if OTHER_RATES in ladders:
            every = (ladders.get(name, ()) for name in (WINDOWS, HALF_RATE, OTHER_RATES))
            tables.append(_trained_rates_table([e for own in every for e in entries_of(own)]))
    return tables


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
    gained = improvements(entries)
    corrected = corrected_p(gained)
    rows = []
    for number, entry in enumerate(entries):
        slide = plain[entry.window]
        fresh, gained_on_test = (
            paired(entry.group, slide, measure) if entry.memory != WINDOW else ()
            for measure in (fresh_bits, test_bits)
        )
        p = probability(corrected.get(number))
        time = step_time(entry, times)
        kept, cleared = known(entry.group), known(entry.group, "cleared_")
        rows.append([entry.memory, entry.window, f"{rate(entry.group):g}", shown(kept),
                     shown(cleared), shown(gained[number]), p, shown(fresh),
                     shown(known(entry.group, split=TEST)), shown(gained_on_test),
                     *(NOTHING if ratio is None else Cell(f"{ratio:.2f}")
                       for ratio in (time, _recorded_time(entry, entries[0]))),
                     f"{carried_bytes(entry):,}"])  # fmt: skip
    for label, (memory, window, group) in longer:
        kept, test = known(group), known(group, split=TEST)
        cleared = known(group, "cleared_")
        rows.append([f"{memory}, {label}", window, f"{rate(group):g}", shown(kept), shown(cleared),
                     *[NOTHING] * 3, shown(test), *[NOTHING] * 4])  # fmt: skip
    titles = ("memory", "W", "rate", "bits per byte", "cleared", "improvement", "p, Holm",
              "on fresh text", "test split", "on test split", "step time", "of the runs",
              "bytes carried")  # fmt: skip
    seeds = max(len(known(entry.group)) for entry in entries)
    caption = (
        f"Bits per byte on {SPLIT}, {seeds} seeds, documents read from their start; cleared: the "
        "memory emptied before every segment, windows kept. Improvement: over the plain stack with "
        f"the same W, seed by seed. {INTERVAL} p: two-sided paired t-test, corrected "
        "by Holm's method for all improvements. Step time: one core, relative to the first row, 41 "
        "rounds in turn, not archived. Of the runs: the same from their records, the fastest "
        "report of all seeds, with other work on the machine."
    )
    return plain_table(name, "Windows and memories", caption, titles, rows)


def _recorded_time(entry: Entry, first: Entry) -> float | None:
    fastest, its = _fastest(entry.group), _fastest(first.group)
    return fastest / its if fastest and its else None


def _fastest(group: Group) -> float | None:
    """Returns the seconds of a step in the fastest report of all runs."""
    seconds = [value for run in group.runs for value in run.series("perf/step_seconds")[1]]
    return min(seconds, default=None)


def _across_table(better: Comparison, times: StepTimes) -> list[Table]:
    """Returns comparisons of different windows, or of different numbers of steps."""
    entries = better.entries
    plain = {entry.window: entry for entry in entries if entry.memory == WINDOW}
    shortest, *larger = sorted(plain)
    memories = [entry for entry in entries if entry.window == shortest and entry.memory != WINDOW]
    both = [(plain[window], plain[shortest], "") for window in larger]
    both += [(memory, plain[window], "") for memory in memories for window in larger]
    if better.longer:
        (label, longer), *_ = longer_entries(better)
        both += [(memory, longer, f", {label}") for memory in memories]
    rows = []
    for entry, other, label in both:
        of_entry, of_other = (f"{one.memory}, W = {one.window}" for one in (entry, other))
        measures = (bits, fresh_bits, test_bits) if not label else (bits, None, test_bits)
        numbers = (paired(entry.group, other.group, m) if m else () for m in measures)
        time, its = step_time(entry, times), step_time(other, times)
        ratios = (carried_bytes(entry) / carried_bytes(other), time and its and time / its)
        rows.append([f"{of_entry}, below {of_other}{label}", *map(shown, numbers),
                     *(Cell(f"{ratio:.2f}") if ratio and not label else NOTHING
                       for ratio in ratios)])  # fmt: skip
    titles = ("claim", "improvement", "on fresh text", "on test split", "bytes", "step time")
    caption = (
        f"Bits per byte on {SPLIT}, seed by seed. {INTERVAL} No correction for their number. Bytes "
        "and step time: carried by the first, relative to the second."
    )
    return [plain_table("files_across", "Across windows", caption, titles, rows)] if rows else []


def _confirmation_table(better: Comparison, ladders: Mapping[str, Sequence[Group]]) -> list[Table]:
    """Returns the improvements at the shortest window without the seeds that chose the rates.

    And of the ladder `CONFIRMATION`, alone and together with all seeds.
    """
    others = [entry.group for entry in entries_of(ladders.get(OTHER_RATES, ()))]
    chose = {run.settings["Trainer.seed"] for group in others for run in group.runs}
    new = {entry[:2]: entry.group for entry in entries_of(ladders.get(CONFIRMATION, ()))}
    rows = []
    for entry in memories_at(better.entries, min(plain_stacks(better.entries))):
        slide = plain_stacks(better.entries)[entry.window]
        rest = {run.settings["Trainer.seed"] for run in entry.group.runs} - chose
        pairs = [
            ("all of the comparison", entry.group, slide),
            ("that chose no rate", of_seeds(entry.group, rest), of_seeds(slide, rest)),
        ]
        if entry[:2] in new and (WINDOW, entry.window) in new:
            own, plain = new[entry[:2]], new[WINDOW, entry.window]
            pairs += [
                ("trained afterwards", own, plain),
                ("all", _joined(entry.group, own), _joined(slide, plain)),
            ]
        for label, group, other in pairs if chose else ():
            seeds = sorted(run.settings["Trainer.seed"] for run in group.runs)
            gained = paired(group, other)
            p = p_value(gained) if len(gained) > 2 else None
            rows.append([entry.memory, label, " ".join(map(str, seeds)), shown(gained),
                         NOTHING if p is None else Cell(f"{p:.2g}"),
                         shown(paired(group, other, fresh_bits))])  # fmt: skip
    titles = ("memory", "seeds", "numbers", "improvement", "p", "on fresh text")
    window = min(plain_stacks(better.entries))
    chosen = " and ".join(map(str, sorted(chose)))
    caption = (
        f"Bits per byte on {SPLIT}, W = {window}. {INTERVAL} p: paired t-test, not corrected. The "
        f"rates were chosen by the loss on {SPLIT} of seeds {chosen}."
    )
    return [plain_table("files_confirmed", "Which seeds", caption, titles, rows)] if rows else []


def _joined(group: Group, other: Group) -> Group:
    return group._replace(runs=[*group.runs, *other.runs])
