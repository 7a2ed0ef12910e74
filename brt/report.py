"""Makes one page of run folders: results, curves, studies, and a reader of the text.

    brt report runs/rec runs/slide -o report.html
    brt report sweeps/gates                         # a folder of `brt sweep`

The page needs no network. --published and --step_times add the papers' tables.
Every figure and table is also written to report_files/, as PNG and CSV.
Runs may still be in training. Archives of run folders (`.tar.bz2`) may be named like the folders.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from absl import flags

from brt import command_line
from brt.reporting import page, run_tables
from brt.reporting.archive import ENDING, unpack
from brt.reporting.collect import collect
from brt.reporting.drawing.heat_map import study_maps
from brt.reporting.drawing.plots import png
from brt.reporting.drawing.table import Table
from brt.reporting.figures import study_plots, training_curves
from brt.reporting.headline import MOST_RUNS, headline_html
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.fill import paper_plots, paper_tables
from brt.reporting.papers.reading import PAPERS
from brt.reporting.runs import Run, label_entries, open_runs
from brt.reporting.step_times import StepTime, read_step_times
from brt.reporting.sweep_folder import (
    Entry,
    Sweep,
    entries_of,
    is_sweep_folder,
    read_sweep,
    run_folders,
    sweep_of_runs,
)
from brt.reporting.sweep_tables import entry_plot, entry_table
from brt.storage.paths import RemotePath, download, is_remote, only_buckets_of
from brt.storage.replaced_files import replace_file
from brt.studies.output import compared_with
from brt.studies.study import studies
from brt.terminal import printable

FLAGS = flags.FLAGS
flags.DEFINE_string("output", "report.html", "The page to write.", short_name="o")
flags.DEFINE_multi_string(
    "step_times", [], "A file of `brt.benchmark --json`, for tables of times."
)
flags.DEFINE_bool("published", False, "Also show published tables and figures, with these runs.")
flags.DEFINE_list("reader_documents", None, "Numbers of the documents that the reader shows.")
flags.DEFINE_integer("reader_tokens", 150_000, "The reader's documents hold so many together.")


def main(folders: Sequence[str]) -> None:
    if not folders:
        raise ValueError("Name the run folders: python -m brt.report RUN [RUN ...] -o report.html")
    if not FLAGS.output.endswith(".html"):
        raise ValueError(f"--output = {FLAGS.output}: give the page a name that ends in .html.")
    documents = FLAGS.reader_documents
    if documents is not None:
        if not all(number.isdecimal() for number in documents):
            raise ValueError(
                f"--reader_documents = {','.join(documents)}: give numbers of documents, as 0,3."
            )
        documents = list(map(int, documents))
    with only_buckets_of([*folders, *FLAGS.step_times]), tempfile.TemporaryDirectory() as scratch:
        step_times = read_step_times(FLAGS.step_times)
        paths, sweep, notes = expanded(folders)
        runs = open_runs(local_folders(paths, scratch), FLAGS.allow_imports)
        runs[0].problems += notes
        label_entries(runs)
        written = report(
            runs, FLAGS.output, step_times, documents, FLAGS.reader_tokens, FLAGS.published, sweep
        )
    print(f"Written to {FLAGS.output}, with {written} files in {files_folder(FLAGS.output)}")


def expanded(paths: Sequence[str]) -> tuple[list[str], Sweep | None, list[str]]:
    """Returns the run folders of paths that may be sweeps.

    Also the sweep that all of them are runs of, or None, and sentences on runs that did not begin.
    """
    folders: list[str] = []
    notes: list[str] = []
    for path in paths:
        if is_remote(path) or path.endswith(ENDING) or not is_sweep_folder(path):
            folders.append(path)
            continue
        found, waiting = run_folders(Path(path), read_sweep(Path(path)))
        folders += map(str, found)
        notes += waiting
    folder = None if any(map(is_remote, folders)) else sweep_of_runs(folders)
    sweep = read_sweep(folder) if folder and len(folders) > 1 else None
    return folders, sweep, notes


def local_folders(paths: Sequence[str], scratch: str) -> list[str | Path]:
    folders: list[str | Path] = []
    archives: set[Path] = set()
    for number, path in enumerate(paths):
        if not path.endswith(ENDING):
            folders.append(on_disk(path, scratch))
            continue
        if (archive := Path(path).resolve()) in archives:
            raise ValueError(f"{path} is named twice: name each archive once.")
        archives.add(archive)
        above = Path(os.path.abspath(path)).parent
        folders.append(unpack(Path(path), Path(scratch, str(number), *above.parts[1:])))
    return folders


def on_disk(folder: str, scratch: str) -> str:
    """Returns a local run folder; of one in a bucket, a copy without its checkpoints."""
    if not is_remote(folder):
        return folder
    source = RemotePath(folder)
    copy = Path(tempfile.mkdtemp(dir=scratch)) / source.name
    copy.mkdir()
    for path in source.iterdir():
        if path.name in ("recordings", "studies"):
            download(path, copy / path.name)
        elif path.name.endswith((".gin", ".json", ".jsonl", ".txt")):
            path.fetch(copy / path.name)
    return str(copy)


def files_folder(output: str | Path) -> Path:
    return Path(output).with_name(Path(output).stem + "_files")


def report(
    runs: list[Run],
    output: str | Path,
    step_times: dict[str, StepTime] | None = None,
    documents: list[int] | None = None,
    reader_tokens: int = 150_000,
    published: bool = False,
    sweep: Sweep | None = None,
) -> int:
    """Writes the page and its figures and tables; returns the number of these files.

    Args:
        step_times: of `read_step_times`, by system.
        documents: numbers of the reader's documents; None for the first ones recorded.
        reader_tokens: most tokens of the reader.
        published: whether published tables and figures are shown too.
        sweep: that all runs are of; the page begins with its table and figure.
    """
    groups = collect(runs)
    entries = entries_of(runs, sweep) if sweep else []
    shown: list[Any] = []  # tables and figures, which are written to files too

    def show(*items):
        shown.extend(items)
        return items

    headline = _sweep(entries, sweep, show) if sweep else headline_html(runs)
    if not sweep and len(runs) > MOST_RUNS and any(run.evaluations for run in runs):
        names = [group.runs[0].name.rpartition(", seed ")[0] or group.label for group in groups]
        of_groups = [Entry(name, group.runs) for name, group in zip(names, groups)]
        headline = page.table_html(*show(entry_table(of_groups, "Experiments")))
    sections = [("results", "Results", headline)] if headline else []
    tables = show(
        run_tables.overview(runs, list(map(paper_position, runs))),
        *run_tables.settings_that_differ(
            [entry.runs[0] for entry in entries] or runs, [entry.label for entry in entries]
        ),
    )
    of_runs = ("runs", "Runs", "".join(map(page.folded_if_long, tables)))
    if curves := show(*training_curves(runs, entries)):
        sections.append(("training", "Training", page.plots_html(curves)))
    evaluation = _evaluation(runs, show)
    if sweep:  # whose own table has the means
        evaluation = page.folded(len(runs), "run", evaluation)
    sections.append(("evaluation", "Evaluation", evaluation))
    sections.insert(len(sections) if sweep else bool(headline), of_runs)
    if studies := _studies(runs, show):
        sections.append(("studies", "Studies", studies))
    for paper in PAPERS if published or step_times else ():
        filled: tuple[Any, ...]
        filled = *paper_tables(paper, groups, step_times), *paper_plots(paper, groups)
        if any(item.has_measurements for item in filled):
            sections.append((paper.name, paper.title.split(",")[0], _paper(show(*filled))))

    texts: list[dict] = []
    problems = [problem for run in runs for problem in run.problems]
    if any(run.recordings for run in runs):
        from brt.reporting.reader import reader_documents  # which needs jax and the stores

        texts, more = reader_documents(runs, documents, reader_tokens)
        problems += more
    title = ", ".join(run.name for run in runs) if len(runs) <= 3 else f"{len(runs)} runs"
    if sweep:
        title = f"Sweep of {len(entries)} entries, {len(runs)} runs"
    folder = files_folder(output)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link: remove it, or give another --output.")
    folder.mkdir(parents=True, exist_ok=True)
    for item in shown:
        _write(folder / f"{item.name}.csv", item.as_csv())
        if not isinstance(item, Table):
            _write(folder / f"{item.name}.png", png(item))
    content = [item.as_json() for item in shown if isinstance(item, Table)]
    whole = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    _write(folder / "tables.json", whole)
    _write(Path(output), page.page(title, sections, problems, texts))
    for problem in problems:
        print(f"Note: {printable(problem)}")
    return 2 * len(shown) - len(content) + 1


def _sweep(entries, sweep, show):
    """Returns the table of a sweep and its figure."""
    if not any(run.evaluations for entry in entries for run in entry.runs):
        return ""
    (table,) = show(entry_table(entries, sweep.title, sweep.split))
    return page.table_html(table) + page.plots_html(show(entry_plot(entries, sweep.split)))


def _evaluation(runs, show):
    content = ""
    if any(run.evaluations for run in runs):
        (table,) = show(run_tables.evaluations(runs))
        content += page.table_html(table)
    for run in (run for run in runs if not run.evaluations):
        line = f"python -m brt.evaluate --workdir={run.folder}"
        content += f"<p>{escape(run.name)} has not been evaluated on a whole split yet: "
        content += f"<code>{escape(line)}</code></p>"
    return content


def _studies(runs, show):
    content = ""
    entries = [(run, name, study) for run in runs for name, study in run.studies.items()]
    known = studies() if entries else {}
    order = {kind: number for number, kind in enumerate(known)}
    entries.sort(key=lambda entry: order.get(entry[2].get("study"), len(order)))
    for run, name, study in entries:
        kind = known.get(study.get("study"))
        title, caption = (kind.title, kind.caption) if kind else (name, "")
        content += page.study_html(f"{title}: {run.name}{compared_with(study)}", caption, study)
        content += page.plots_html(show(*study_plots(run, name), *study_maps(run, name)))
        if texts := study.get("texts"):
            content += page.folded(len(texts), "text", page.marked_html(texts))
        if excerpts := study.get("excerpts"):
            content += page.folded(len(excerpts), "excerpt", page.excerpts_html(excerpts))
        label = f"study_{name}_{run.name}".replace("/", "_")
        if rows := study.get("table"):
            (table,) = show(run_tables.rows_table(f"{label}_table", rows))
            content += table.as_html()
        if numbers := study.get("numbers"):
            (table,) = show(run_tables.numbers_table(label, numbers))
            content += page.folded(len(numbers), "number", table.as_html())
    return content


def _paper(items):
    """Returns tables and figures; those without measurements are folded."""

    def html(these):
        tables = (item for item in these if isinstance(item, Table))
        plots = [item for item in these if not isinstance(item, Table)]
        return "".join(map(page.table_html, tables)) + page.plots_html(plots)

    shown: list[Any] = []
    folded: list[Any] = []
    for item in items:
        reduced = item.rows_worth_showing() if isinstance(item, Table) else item
        is_shown = reduced.rows if isinstance(item, Table) else item.has_measurements
        (shown if is_shown else folded).append(reduced if is_shown else item)
    summary = "<summary>Tables and figures without a published row that was run</summary>"
    return html(shown) + (f"<details>{summary}{html(folded)}</details>" if folded else "")


def _write(path, content):
    content = content.encode("utf-8", "replace") if isinstance(content, str) else content
    replace_file(path.parent, path.name, content)


if __name__ == "__main__":
    command_line.run(main, takes_arguments=True)
