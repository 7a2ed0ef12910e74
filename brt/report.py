"""Makes one page of run folders: results, curves, studies, a text reader.

    brt report runs/rec runs/slide -o report.html
    brt report sweeps/gates                         # a folder of `brt sweep`

The page needs no network. --published and --step_times add the papers' tables.
Every figure and table is also written to report_files/, as PNG and CSV.
Runs may still be in training. Archives of run folders (`.tar.bz2`) may be named like the folders.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from brt import command_line
from brt.data.extras import check_extra
from brt.host.terminal import printable
from brt.reporting import page, run_tables
from brt.reporting.archive import ENDING, unpack
from brt.reporting.collect import collect
from brt.reporting.drawing.heat_map import study_maps
from brt.reporting.drawing.plots import image
from brt.reporting.drawing.table import Table
from brt.reporting.figures import study_plots, training_curves
from brt.reporting.page import LIBRARIES, Part
from brt.reporting.papers.fill import paper_plots, paper_tables
from brt.reporting.papers.published_tables import PAPERS
from brt.reporting.runs import Run, open_runs
from brt.reporting.step_times import StepTimes, read_step_times
from brt.reporting.sweep_folder import (
    Sweep,
    is_sweep_folder,
    read_sweep,
    run_folders,
)
from brt.reporting.sweep_tables import generated, results
from brt.storage.paths import RemotePath, download, is_remote, only_buckets_of
from brt.storage.replaced_files import replace_file
from brt.studies.output import compared_with
from brt.studies.study import studies

FLAGS = flags.FLAGS
flags.DEFINE_string("output", "report.html", "The page to write.", short_name="o")
flags.DEFINE_multi_string(
    "step_times", [], "A file of `brt.benchmark --json`, for tables of times."
)
flags.DEFINE_bool("published", False, "Also show published tables and figures, with these runs.")
MOST_NAMED = 3
"""Runs that the title of a page names."""


def main(folders: Sequence[str]) -> None:
    if not folders:
        raise ValueError("Name the run folders: python -m brt.report RUN [RUN ...] -o report.html")
    for library in LIBRARIES:
        check_extra(library, "brt.report", "report")
    if not FLAGS.output.endswith(".html"):
        raise ValueError(f"--output = {FLAGS.output}: give the page a name that ends in .html.")
    with only_buckets_of([*folders, *FLAGS.step_times]), tempfile.TemporaryDirectory() as scratch:
        step_times = read_step_times(FLAGS.step_times)
        paths, sweep, notes = expanded(folders)
        runs = open_runs(local_folders(paths, scratch), FLAGS.allow_imports)
        runs[0].problems += notes
        written = report(runs, FLAGS.output, step_times, FLAGS.published, sweep)
    print(f"Written to {FLAGS.output}, with {written} files in {files_folder(FLAGS.output)}")


def expanded(paths: Sequence[str]) -> tuple[list[str], Sweep | None, list[str]]:
    """Returns the run folders of paths that may be sweeps.

    Also returns the sweep, if the only path is one, and sentences on runs that did not begin.
    """
    folders: list[str] = []
    notes: list[str] = []
    sweep = None
    for path in paths:
        if is_remote(path) or path.endswith(ENDING) or not is_sweep_folder(path):
            folders.append(path)
            continue
        sweep = read_sweep(Path(path))
        found, waiting = run_folders(Path(path), sweep)
        folders += map(str, found)
        notes += waiting
    named = list(map(os.path.realpath, folders))
    for path in named:
        if named.count(path) > 1:
            raise ValueError(f"{path} is named twice: name each run once.")
    return folders, sweep if len(paths) == 1 else None, notes


def local_folders(paths: Sequence[str], scratch: str) -> list[str | Path]:
    return [_local(path, Path(scratch, str(number))) for number, path in enumerate(paths)]


def _local(path, scratch):
    if path.endswith(ENDING):
        above = Path(os.path.abspath(path)).parent
        return unpack(Path(path), scratch.joinpath(*above.parts[1:]))
    if not is_remote(path):
        return path
    # A copy of a folder in a bucket, without its checkpoints.
    source = RemotePath(path)
    copy = scratch / source.name
    copy.mkdir(parents=True)
    for file in source.iterdir():
        if file.name in ("recordings", "studies"):
            download(file, copy / file.name)
        elif file.name.endswith((".gin", ".json", ".jsonl", ".txt")):
            file.fetch(copy / file.name)
    return copy


def files_folder(output: str | Path) -> Path:
    return Path(output).with_name(Path(output).stem + "_files")


@np.errstate(over="ignore", invalid="ignore")  # of means over runs that diverged
def report(
    runs: list[Run],
    output: str | Path,
    step_times: StepTimes | None = None,
    published: bool = False,
    sweep: Sweep | None = None,
) -> int:
    """Writes the page and its figures and tables; returns the number of these files.

    Args:
        published: whether to show published tables and figures, too.
        sweep: that all runs belong to; the page begins with its table and figure.
    """
    entries = collect(runs, sweep)
    found = results(entries, sweep.title if sweep else "Entries", sweep.split if sweep else None)
    sections: list[tuple[str, str, list[Part]]] = []
    if first := [*_shown(found), *generated(runs)]:
        sections.append(("results", "Results", first))
    tables = [run_tables.overview(runs)]
    tables += run_tables.settings_that_differ(entries)
    of_runs = ("runs", "Runs", list(map(page.folded_if_long, tables)))
    if curves := training_curves(entries):
        sections.append(("training", "Training", _shown(curves)))
    evaluation = _evaluation(runs)
    if found:  # whose table has the means
        evaluation = [page.folded(len(runs), "run", *evaluation)]
    sections.append(("evaluation", "Evaluation", evaluation))
    sections.insert(len(sections) if found else bool(first), of_runs)
    if studies := _studies(runs):
        sections.append(("studies", "Studies", studies))
    for paper in PAPERS if published or step_times else ():
        filled: dict[str, Any]
        filled = {**paper_tables(paper, entries, step_times), **paper_plots(paper, entries)}
        if any(item.has_measurements for item in filled.values()):
            sections.append((paper.name, paper.title.split(",")[0], _paper(filled.values())))

    texts: list[dict] = []
    problems = [problem for run in runs for problem in run.problems]
    if any(run.recordings for run in runs):
        from brt.reporting.reader import reader_documents  # needs jax and the stores

        texts, more = reader_documents(runs)
        problems += more
    title = f"{len(entries)} entries, {len(runs)} runs"
    if len(runs) <= MOST_NAMED:
        title = ", ".join(run.name for run in runs)
    folder = files_folder(output)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link: remove it, or give another --output.")
    folder.mkdir(parents=True, exist_ok=True)
    shown = [item for *_, parts in sections for item in page.items(parts)]
    plots = [item for item in shown if not isinstance(item, Table)]
    for item in shown:
        _write(folder / f"{item.name}.csv", item.as_csv())
    for plot in plots:
        _write(folder / f"{plot.name}.png", image(plot))
    _write(Path(output), page.page(title, sections, problems, texts))
    for problem in problems:
        print(f"Note: {printable(problem)}")
    return len(shown) + len(plots)


def _shown(items) -> list[Part]:
    plots = [item for item in items if not isinstance(item, Table)]
    tables: list[Part] = [("table", item) for item in items if isinstance(item, Table)]
    return [*tables, *([("plots", plots)] if plots else [])]


def _evaluation(runs):
    parts: list[Part] = []
    if any(run.evaluations for run in runs):
        parts.append(("table", run_tables.evaluations(runs)))
    for run in (run for run in runs if not run.evaluations):
        line = f"python -m brt.evaluate --workdir={run.folder}"
        text = f"{run.name} has not been evaluated on a whole split yet: `{line}`"
        parts.append(("caption", text))
    return parts


def _studies(runs):
    parts: list[Part] = []
    entries = [(run, name, study) for run in runs for name, study in run.studies.items()]
    known = studies() if entries else {}
    order = {kind: number for number, kind in enumerate(known)}
    entries.sort(key=lambda entry: order.get(entry[2].get("study"), len(order)))
    for run, name, study in entries:
        try:
            parts += _study(run, name, study, known.get(study.get("study")))
        except Exception as error:  # the fields of a study have no declared types
            path = f"{run.folder}/studies/{name}.json"
            run.problems.append(f"{path} was left out ({error!r}): remove it, or make it again.")
    return parts


def _study(run, name, study, kind):
    title, caption = (kind.title, kind.caption) if kind else (name, "")
    parts: list[Part] = [("heading", f"{title}: {run.name}{compared_with(study)}")]
    parts += [("summary", study["summary"])] if study.get("summary") else []
    parts.append(("caption", caption))
    parts += _shown([*study_plots(run, name), *study_maps(run, name)])
    if texts := study.get("texts"):
        parts.append(page.folded(len(texts), "text", ("texts", texts)))
    if excerpts := study.get("excerpts"):
        parts.append(page.folded(len(excerpts), "excerpt", page.excerpts(excerpts)))
    label = f"study_{name}_{run.name}".replace("/", "_")
    if rows := study.get("table"):
        parts.append(("table", run_tables.rows_table(f"{label}_table", rows)))
    if numbers := study.get("numbers"):
        table = run_tables.numbers_table(label, numbers)
        parts.append(page.folded(len(numbers), "number", ("table", table)))
    return parts


def _paper(items):
    shown: list[Any] = []
    rest: list[Any] = []
    for item in items:
        reduced = item.rows_worth_showing() if isinstance(item, Table) else item
        is_shown = reduced.rows if isinstance(item, Table) else item.has_measurements
        (shown if is_shown else rest).append(reduced if is_shown else item)
    summary = "Tables and figures without a published row that was run"
    return _shown(shown) + ([("folded", (summary, _shown(rest)))] if rest else [])


def _write(path, content):
    content = content.encode("utf-8", "replace") if isinstance(content, str) else content
    replace_file(path.parent, path.name, content)


if __name__ == "__main__":
    command_line.run(main, takes_arguments=True)
