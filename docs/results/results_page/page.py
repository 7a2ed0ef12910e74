"""Writes tables and figures of archived runs into pages between marks.

A line `<!-- table NAME -->` or `<!-- figure NAME -->` begins generated text, `<!-- end -->` ends
it. NAME is an entry of tables.toml. Captions and all other sentences are written manually.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from results_page.figures import best_plot, time_plot
from results_page.recall import answers_table, board_plot, distance_plot
from results_page.records import Entry, open_archives
from results_page.tables import build, read_times

from brt.reporting.drawing.plots import image
from brt.reporting.drawing.table import Table

NOT_RUN = "Not run."
MARKED = re.compile(r"<!-- (table|figure) ([\w.-]+) -->\n.*?<!-- end -->\n", re.S)
PLOTS = {"best": best_plot, "time": time_plot, "columns": board_plot, "trained": distance_plot}
SPECS, STEP_TIMES = Path(__file__).parent / "tables.toml", "step_times.csv"


class Results(NamedTuple):
    """Tables and figures by name, and sentences about damaged files."""

    tables: dict[str, Table]
    plots: dict[str, Any]
    problems: list[str]
    entries: list[Entry]


def results(folder: Path) -> Results:
    """Returns the tables and figures of tables.toml whose runs are archived in folder/runs."""
    specs = tomllib.loads(SPECS.read_text(encoding="utf-8"))
    entries = open_archives(folder / "runs")
    times = read_times(folder / STEP_TIMES)
    tables: dict[str, Table | None] = {}
    plots: dict[str, Any] = {}
    rates = {"rates": specs["rates"]}
    for name, spec in specs["table"].items():
        tables[name] = (answers_table(name, spec | rates, entries, times) if "answers" in spec
                        else build(name, specs["table"], entries, times))  # fmt: skip
    for name, spec in specs["figure"].items():
        spec = specs["table"].get(spec.get("of"), {}) | spec
        draw = next(draw for key, draw in PLOTS.items() if key in spec)
        plots[name] = draw(name, spec | rates | {"times": times}, entries)
    problems = [problem for entry in entries for run in entry.runs for problem in run.problems]
    shown = {name: plot for name, plot in plots.items() if plot}
    return Results({n: table for n, table in tables.items() if table}, shown, problems, entries)


def fill(text: str, found: Results) -> str:
    """Returns a page's text with the content of all marks replaced."""

    def written(match):
        kind, name = match.groups()
        if len(re.findall(r"<!-- (?:table|figure|end) ?", match[0])) > 2:
            raise ValueError(f"The mark <!-- {kind} {name} --> has no <!-- end --> of its own.")
        content = NOT_RUN
        if kind == "table" and name in found.tables:
            content = found.tables[name].as_markdown().split("\n", 2)[2].rstrip()
        elif kind == "figure" and name in found.plots:
            content = f"![{found.plots[name].title}](figures/{name}.png)"
        return f"<!-- {kind} {name} -->\n{content}\n<!-- end -->\n"

    return MARKED.sub(written, text)


def write_results(folder: Path) -> Results:
    """Writes a folder's pages and figures from runs/, and returns their content."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}
    if not pages:
        raise FileNotFoundError(f"There is no page in {folder}: name a folder with README.md.")
    found = results(folder)
    (folder / "figures").mkdir(exist_ok=True)
    for page, text in pages.items():
        filled = fill(text, found)
        for kind, name in MARKED.findall(filled):
            if kind == "figure" and name in found.plots:
                plot = found.plots[name]
                (folder / "figures" / f"{name}.csv").write_text(plot.as_csv(), encoding="utf-8")
                (folder / "figures" / f"{name}.png").write_bytes(image(plot))
        page.write_text(filled, encoding="utf-8")
    return found
