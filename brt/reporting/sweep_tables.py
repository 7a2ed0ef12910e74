"""The table and the figure of a sweep: means over seeds, and differences paired by seed."""

import contextlib
from collections.abc import Iterable, Sequence

import numpy as np

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import confidence_interval, rounded, rounded_up
from brt.reporting.drawing.table import Cell, Column, Table
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.reading import Quantity
from brt.reporting.runs import Run
from brt.reporting.sweep_folder import Entry, seed_of

DECIMALS = 3
COMPARED = (
    ("bits per token", "bits_per_token"),
    ("state cleared", "cleared_bits_per_token"),
    ("accuracy", "accuracy"),
)
"""Columns of means: title, and name in an evaluation."""
DIFFER = ("bits_per_token", "accuracy")
"""Those of which the difference from the first entry is shown, of the first that was measured."""
CAPTION = (
    "Means over seeds ± half of a 95 % interval by Student's t, where there are two seeds or more; "
    "parameters without embeddings."
)
PAIRED = (
    "Differences are entry minus entry 1, of runs with the same seed. Their intervals are not "
    "corrected for the number of entries."
)


def entry_table(entries: Sequence[Entry], title: str, split: str | None = None) -> Table:
    """Returns a row for each entry; a column of differences if there are several.

    split: of the evaluations; None for the one that tables report.
    """
    groups = [Group(entry.runs, paper_position(entry.runs[0]), "") for entry in entries]
    splits = [split or group.split for group in groups]
    columns = []
    for head, name in COMPARED:
        cells = [_mean(group, name, of) for group, of in zip(groups, splits)]
        if any(cell.values for cell in cells):
            columns.append((head, cells))
    measured = [name for name in DIFFER if any(name in found for found in _all(groups, splits))]
    if len(entries) > 1 and measured:
        columns.append(("difference from 1", _differences(groups, splits, measured[0])))
    columns.append(("seeds", [_seeds(group, of) for group, of in zip(groups, splits)]))
    parameters = Quantity("parameters, millions", "parameters", 2)
    columns.append((parameters.head, [group.quantity(parameters) for group in groups]))
    if len({(of, group.runs[0].corpus) for group, of in zip(groups, splits)}) > 1:
        texts = [Cell(f"{group.runs[0].corpus}, {of}") for group, of in zip(groups, splits)]
        columns.append(("text", texts))
    heads = [Column("", head) for head in ("", "entry", *(head for head, _ in columns))]
    rows = [
        [Cell(str(number + 1)), Cell(entry.label), *(cells[number] for _, cells in columns)]
        for number, entry in enumerate(entries)
    ]
    has_differences = any(head == "difference from 1" for head, _ in columns)
    caption = f"{CAPTION} {PAIRED}" if has_differences else CAPTION
    return Table("entries", title, caption, heads, rows)


def _all(groups, splits):
    return [found for group, of in zip(groups, splits) for found in group.evaluations(of)]


def _seeds(group: Group, split: str) -> Cell:
    count = len(group.evaluations(split))
    return Cell(str(count), (count,) if count else ())


def _mean(group: Group, name: str, split: str) -> Cell:
    cell = group.quantity(Quantity(name, name, DECIMALS, split=split))
    if cell.values:
        return cell._replace(text=with_interval(cell.values))
    return Cell("–") if group.evaluations(split) else cell  # a model without a state, say


def with_interval(values: Sequence[float], sign: str = "") -> str:
    """Returns `2.341 ± 0.012`: a mean and half of its 95 % interval; the value of a single one."""
    if len(values) < 2:
        return _signed(values[0], sign)
    mean, half = confidence_interval(values)
    return f"{_signed(mean, sign)} ± {rounded_up(half, DECIMALS)}"


def _signed(value: float, sign: str) -> str:
    text = rounded(value, DECIMALS)
    return (sign + text if value > 0 else text).replace("-", "−")


def _differences(groups: Sequence[Group], splits: Sequence[str], name: str) -> list[Cell]:
    cells = [Cell("–")]
    for group, split in zip(groups[1:], splits[1:]):
        values = paired(group.runs, groups[0].runs, name, split) if split == splits[0] else ()
        pairs = "" if len(values) == len(group.evaluations(split)) else f"{len(values)} pairs"
        text = with_interval(values, "+") if values else "–"
        cells.append(Cell(text, values, pairs if values else ""))
    return cells


def paired(runs: Iterable[Run], others: Iterable[Run], name: str, split: str) -> tuple[float, ...]:
    """Returns run minus other, of a number of their evaluations, for each seed that both have.

    Only of runs on the same corpus.
    """

    def by_seed(of: Iterable[Run]) -> dict:
        return {
            (seed_of(run), run.settings.get("Corpus.store")): run.evaluations[split][name]
            for run in of
            if name in run.evaluations.get(split, {})
        }

    first, second = by_seed(runs), by_seed(others)
    return tuple(first[key] - second[key] for key in first if key in second)


def entry_plot(entries: Sequence[Entry], split: str | None = None) -> Plot:
    """Returns the entries' bits per token: along the one number that a sweep varies, or as rows."""
    labels = [entry.label for entry in entries]
    label, numbers = one_number(labels)
    at = numbers or list(range(1, len(entries) + 1))
    accuracy = not any(_values(entry, "bits_per_token", split) for entry in entries)
    measure = "accuracy" if accuracy else "bits_per_token"
    lines = []
    for colour, (name, of) in enumerate(
        (("state kept", measure), ("state cleared", f"cleared_{measure}"))
    ):
        values = [(x, _values(entry, of, split)) for x, entry in zip(at, entries)]
        points = sorted((x, float(np.mean(of_x)), error(of_x)) for x, of_x in values if of_x)
        if not points:
            continue
        positions, means, errors = zip(*points, strict=True)
        style = "points" if numbers else "marks"
        lines.append(
            Line(name, positions, means, style, errors=errors if numbers else None, colour=colour)
        )
        if not numbers and any(len(of_x) > 1 for _, of_x in values):
            each = [(x, value) for x, of_x in values for value in of_x]
            x_each, y_each = zip(*each, strict=True)
            seeds = Line(f"{name}, each seed", x_each, y_each, "dots", colour=colour, legend="")
            lines.append(seeds)
    caption = (
        "Means over seeds; bands are their standard errors."
        if numbers
        else "Means over seeds, large, and each seed."
    )
    rows = () if numbers else tuple(labels)
    return Plot("sweep", "Entries", caption, label, measure.replace("_", " "), lines, rows=rows)


def _values(entry: Entry, name: str, split: str | None) -> list[float]:
    group = Group(entry.runs, paper_position(entry.runs[0]), "")
    return [found[name] for found in group.evaluations(split) if name in found]


def one_number(labels: Sequence[str]) -> tuple[str, list[float]]:
    """Returns the one setting that all labels bind to numbers, and these; or "" and none."""
    pairs = [label.split("=", 1) for label in labels]
    with contextlib.suppress(ValueError):
        ((name,), values) = {pair[0] for pair in pairs}, [float(pair[-1]) for pair in pairs]
        return name, values
    return "", []


def error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
