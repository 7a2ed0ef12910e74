"""Tables of runs by the entries of tables.toml.

[small_systems]
rows = ["small/*"]                       patterns of keys (records.Entry.key), or tables:
rows = [{runs = "small/Rec*", against = "small/XL*", label = "claim", seeds = [0, 1]}]
against = "small/Slide* W={W} *"         of all rows; {W} is the row's own
columns = ["system", "below = improvement"]     TITLE = MEASURE, or a measure that is the title
sort = "bits"                            by the mean, the best first; else as the archives are
holm_with = "other_table"                whose improvements the correction also counts
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from results_page import records
from results_page.records import Entry, Measure, select

from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.drawing.table import Cell, Table, plain_table

NOTHING = Cell("–")
VERDICTS = "not distinguishable", "yes", "no"
"""By the sign of an interval; 0 if it holds zero."""
DEPENDS = "depends on how states begin"
Times = Mapping[tuple[str, str, str], Sequence[str]]
Spec = Mapping[str, Any]
Entries = Sequence[Entry]


class Row(NamedTuple):
    """The runs of a row, and those that they are compared with."""

    label: str
    entry: Entry
    other: Entry | None


def shown(values: Sequence[float]) -> Cell:
    """Returns the mean of values and half of its 95 % interval; a dash for none."""
    if len(values) < 2:
        return Cell(f"{values[0]:.3f}", tuple(values)) if values else NOTHING
    mean, half = confidence_interval(values)
    return Cell(f"{mean:.3f} ± {half:.3f}", tuple(values))


def holm(tested: Sequence[Sequence[float]]) -> list[float | None]:
    """Returns p of a mean of zero (paired t-test) by Holm's method; None of two values or fewer."""
    from scipy.stats import ttest_1samp  # slow to import

    found = [float(ttest_1samp(some, 0.0).pvalue) if len(some) > 2 else None for some in tested]
    ordered = sorted((p, number) for number, p in enumerate(found) if p is not None)
    largest, corrected = 0.0, list(found)
    for rank, (p, number) in enumerate(ordered):
        largest = corrected[number] = max(largest, min(1.0, p * (len(ordered) - rank)))
    return corrected


def read_times(path: Path) -> Times:
    """Returns measured and published step times by ladder, system and window."""
    if not path.is_file():
        return {}
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {(r["ladder"], r["system"], r["window"]): (r["ratio"], r["paper"]) for r in rows}


def rows_of(spec: Spec, entries: Entries) -> list[Row]:
    """Returns the rows of a table; patterns without runs have none."""
    rows = []
    for line in spec["rows"]:
        one: Mapping[str, Any] = {"runs": line} if isinstance(line, str) else line
        found = select(entries, *_listed(one["runs"]))
        found = found if isinstance(one["runs"], str) else found[:1] and [_joined(found)]
        for entry in (each.of_seeds(one.get("seeds", ())) for each in found):
            against = _listed(one.get("against", spec.get("against", ())))
            others = select(entries, *(each.format(**entry.fields) for each in against))
            is_other = others and others[0].key != entry.key
            rows.append(Row(one.get("label", entry.memory), entry,
                            _joined(others) if is_other else None))  # fmt: skip
    if spec.get("sort") == "bits":
        rows.sort(key=lambda row: float(np.mean(row.entry.values(records.bits))))
    return rows


def _listed(patterns: str | Sequence[str]) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def _joined(found: Sequence[Entry]) -> Entry:
    """Returns one entry with the runs of all: seeds that were trained apart."""
    runs = [run for entry in found for run in entry.runs]
    return found[0]._replace(group=found[0].group._replace(runs=runs))


def build(name: str, specs: dict[str, Any], entries: Entries, times: Times) -> Table | None:
    """Returns a table of tables.toml; None if it has no runs."""
    rows = rows_of(spec := specs[name], entries)
    if not rows:
        return None
    titles: list[str] = []
    columns: list[Any] = []
    for column in spec["columns"]:
        title, _, measure = column.partition(" = ")
        titles.append(title)
        measure, _, against = (measure or title).partition(" against ")
        own = rows
        if against:
            other = next(iter(select(entries, against)), None)
            own = [row._replace(other=row.other and other) for row in rows]
        if measure in PROBABILITIES:
            also = rows_of(specs[spec["holm_with"]], entries) if "holm_with" in spec else []
            columns.append(_probabilities(own, also, PROBABILITIES[measure]))
        else:
            columns.append([_cell(row, measure, rows[0], times) for row in own])
    if "down" in spec:
        titles, columns = _pivot(spec, titles, columns)
    return plain_table(name, name, "", titles, zip(*columns))


