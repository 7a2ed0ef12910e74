"""Results of entries: means over seeds, paired differences, a figure, and generated text."""

import contextlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import (
    confidence_interval,
    mean_and_spread,
    rounded,
    with_error_bar,
)
from brt.reporting.drawing.table import NOT_EVALUATED, Cell, Table, plain_table
from brt.reporting.papers.published_tables import Quantity
from brt.reporting.runs import Run

DECIMALS = 3
COMPARED = (
    ("bits per token", "bits_per_token"),
    ("state cleared", "cleared_bits_per_token"),
    ("accuracy", "accuracy"),
    ("answers right", "answer_accuracy"),
    ("recall", "recall_accuracy"),
    ("recall, state cleared", "cleared_recall_accuracy"),
)
"""Columns of means: title, and name in an evaluation."""
MAIN = "bits_per_token", "accuracy"
"""Numbers by which entries are compared: the first that was measured."""
DIFFERENCE = "difference from the first"
CAPTION = (
    "Means over seeds ± half of a 95 % interval by Student's t, where there are two seeds or more; "
    "parameters without embeddings. Measured on {source}."
)
PAIRED = (
    " Differences are of runs with the same seed. Their intervals are not corrected for the number "
    "of entries."
)
MOST_TEXTS = 6


def results(entries: Sequence[Group], title: str, split: str | None = None) -> list[Table | Plot]:
    """Returns the table of entries, and a figure if several runs are of one corpus."""
    stores = [entry.runs[0].stores for entry in entries]
    alone = all(len(entry.runs) == 1 for entry in entries) and len({*stores}) == len(stores)
    if not any(held_out(run, None)[0] for entry in entries for run in entry.runs):
        return []
    plot = entry_plot(entries, split)
    return [entry_table(entries, title, split), *([plot] if plot.lines and not alone else [])]


def held_out(run: Run, split: str | None) -> tuple[dict, str]:
    """Returns the measurements on a split, and its name in words; for None the best one.

    That is on a whole split, or else the last one in training.
    """
    for name in [split] if split else ("test", "validation"):
        if name in run.evaluations:
            return run.evaluations[name], f"the whole {name} split of {run.corpus}"
    for record in () if split else reversed(run.records):
        figures = {k.removeprefix("eval/"): v for k, v in record.items() if k.startswith("eval/")}
        if figures:
            part = f"a part of the held-out text of {run.corpus}, at step {record['step']:,}"
            return figures, part
    return {}, ""


def entry_table(entries: Sequence[Group], title: str, split: str | None = None) -> Table:
    """Returns a row for each entry; several also have a column of differences.

    split: of the evaluations; None for the best measurement of each run.
    """
    corpora, measure = [entry.runs[0].corpus for entry in entries], _main(entries, split)
    parameters = Quantity("parameters, millions", "parameters", 2)
    counts = [len(_values(entry, measure, split)) for entry in entries]
    columns = {head: [_mean(entry, name, split) for entry in entries] for head, name in COMPARED}
    columns[DIFFERENCE] = _differences(entries, measure, split)
    columns["seeds"] = [Cell(str(n), (n,) if n else ()) for n in counts]
    columns[parameters.head] = [entry.quantity(parameters) for entry in entries]
    columns["minutes of training"] = [_minutes(entry) for entry in entries]
    shown = {head: cells for head, cells in columns.items() if any(c.values for c in cells)}
    if len({*corpora}) > 1:
        shown["text"] = [Cell(corpus) for corpus in corpora]
    sources = dict.fromkeys(held_out(run, split)[1] for entry in entries for run in entry.runs)
    caption = CAPTION.format(source="; ".join(filter(None, sources)) or "nothing yet")
    caption += PAIRED * (DIFFERENCE in shown)
    rows = zip((entry.name for entry in entries), *shown.values())
    return plain_table("entries", title, caption, ["entry", *shown], rows)


def _main(entries, split):
    return next((m for m in MAIN if any(_values(entry, m, split) for entry in entries)), MAIN[0])


def _values(entry, name, split):
    return [found[name] for run in entry.runs if name in (found := held_out(run, split)[0])]


def _mean(entry: Group, name: str, split: str | None) -> Cell:
    values = tuple(_values(entry, name, split))
    if not values:
        is_measured = any(held_out(run, split)[0] for run in entry.runs)
        return Cell("–" if is_measured else NOT_EVALUATED)  # a model without a state, say
    note = entry.quantity(Quantity(name, name, DECIMALS, split=split or entry.split)).note
    return Cell(with_interval(values), values, note)


