from results_page import records
from results_page.tables import Entries, Spec, Times, rows_of, step_time

from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import confidence_interval


def time_plot(name: str, spec: Spec, entries: Entries, times: Times) -> Plot | None:
    """Returns the improvement of each row over one baseline, in the order of training time.

    A mark has half of its interval and the values of all seeds; None without runs.
    """
    points = []
    for row in rows_of(spec, entries):
        values = row.entry.below(row.other, records.bits)
        time = step_time(row.entry, times) or step_time(row.other, times)
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
