"""Writes tables and figures of archived runs into a text between marks.

A line `<!-- table NAME -->` or `<!-- figure NAME -->` begins generated text, `<!-- end -->` ends
it.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from results_page.excerpts import excerpts_table, kinds_table
from results_page.gain_tables import gain_plot, gain_table, runs_table, told_apart
from results_page.gains import TEST, Gain, gains, num_states
from results_page.intervals import IntervalPlot
from results_page.memory_use import memory_table
from results_page.over_training import clearing_plot, training_plot
from results_page.overview import overview_plot, overview_table
from results_page.study_plots import study_plots
from results_page.systems import systems_table

from brt.reporting.archive import ENDING, unpack
from brt.reporting.collect import Group, collect
from brt.reporting.drawing.plots import Plot, png
from brt.reporting.drawing.table import Table
from brt.reporting.papers.fill import paper_plots, paper_tables
from brt.reporting.papers.reading import PAPERS
from brt.reporting.runs import open_runs

PAGE = "README.md"
NOT_RUN = "Not run."
"""Text of a mark without an archive."""
MARKED = re.compile(r"<!-- (table|figure) ([\w.-]+) -->\n.*?<!-- end -->\n", re.S)


class Axis(NamedTuple):
    """The attribute of a `Regime` that a comparison varies, or "states"."""

    attribute: str
    label: str

    def value(self, gain: Gain) -> float:
        if self.attribute == "states":
            return num_states(gain.recurrent)
        return getattr(gain.regime, self.attribute)


AXES = {
    "window": Axis("window", "window W, tokens"),
    "steps": Axis("steps", "steps"),
    "states": Axis("states", "states S"),
}
"""Axes by the end of a ladder's name, as in `map_window`."""


class Results(NamedTuple):
    """Tables and figures by name, and sentences about damaged files."""

    tables: dict[str, Table]
    plots: dict[str, Plot | IntervalPlot]
    problems: list[str]


def results(folder: Path) -> Results:
    """Returns tables and figures of the archives NAME/RUN.tar.gz below a folder.

    Each folder NAME is a ladder; plain runs serve all ladders. Names begin with NAME:

        table NAME, figure NAME            improvements over the baseline; by one of `AXES`
        NAME_runs, NAME_systems, NAME_test all runs; all systems; the same on the test split
        NAME_excerpts, NAME_kinds          tokens that the state improves
        NAME_memory, NAME_segment          ablations of the state; cost of clearing in a segment
        NAME_distance, NAME_reach          improvement over distance; cost of a reset
        NAME_training, NAME_clearing       improvement and cost of clearing by training step
        NAME_table_1 and so on             the papers' tables and figures

    `overview` shows all comparisons of several seeds.
    """
    tables: dict[str, Table] = {}
    plots: dict[str, Plot | IntervalPlot] = {}
    with tempfile.TemporaryDirectory() as scratch:
        ladders: dict[str, list[Path]] = {}
        for archive in sorted(folder.glob(f"*/*{ENDING}")):
            runs = ladders.setdefault(archive.parent.name, [])
            runs.append(unpack(archive, Path(scratch) / archive.parent.name))
        if not ladders:
            raise ValueError(f"There is no NAME/RUN{ENDING} below {folder}: nothing was written.")
        groups = {name: collect(open_runs(runs)) for name, runs in ladders.items()}
        everything = gains(group for some in groups.values() for group in some)
        if overview := overview_table(everything):
            tables[overview.name] = overview
        if intervals := overview_plot(everything):
            plots[intervals.name] = intervals
        for name, own in groups.items():
            tables[f"{name}_runs"] = runs_table(f"{name}_runs", own)
            found = _gains(own, everything)
            if found:
                tables[name] = gain_table(name, found)
            for plot in (
                axis_plot(name, found),
                *study_plots(name, own),
                training_plot(f"{name}_training", found),
                clearing_plot(f"{name}_clearing", found),
            ):
                if plot:
                    plots[plot.name] = plot
            for table in (
                excerpts_table(f"{name}_excerpts", own),
                kinds_table(f"{name}_kinds", own),
                memory_table(f"{name}_memory", own),
                systems_table(f"{name}_systems", own),
                systems_table(f"{name}_test", own, TEST),
            ):
                if table:
                    tables[table.name] = table
            for table in (table for paper in PAPERS for table in paper_tables(paper, own)):
                if table.has_measurements:
                    tables[f"{name}_{table.name}"] = table
            for plot in (plot for paper in PAPERS for plot in paper_plots(paper, own)):
                if plot.has_measurements:
                    plots[f"{name}_{plot.name}"] = plot._replace(name=f"{name}_{plot.name}")
        all_runs = (run for some in groups.values() for group in some for run in group.runs)
        problems = [problem for run in all_runs for problem in run.problems]
    return Results(tables, plots, problems)


def axis_plot(name: str, found: Sequence[Gain]) -> Plot | None:
    """Returns the figure of a ladder that varies one of `AXES`, or None."""
    axis = AXES.get(name.rsplit("_", 1)[-1])
    if axis is None or not found:
        return None
    names = told_apart([gain.recurrent for gain in found], axis.attribute)
    return gain_plot(name, axis.label, found, axis.value, names)


def _gains(own: Sequence[Group], everything: Sequence[Gain]) -> list[Gain]:
    mine = [run.folder for group in own for run in group.runs]
    return [gain for gain in everything if gain.recurrent.runs[0].folder in mine]


def fill(text: str, found: Results) -> str:
    """Returns a page's text with the content of all marks replaced."""

    def written(match):
        kind, name = match.groups()
        if match[0].count("<!-- ") > 2:
            raise ValueError(f"The mark <!-- {kind} {name} --> has no <!-- end --> of its own.")
        content = NOT_RUN
        if kind == "table" and name in found.tables:
            content = _markdown(found.tables[name])
        elif kind == "figure" and name in found.plots:
            content = _shown(found.plots[name])
        return f"<!-- {kind} {name} -->\n{content}\n<!-- end -->\n"

    return MARKED.sub(written, text)


def _markdown(table):
    return table.as_markdown().split("\n", 2)[2].rstrip()


def _shown(plot):
    return f"![{plot.title}](figures/{plot.name}.png)\n\n{plot.caption}"


def write_results(folder: Path) -> tuple[int, list[str]]:
    """Writes a folder's page and figures from runs/.

    Returns:
        The number of files written, and sentences about archived files that were left out.
    """
    page = folder / PAGE
    if not page.is_file():
        raise FileNotFoundError(f"There is no {page}: name a folder with a page in it.")
    found = results(folder / "runs")
    text = fill(page.read_text(encoding="utf-8"), found)
    figures = folder / "figures"
    shown = {name for kind, name in MARKED.findall(text) if kind == "figure"}
    plots = {name: plot for name, plot in found.plots.items() if name in shown}
    for name, plot in plots.items():
        figures.mkdir(exist_ok=True)
        (figures / f"{name}.csv").write_text(plot.as_csv(), encoding="utf-8")
        (figures / f"{name}.png").write_bytes(png(plot))
    page.write_text(text, encoding="utf-8")
    return 1 + 2 * len(plots), found.problems
