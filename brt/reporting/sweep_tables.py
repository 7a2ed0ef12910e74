"""Results of entries: a table of means over seeds and of paired differences, a figure, or cards."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import confidence_interval, rounded, rounded_up
from brt.reporting.drawing.table import NOT_EVALUATED, Cell, Table, plain_table
from brt.reporting.entries import Entry, seed_of
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.reading import Quantity
from brt.reporting.runs import Run

DECIMALS = 3
COMPARED = (
    ("bits per token", "bits_per_token"),
    ("state cleared", "cleared_bits_per_token"),
    ("accuracy", "accuracy"),
)
"""Columns of means: title, and name in an evaluation."""
DIFFER = ("bits_per_token", "accuracy")
"""Those of which the difference from the first entry is shown, of the first that was measured."""
DIFFERENCE = "difference from the first"
CAPTION = (
    "Means over seeds ± half of a 95 % interval by Student's t, where there are two seeds or more; "
    "parameters without embeddings. Measured on {source}."
)
PAIRED = (
    " Differences are of runs with the same seed. Their intervals are not corrected for the number "
    "of entries."
)
MOST_CARDS = 6
FIGURES = (
    ("recall_accuracy", "facts recalled", "{:.1%}"),
    ("answer_accuracy", "answers right", "{:.1%}"),
    ("bits_per_byte", "bits per byte", "{:.3f}"),
    ("bits_per_token", "bits per token", "{:.3f}"),
)
"""Numbers of a card, of which it shows the first that was measured."""


def results(entries: Sequence[Entry], title: str, split: str | None = None) -> list[Table | Plot]:
    """Returns the table and the figure of entries; none for what `cards` shows better."""
    stores = [entry.runs[0].settings.get("Corpus.store") for entry in entries]
    alone = all(len(entry.runs) == 1 for entry in entries) and len({*stores}) == len(stores)
    if alone and len(entries) <= MOST_CARDS:
        return []
    if not any(held_out(run, None)[0] for entry in entries for run in entry.runs):
        return []
    return [entry_table(entries, title, split), entry_plot(entries, split)]


def held_out(run: Run, split: str | None) -> tuple[dict, str]:
    """Returns what was measured on a split, and its name in words; of None the best measurement.

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


def entry_table(entries: Sequence[Entry], title: str, split: str | None = None) -> Table:
    """Returns a row for each entry; a column of differences if there are several.

    split: of the evaluations; None for the best measurement of each run.
    """
    groups = [Group(entry.runs, paper_position(entry.runs[0]), "") for entry in entries]
    columns = []
    for head, name in COMPARED:
        cells = [_mean(group, name, split) for group in groups]
        if any(cell.values for cell in cells):
            columns.append((head, cells))
    measured = [of for of in DIFFER if any(_values(group.runs, of, split) for group in groups)]
    if len(entries) > 1 and measured:
        columns.append((DIFFERENCE, _differences(entries, measured[0], split)))
    counts = [len(_values(group.runs, (measured or DIFFER)[0], split)) for group in groups]
    columns.append(("seeds", [Cell(str(n), (n,) if n else ()) for n in counts]))
    parameters = Quantity("parameters, millions", "parameters", 2)
    columns.append((parameters.head, [group.quantity(parameters) for group in groups]))
    minutes = [_minutes(entry.runs) for entry in entries]
    if any(cell.values for cell in minutes):
        columns.append(("minutes of training", minutes))
    if len({group.runs[0].corpus for group in groups}) > 1:
        columns.append(("text", [Cell(group.runs[0].corpus) for group in groups]))
    sources = [held_out(run, split)[1] for group in groups for run in group.runs]
    source = "; ".join(filter(None, dict.fromkeys(sources))) or "nothing yet"
    caption = CAPTION.format(source=source)
    caption += PAIRED * any(head == DIFFERENCE for head, _ in columns)
    rows = [
        [entry.label, *(cells[number] for _, cells in columns)]
        for number, entry in enumerate(entries)
    ]
    return plain_table("entries", title, caption, ["entry", *(head for head, _ in columns)], rows)


def _values(runs, name, split):
    return [found[name] for run in runs if name in (found := held_out(run, split)[0])]


def _mean(group: Group, name: str, split: str | None) -> Cell:
    values = tuple(_values(group.runs, name, split))
    if not values:
        is_measured = any(held_out(run, split)[0] for run in group.runs)
        return Cell("–" if is_measured else NOT_EVALUATED)  # a model without a state, say
    of = split or group.split
    note = group.quantity(Quantity(name, name, DECIMALS, split=of)).note
    return Cell(with_interval(values), values, note)