def _probabilities(rows: Sequence[Row], also: Sequence[Row], measure: Measure) -> list[Cell]:
    tested = [row.entry.below(row.other, measure) if row.entry.carries else ()
              for row in (*rows, *also)]  # fmt: skip
    corrected = holm(tested)[: len(rows)]
    return [NOTHING if p is None else Cell(f"{p:.3f}", (p,)) for p in corrected]


def _pivot(spec, titles, columns):
    """Returns columns DOWN and one for each value of the next; of several cells the largest."""
    count = spec["down"]
    *keys, values = columns
    across = list(dict.fromkeys(keys[count]))
    found: dict[tuple, dict[str, Cell]] = {}
    for *key, title, cell in zip(*keys, values):
        row = found.setdefault(tuple(key), {})
        if cell.values and (title not in row or np.mean(cell.values) > np.mean(row[title].values)):
            row[title] = cell
    rows = [[*key, *(found[key].get(title, NOTHING) for title in across)] for key in sorted(found)]
    return [*titles[:count], *across], list(zip(*rows))


MEANS: dict[str, Measure] = {
    "bits": records.bits,
    "cleared": records.cleared,
    "on test": records.test,
    "cleared, test": records.test_cleared,
    "accuracy": records.accuracy,
    "in training": records.in_training,
    "cleared, in training": lambda run: records.in_training(run, "cleared_"),
}
DIFFERENCES: dict[str, Measure] = {
    "improvement": records.bits,
    "fresh": records.fresh,
    "fresh, early": records.fresh_early,
    "improvement on test": records.test,
}
PROBABILITIES: dict[str, Measure] = {"p": records.bits, "p fresh": records.fresh}


def _cell(row: Row, measure: str, first: Row, times: Times) -> Any:
    entry, other = row.entry, row.other
    if measure in MEANS:
        return shown(entry.values(MEANS[measure]))
    if measure in DIFFERENCES:
        return shown(entry.below(other, DIFFERENCES[measure]))
    if measure in entry.fields:
        value = entry.fields[measure]
        return f"{value:,}" if measure == "steps" else str(value)
    if measure == "plain":
        both = records.pairs(entry, other) if other else ()
        return shown([value for _, its in both if (value := records.bits(its)) is not None])
    if measure == "mean":
        values = entry.values(records.bits)
        return Cell(f"{np.mean(values):.3f}", values) if values else NOTHING
    if measure == "p alone":
        p = holm([entry.below(other, records.bits)])[0]
        return NOTHING if p is None else Cell(f"{p:.2g}", (p,))
    if measure == "cost of clearing":
        values = entry.values(records.cleared)
        cost = np.mean(values) - np.mean(entry.values(records.bits)) if values else 0.0
        return Cell(f"{cost:.3f}") if values else NOTHING
    if measure == "verdict":
        signs = {_sign(entry.below(other, m)) for m in (records.bits, records.fresh)}
        return VERDICTS[signs.pop()] if len(signs) == 1 else DEPENDS
    ratios = {
        "time": lambda: step_time(entry, times),
        "paper": lambda: times.get(_time_key(entry), ("", ""))[1] or None,
        "of the runs": lambda: records.fastest_step(entry) / records.fastest_step(first.entry),
        "time ratio": lambda: step_time(entry, times) / step_time(other, times),  # type: ignore[operator]
        "bytes ratio": lambda: entry.carried_bytes / other.carried_bytes,  # type: ignore[union-attr]
    }
    if measure in ratios:
        try:
            return Cell(f"{float(ratios[measure]()):.2f}")  # type: ignore[arg-type]
        except (TypeError, AttributeError):  # not measured
            return NOTHING
    return {
        "label": lambda: row.label,
        "memory": lambda: entry.memory,
        "system": lambda: entry.system,
        "optimizer": lambda: str(entry.settings["Trainer.optimizer"]).strip("@()"),
        "seeds": lambda: str(len(entry.runs)),
        "numbers": lambda: " ".join(str(run.seed) for run in entry.runs),
        "bytes": lambda: f"{entry.carried_bytes:,}",
        "task": lambda: entry.group.position.task,
        "segments": lambda: str(entry.group.position.segments),
        "depth": lambda: str(entry.settings.get("Trainer.segments_per_step", 1)),
        "sequences": lambda: str(entry.settings["Evaluation.tokens_per_step"] // entry.fields["N"]),
    }[measure]()


def _sign(values: Sequence[float]) -> int:
    mean, half = confidence_interval(values)
    return (mean > half) - (mean < -half)


def _time_key(entry: Entry) -> tuple[str, str, str]:
    names = entry.ladder, entry.system
    if entry.ladder.startswith("files_"):
        names = "files_windows", entry.memory
    return *names, str(entry.fields["W"])


def step_time(entry: Entry | None, times: Times) -> float | None:
    """Returns the measured time of a step, relative to that of its ladder's plain stack."""
    found = times.get(_time_key(entry)) if entry else None
    return float(found[0]) if found else None
