"""Answers to questions by each memory: recall of pairs (MQAR) and facts in text (BABILong).

Tables and figures of tables.toml with the key `answers`, ladders with the study `answers`:

    memories = ["RMT"]               selects and orders; {RMT = 4104} also selects the bytes
    names = {"board/window (Slide)" = "full attention"}     replaces LADDER/MEMORY
    columns = ["TITLE = SERIES | X"]     share answered by each run at x of a series of the study,
                                         a number of the study, or a measure of `_cell`

[rates.LADDER]: the rate of a memory that has several. of = "TABLE": a figure takes its keys too.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from results_page.records import accuracy
from results_page.tables import NOTHING, Entries, Spec, Times

from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.runs import Run

BY_DISTANCE = "state kept, by distance"
ANSWERED = 0.9


class Recall(NamedTuple):
    """The runs of one memory and number of carried bytes, by seed."""

    memory: str
    size: int
    runs: list[Run]

    def curve(self, run: Run, name: str) -> dict[float, float]:
        found = run.studies.get("answers", {}).get("series", ())
        return next((dict(zip(s["x"], s["y"])) for s in found if s["name"] == name), {})

    def shares(self, measure: str) -> list[float | None]:
        """Returns the values of a column, one a run."""
        if measure == "as in training":
            return [accuracy(run) for run in self.runs]
        series, _, x = measure.partition(" | ")
        if x:
            return [self.curve(run, series).get(float(x)) for run in self.runs]
        return [run.studies.get("answers", {}).get("numbers", {}).get(series) for run in self.runs]

    def best(self, measure: str) -> Run:
        """Returns the run with the largest share."""
        shares = [-1.0 if share is None else share for share in self.shares(measure)]
        return self.runs[shares.index(max(shares))]


def recalls(entries: Entries, spec: Spec) -> list[Recall]:
    """Returns the memories of ladders by name and carried bytes, each at its rate."""
    found: dict[tuple[str, int], list[Run]] = {}
    for entry in entries:
        studies = [run.studies["answers"] for run in entry.runs if "answers" in run.studies]
        rate = spec["rates"].get(entry.ladder, {}).get(entry.memory)
        has_rate = rate is None or entry.fields["rate"] == f"{rate:g}"
        if entry.ladder in spec["answers"] and studies and has_rate:
            names, size = spec.get("names", {}), int(studies[0]["numbers"]["carried_bytes"])
            name = names.get(f"{entry.ladder}/{entry.memory}", entry.memory)
            found.setdefault((name, size), []).extend(entry.runs)
    chosen = spec.get("memories", sorted({memory for memory, _ in found}))
    sizes, order = chosen if isinstance(chosen, Mapping) else {}, [*chosen]
    keys = [key for key in found if key[0] in order and sizes.get(key[0], key[1]) == key[1]]
    keys.sort(key=lambda key: (order.index(key[0]), key[1]))
    return [Recall(*key, sorted(found[key], key=lambda run: run.seed)) for key in keys]


def by_run(values: Sequence[float | None]) -> Cell:
    """Returns the share of each run, a dash for None."""
    known = tuple(value for value in values if value is not None)
    shares = [NOTHING.text if value is None else f"{value:.2f}" for value in values]
    return Cell(" / ".join(shares), known) if known else NOTHING


def answers_table(name: str, spec: Spec, entries: Entries, times: Times) -> Table | None:
    """Returns one row a memory and size; None without runs."""
    found = recalls(entries, spec)
    if not found:
        return None
    titles, measures = zip(*(c.partition(" = ")[::2] for c in spec["columns"]))
    measures = tuple(measure or title for title, measure in zip(titles, measures))
    rows: list[list[Any]] = [spec["first_row"]] if "first_row" in spec else []
    for recall in found:
        cells = [_cell(recall, measure, spec, times) for measure in measures]
        rows.append([recall.memory, f"{recall.size:,}", *cells])
    return plain_table(name, name, "", ["memory", "bytes carried", *titles], rows)


def _cell(recall: Recall, measure: str, spec: Spec, times: Times) -> Cell | str:
    if measure == "time":
        return times.get(("board", recall.memory, ""), ["–"])[0]
    if measure == "reach":  # of the best run: where it still answers most
        points = recall.curve(recall.best(spec["best"]), BY_DISTANCE).items()
        near = itertools.takewhile(lambda point: point[1] >= ANSWERED, points)
        return f"{max((x for x, _ in near), default=0):,.0f}"
    if measure.startswith("pairs at "):  # of the best run: of how many it answers most
        best, length = recall.best(spec["best"]), float(measure.removeprefix("pairs at "))
        curves = {pairs: recall.curve(best, f"state kept, {pairs} facts, by length")
                  for pairs in range(2, 65)}  # fmt: skip
        return str(max((n for n, c in curves.items() if c.get(length, 0) >= ANSWERED), default=0))
    return by_run(recall.shares(measure))


def board_plot(name: str, spec: Spec, entries: Entries) -> Plot | None:
    """Returns a row for each memory, by its bytes: marks at the means, and the runs as dots."""
    found = sorted(recalls(entries, spec), key=lambda recall: recall.size)
    lines = []
    for column in spec["columns"]:
        title, _, measure = column.partition(" = ")
        points = [(row, share) for row, recall in enumerate(found, 1)
                  for share in recall.shares(measure) if share is not None]  # fmt: skip
        rows = sorted({row for row, _ in points})
        means = [statistics.mean(y for x, y in points if x == row) for row in rows]
        x, each = map(list, zip(*points))
        lines += [Line(title, rows, means, "marks"), Line(title, x, each, "dots", state="seed")]
    names = tuple(f"{recall.memory}: {recall.size / 1000:.0f}\u00a0kB"
                  + ", 1\u00a0seed" * (sum("answers" in run.studies for run in recall.runs) == 1)
                  for recall in found)  # fmt: skip
    return Plot(name, spec["title"], "", "memory", "share answered", lines, rows=names)


def distance_plot(name: str, spec: Spec, entries: Entries) -> Plot | None:
    """Returns the share answered by distance: the mean of the runs, and all of several as dots."""
    sizes = {recall.memory: recall for recall in recalls(entries, spec)}  # the larger one
    lines, points = [], []
    for number, recall in enumerate(sizes.values()):
        curves = [c for run in recall.runs if (c := recall.curve(run, BY_DISTANCE))]
        shared = sorted(set.intersection(*map(set, curves)))
        mean = [statistics.mean(curve[x] for curve in curves) for x in shared]
        label = f"{recall.memory}, {recall.size:,} bytes"
        lines.append(Line(label, shared, mean, "points", colour=number))
        points += [Line(label, list(c), list(c.values()), "dots", colour=number, state=f"run {n}")
                   for n, c in enumerate(curves, 1) if len(curves) > 1]  # fmt: skip
    if not lines:
        return None
    return Plot(name, spec["title"], "", "distance, tokens", "share answered", [*lines, *points],
                log_x=True, y_range=(-0.02, 1.02), borders=(spec["trained"],))  # fmt: skip
