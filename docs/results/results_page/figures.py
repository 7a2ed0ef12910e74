from results_page import records
from results_page.records import SPLITS, select
from results_page.tables import Entries, Spec, rows_of, step_time

from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import confidence_interval


def time_plot(name: str, spec: Spec, entries: Entries) -> Plot | None:
    """Returns the improvement of each row over one baseline, in the order of training time.

    A mark has half of its interval and the values of all seeds; None without runs.
    """
    points = []
    for row in rows_of(spec, entries):
        values = row.entry.below(row.other, records.bits)
        time = step_time(row.entry, spec["times"]) or step_time(row.other, spec["times"])
        if len(values) > 1 and time and row.other:
            longer = row.entry.fields["steps"] / row.other.fields["steps"]
            label = f"W = {row.entry.fields['W']}" + f", {longer:g} × steps" * (longer != 1)
            points.append((longer * time, row.entry.memory, label, values))
    points.sort(key=lambda point: point[0])
    marks: dict[str, list[tuple]] = {}
    seeds: dict[str, list[tuple]] = {}
    for number, (_, memory, _, values) in enumerate(points, 1):
        marks.setdefault(memory, []).append((number, *confidence_interval(values)))
        seeds.setdefault(memory, []).extend((number, value) for value in values)
    lines = []
    for memory, found in marks.items():
        x, means, halves = map(list, zip(*found))
        lines.append(Line(memory, x, means, "marks", errors=halves))
        x, each = map(list, zip(*seeds[memory]))
        lines.append(Line(memory, x, each, "dots", state="each seed"))
    rows = tuple(f"{memory}, {label}: {time:.2f}" for time, memory, label, _ in points)
    y_label = "improvement, bits per byte"
    return Plot(name, spec["title"], "", "row", y_label, lines, rows=rows) if lines else None


def best_plot(name: str, spec: Spec, entries: Entries) -> Plot:
    """Returns test accuracies at the best rate on validation, a mark a ladder; rates as dots."""
    names, patterns = zip(*(row.split(" = ") for row in spec["rows"]))
    lines = []
    for ladder, (title, rule) in spec["best"].items():
        marks, rates = [(1, rule)], []
        for number, pattern in enumerate(patterns, 1):
            shares = [[entry.runs[0].evaluations.get(split, {}).get("accuracy") for split in SPLITS]
                      for entry in select(entries, f"{ladder}/{pattern}")]  # fmt: skip
            marks += [(number, max(shares, key=lambda both: both[0])[1])] if shares else []
            rates += [(number, share) for share, _ in shares]
        for points, style, state in (marks, "marks", ""), (rates, "dots", "each rate, validation"):
            x, y = map(list, zip(*points))
            lines.append(Line(title, x, y, style, state=state))
    label, limits = "share answered", (0.0, 1.02)
    return Plot(name, spec["title"], "", "memory", label, lines, y_range=limits, rows=names)
