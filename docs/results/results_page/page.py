"""Writes tables and figures of archived runs into pages between marks.

A line `<!-- table NAME -->` or `<!-- figure NAME -->` begins generated text, `<!-- end -->` ends
it.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from results_page import files_entries
from results_page.claims import claims_tables
from results_page.excerpts import excerpts_table, kinds_table
from results_page.facts_table import facts_map, facts_plot, facts_table
from results_page.files_tables import files_tables
from results_page.front import front_table, improvements_plot
from results_page.gain_tables import gain_table, runs_table
from results_page.gains import Gain, gains
from results_page.intervals import IntervalPlot
from results_page.learning import LearningPlot, learning_plot
from results_page.memory_use import memory_table
from results_page.names_table import memories_table, names_plot, names_table
from results_page.overview import overview_plot, overview_table
from results_page.recall_table import best_table, rates_table, recall_plots, recall_table
from results_page.study_plots import study_plots
from results_page.systems import read_step_times, systems_table, test_table
from results_page.tasks_table import tasks_table
from results_page.training_data import checksums_table, gradients_table

from brt.reporting.archive import ENDING, unpack
from brt.reporting.collect import Group, collect
from brt.reporting.drawing.heat_map import HeatMap
from brt.reporting.drawing.plots import Plot, png
from brt.reporting.drawing.table import Table
from brt.reporting.papers.fill import paper_plots
from brt.reporting.papers.reading import PAPERS
from brt.reporting.runs import open_runs

NOT_RUN = "Not run."
"""Text of a mark without an archive."""
MARKED = re.compile(r"<!-- (table|figure) ([\w.-]+) -->\n.*?<!-- end -->\n", re.S)
STEP_TIMES, COMPRESSORS = "step_times.csv", "baselines.csv"
"""Files beside runs/ with measurements that are in no archive."""
TIME = "_time"
"""Ending of the ladder with the baseline of another, trained for as long a time."""


class Results(NamedTuple):
    """Tables and figures by name, and sentences about damaged files."""

    tables: dict[str, Table]
    plots: dict[str, Plot | HeatMap | IntervalPlot | LearningPlot]
    problems: list[str]


def results(folder: Path) -> Results:
    """Returns tables and figures of the archives NAME/RUN.tar.gz below a folder.

    Each folder NAME is a ladder; plain runs serve all ladders. Names of tables and figures:

        front, overview               the first table; all comparisons of several seeds
        gradients, files_checksums    tokens that gradients cross; data checksums of runs on files
        test, kinds, memory           test splits; improvement by kind of byte; ablations
        system_claims and so on       verdicts on pairs of systems
        files_by_rate and so on       the experiment on files as documents, and its rules
        files_across, files_confirmed comparisons of different windows; of different seeds
        files_names, every_memory     loss on names from far back; all memories, one seed
        NAME, NAME_runs               improvements over the baseline; all runs
        NAME_systems, NAME_tasks      all systems; accuracies of tasks
        NAME_recall, NAME_best        recall of pairs by each memory; by those of the figure
        NAME_rates                    the search of its rate
        NAME_facts, NAME_facts_map    answers about facts in text by each memory, and by depth
        NAME_excerpts                 tokens that the state improves
        NAME_learning                 improvement by training step
        NAME_distance, NAME_reach     improvement by position; cost of a reset
        NAME_rmt_figure_3a and so on  the papers' figures
    """
    tables: list[Table | None] = []
    plots: list[Plot | HeatMap | IntervalPlot | LearningPlot | None] = []
    with tempfile.TemporaryDirectory() as scratch:
        ladders: dict[str, list[Path]] = {}
        for archive in sorted(folder.glob(f"*/*{ENDING}")):
            runs = ladders.setdefault(archive.parent.name, [])
            runs.append(unpack(archive, Path(scratch) / archive.parent.name))
        if not ladders:
            raise ValueError(f"There is no NAME/RUN{ENDING} below {folder}: nothing was written.")
        groups = {name: collect(open_runs(runs)) for name, runs in ladders.items()}
        every = [group for some in groups.values() for group in some]
        half_rate = groups.get(files_entries.HALF_RATE, ())  # compared with itself
        apart = [*half_rate, *groups.get(files_entries.OTHER_RATES, ())]
        everything = gains([group for group in every if group not in apart]) + gains(half_rate)
        times = read_step_times(folder.parent / STEP_TIMES)
        # The experiment on files has tables of its own with its test split.
        by_window = (files_entries.WINDOWS, files_entries.HALF_RATE, files_entries.TIME,
                     files_entries.CONFIRMATION)  # fmt: skip
        others = {name: own for name, own in groups.items() if name not in by_window}
        # Studies on files compare with a longer window, not with the baseline.
        of_files = {name for name in groups if name.startswith(files_entries.PREFIX)}
        pairs = [group for name, own in groups.items() if name not in of_files for group in own]
        tables += [overview_table(everything), test_table("test", others),
                   kinds_table("kinds", pairs), memory_table("memory", every),
                   *claims_tables(groups), *files_tables(groups, times),
                   names_table(groups), memories_table(groups), gradients_table(groups),
                   checksums_table(groups)]  # fmt: skip
        better = files_entries.better_rates(groups)
        plots += [overview_plot(everything), improvements_plot(better), names_plot(groups)]
        for name, own in groups.items():
            found, longer = _gains(own, everything), groups.get(f"{name}{TIME}", [])
            tables += [
                runs_table(f"{name}_runs", own),
                gain_table(name, found) if found else None,
                systems_table(f"{name}_systems", own, longer, times),
                tasks_table(f"{name}_tasks", own),
                recall_table(f"{name}_recall", own),
                best_table(f"{name}_best", own),
                rates_table(f"{name}_rates", own),
                facts_table(f"{name}_facts", own),
                excerpts_table(f"{name}_excerpts", own),
            ]
            plots += [*study_plots(name, own), learning_plot(f"{name}_learning", found)]
            plots += [*recall_plots(f"{name}_recall", own), facts_plot(f"{name}_facts", own),
                      facts_map(f"{name}_facts_map", own)]  # fmt: skip
            drawn = (plot for paper in PAPERS for plot in paper_plots(paper, own))
            plots += [plot._replace(name=f"{name}_{plot.name}") for plot in drawn
                      if plot.has_measurements]  # fmt: skip
        tables.append(front_table(groups, times, folder.parent / COMPRESSORS))
        problems = [problem for group in every for run in group.runs for problem in run.problems]
    return Results(
        {table.name: table for table in tables if table},
        {plot.name: plot for plot in plots if plot},
        problems,
    )


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


def write_results(folder: Path) -> Results:
    """Writes a folder's pages and figures from runs/, and returns their content."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}
    if not pages:
        raise FileNotFoundError(f"There is no page in {folder}: name a folder with README.md.")
    found = results(folder / "runs")
    figures = folder / "figures"
    for page, text in pages.items():
        filled = fill(text, found)
        for kind, name in MARKED.findall(filled):
            if kind == "figure" and name in found.plots:
                figures.mkdir(exist_ok=True)
                plot = found.plots[name]
                (figures / f"{name}.csv").write_text(plot.as_csv(), encoding="utf-8")
                (figures / f"{name}.png").write_bytes(png(plot))
        page.write_text(filled, encoding="utf-8")
    return found