def _minutes(entry: Group) -> Cell:
    steps = [(run.series("perf/step_seconds")[1], run.step) for run in entry.runs]
    minutes = tuple(float(np.mean(seconds)) * step / 60 for seconds, step in steps if seconds)
    return Cell(rounded(float(np.mean(minutes)), 1), minutes) if minutes else Cell("–")


def with_interval(values: Sequence[float], sign: str = "") -> str:
    """Returns `2.341 ± 0.012`: a mean and half of its 95 % interval; or a single value."""
    mean, half = confidence_interval(values) if len(values) > 1 else (values[0], None)
    return (sign * (mean > 0) + with_error_bar(mean, half, DECIMALS)).replace("-", "−")


def _differences(entries: Sequence[Group], name: str, split: str | None) -> list[Cell]:
    cells = [Cell("–")]
    for entry in entries[1:]:
        values = paired(entry.runs, entries[0].runs, name, split)
        pairs = "" if len(values) == len(entry.runs) else f"{len(values)} pairs"
        text = with_interval(values, "+") if values else "–"
        cells.append(Cell(text, values, pairs if values else ""))
    return cells


def paired(
    runs: Iterable[Run], others: Iterable[Run], name: str, split: str | None
) -> tuple[float, ...]:
    """Returns run minus other, of a measured number, for each seed that both have.

    Both are measured on the same part of the same corpus.
    """

    def by_seed(of: Iterable[Run]) -> dict:
        found = [(run, *held_out(run, split)) for run in of]
        return {
            (run.seed, run.stores, source): figures[name]
            for run, figures, source in found
            if name in figures
        }

    first, second = by_seed(runs), by_seed(others)
    return tuple(first[key] - second[key] for key in first if key in second)


def entry_plot(entries: Sequence[Group], split: str | None = None) -> Plot:
    """Returns the entries' bits per token, along a sweep's one number or as rows."""
    labels = [entry.name for entry in entries]
    label, numbers = one_number(labels)
    measure, lines = _main(entries, split), []
    for state, name in (("state kept", measure), ("state cleared", f"cleared_{measure}")):
        values = (_values(entry, name, split) for entry in entries)
        found = sorted((x, of_x) for x, of_x in zip(numbers or itertools.count(1), values) if of_x)
        if not found:
            continue
        means, spreads = zip(*(mean_and_spread(of_x) for _, of_x in found))
        errors = [(spread or 0.0) / len(of_x) ** 0.5 for spread, (_, of_x) in zip(spreads, found)]
        style = "points" if numbers else "marks"
        lines.append(Line(state, [x for x, _ in found], means, style, errors=errors))
        dots = [(x, value) for x, of_x in found for value in of_x]
        if len(dots) > len(found):
            x, y = zip(*dots)
            lines.append(Line(state, x, y, "dots", state="each seed"))
    caption = "Means over seeds with their standard errors, and each seed, small."
    rows = () if numbers else tuple(labels)
    return Plot("sweep", "Entries", caption, label, measure.replace("_", " "), lines, rows=rows)


def one_number(labels: Sequence[str]) -> tuple[str, list[float]]:
    """Returns the one setting that all labels bind to numbers, and these numbers."""
    pairs = [label.split("=", 1) for label in labels]
    with contextlib.suppress(ValueError):
        ((name,), values) = {pair[0] for pair in pairs}, [float(pair[-1]) for pair in pairs]
        return name, values
    return "", []


def generated(runs: Sequence[Run]) -> list[tuple[str, Any]]:
    """Returns the last text that each of the first runs generated, with its prompt in grey."""
    found = [(run.name, _sample(run)) for run in runs[:MOST_TEXTS]]
    texts = [
        {"title": f"{name}, generated after the grey prompt", "parts": parts}
        for name, parts in found
        if parts
    ]
    return [("texts", texts)] if texts else []


def _sample(run):
    path = run.folder / "samples.jsonl"
    if not path.is_file():
        return None
    try:
        last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        return [(str(last["prompt"]), "quiet"), (str(last["text"]), "")]
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        run.problems.append(f"{path} was left out: it was cut short ({problem})")
        return None