def _minutes(runs: Sequence[Run]) -> Cell:
    steps = [(run.series("perf/step_seconds")[1], run.step) for run in runs]
    minutes = tuple(float(np.mean(seconds)) * step / 60 for seconds, step in steps if seconds)
    return Cell(rounded(float(np.mean(minutes)), 1), minutes) if minutes else Cell("–")


def with_interval(values: Sequence[float], sign: str = "") -> str:
    """Returns `2.341 ± 0.012`: a mean and half of its 95 % interval; the value of a single one."""
    if len(values) < 2:
        return _signed(values[0], sign)
    mean, half = confidence_interval(values)
    return f"{_signed(mean, sign)} ± {rounded_up(half, DECIMALS)}"


def _signed(value: float, sign: str) -> str:
    text = rounded(value, DECIMALS)
    return (sign + text if value > 0 else text).replace("-", "−")


def _differences(entries: Sequence[Entry], name: str, split: str | None) -> list[Cell]:
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

    Only of runs on the same corpus and the same part of it.
    """

    def by_seed(of: Iterable[Run]) -> dict:
        found = [(run, *held_out(run, split)) for run in of]
        return {
            (seed_of(run), run.settings.get("Corpus.store"), source): figures[name]
            for run, figures, source in found
            if name in figures
        }

    first, second = by_seed(runs), by_seed(others)
    return tuple(first[key] - second[key] for key in first if key in second)


def entry_plot(entries: Sequence[Entry], split: str | None = None) -> Plot:
    """Returns the entries' bits per token: along the one number that a sweep varies, or as rows."""
    labels = [entry.label for entry in entries]
    label, numbers = one_number(labels)
    at = numbers or list(range(1, len(entries) + 1))
    measured = [name for name in DIFFER if any(_values(e.runs, name, split) for e in entries)]
    measure = (measured or DIFFER)[0]
    lines = []
    for state, name in (("state kept", measure), ("state cleared", f"cleared_{measure}")):
        values = [(x, _values(entry.runs, name, split)) for x, entry in zip(at, entries)]
        points = sorted((x, float(np.mean(of_x)), error(of_x)) for x, of_x in values if of_x)
        if not points:
            continue
        positions, means, errors = zip(*points, strict=True)
        lines.append(Line(state, positions, means, "points" if numbers else "marks", errors=errors))
        if any(len(of_x) > 1 for _, of_x in values):
            x, y = zip(*((x, value) for x, of_x in values for value in of_x), strict=True)
            lines.append(Line(state, x, y, "dots", state="each seed"))
    caption = "Means over seeds with their standard errors, and each seed, small."
    rows = () if numbers else tuple(labels)
    return Plot("sweep", "Entries", caption, label, measure.replace("_", " "), lines, rows=rows)


def one_number(labels: Sequence[str]) -> tuple[str, list[float]]:
    """Returns the one setting that all labels bind to numbers, and these; or "" and none."""
    pairs = [label.split("=", 1) for label in labels]
    with contextlib.suppress(ValueError):
        ((name,), values) = {pair[0] for pair in pairs}, [float(pair[-1]) for pair in pairs]
        return name, values
    return "", []


def error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def cards(runs: Sequence[Run], with_figures: bool = True) -> list[tuple[str, Any]]:
    """Returns cards of runs: the main number with the state kept and cleared, generated text."""
    found = [_card(run, with_figures) for run in runs[:MOST_CARDS]]
    shown = [card for card in found if card["figures"] or card["sample"]]
    return [("cards", shown)] if shown else []


def _card(run, with_figures):
    found, source = held_out(run, None) if with_figures else ({}, "")
    known = [entry for entry in FIGURES if entry[0] in found][:1]
    states = ("state kept", ""), ("state cleared", "cleared_")
    figures = [
        (
            label,
            [(form.format(found[c + name]), state) for state, c in states if c + name in found],
        )
        for name, label, form in known
    ]
    source = f"{source[:1].upper()}{source[1:]}."
    return {"name": run.name, "source": source, "figures": figures, "sample": _sample(run)}


def _sample(run):
    """Returns prompt and text of the last of samples.jsonl, of `brt.generate --save_text`."""
    path = run.folder / "samples.jsonl"
    if not path.is_file():
        return None
    try:
        last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        return str(last["prompt"]), str(last["text"])
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        run.problems.append(f"{path} was left out: it was cut short ({problem})")
        return None
