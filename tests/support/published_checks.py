"""Compares configs with the papers' rows that they fill, and with the settings behind these."""

import functools
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
from gin_settings import read_gin_files
from header_commands import COMMANDS
from paths import CONFIGS

from brt import config
from brt.bindings.read_bindings import check_all_read
from brt.experiment import Experiment
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.differences import differences
from brt.reporting.papers.published_tables import PAPERS, fits, published_settings, read_paper
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import SCALES
from brt.training.settings import Trainer

PUBLISHED = ("pg19_", "transformer_xl/", "rmt/", "readers/", "pretrained/gpt2.gin",
             "pretrained/gpt2_pooled.gin", *(f"task_models/{kind}_{size}" for kind in
             ("baseline", "txl", "rmt") for size in ("4x128", "6x64", "6x128")))  # fmt: skip
EXPERIMENTS = [name for name in COMMANDS if name.startswith(PUBLISHED) and "/test_" not in name]
"""Configs of published models, by the names of their files."""
UNPRINTED = {
    "memorizing_dense_64k": ("block_recurrent", ("training", "by_corpus", "architecture")),
    "text8_symbols": ("transformer_xl", ("transformer_xl", "runs")),
    "lm1b_large": ("transformer_xl", ("transformer_xl", "runs")),
    "baseline_6x128": ("recurrent_memory", ("tasks",)),
}
"""Parts of the names of experiments that are in the released code alone, and their settings."""
SWEEPS = {
    "table_1": ["table_1"],
    "table_1_bytes": ["table_1"],
    "table_1_arxiv": ["table_1"],
    "table_1_github": ["table_1"],
    "table_3": ["table_3a", "table_3b"],
    "table_4": ["table_4"],
    "table_5": ["table_5"],
    "txl_results": ["txl_table_1", "txl_table_2", "txl_table_3", "txl_table_4"],
    "txl_table_5": ["txl_table_5"],
    "txl_table_8": ["txl_table_8"],
    "rmt_table_1": ["rmt_table_1"],
    "rmt_table_2": ["rmt_table_2"],
    "rmt_table_3": ["rmt_table_3"],
    "rmt_table_4": ["rmt_table_4"],
    "rmt_table_5": ["rmt_table_5"],
    "arpt_tables": ["arpt_table_1", "arpt_table_2"],
    "rmt_figure_3": [],
    "rmt_figure_4": [],
    "rmt_figure_8": [],
    "arpt_windows": [],
    "arpt_rates": [],
}
"""Sweeps of configs/sweeps/, and the tables whose rows they fill."""
OF_A_FOLDER = ("Pretrained.folder", "Hyperpartisan.split_file")
"""Bindings that each user has values for."""


class Place(NamedTuple):
    """A row of a table or a curve of a figure that an experiment fills."""

    name: str
    row: SimpleNamespace | None
    rule: dict
    settings: Sequence[Sequence[SimpleNamespace]]
    printed: set[str] = set()


def position_of(settings):
    """Returns the settings as a run, and its position."""
    store = str(settings["Corpus.store"]).rsplit("/", 1)[-1]
    run = SimpleNamespace(settings=settings, paper_settings=settings, corpus=store)
    return run, paper_position(run)


def places(position):
    """Returns the rows and curves that a run of the position fills, of numbers with settings."""
    found = []
    for paper in (paper for paper in PAPERS if fits(position, paper.where)):
        common = paper.settings.get("runs", ())
        for table in paper.tables:
            for row in table.rows:
                columns = [q for q in table.quantities if q.is_printed]
                cells = {row.cells[q.head].partition(" ")[0] for q in columns}
                columns = [q for q in columns if fits(position, table.where, row.where, q.where)]
                if table.settings and columns:
                    rule = table.where | row.where | columns[0].where
                    found.append(Place(table.name, row, rule, (table.settings, common), cells))
        for plot in paper.plots:
            rules = [curve.where for curve in plot.curves] + [plot.rest]
            if rule := next((rule for rule in rules if fits(position, rule)), None):
                found.append(Place(plot.name, None, rule, (plot.settings, common)))
    return found


def problems(settings, name="", tables=(), quoted=()):
    """Returns what differs from the published settings of the row or curve that fits best.

    Args:
        settings: all bindings, macros resolved.
        name: of the config; decides on experiments that no paper prints.
        tables: names of those that count; none for all.
        quoted: numbers, of which one is printed in the row; none for any row.
    """
    run, position = position_of(settings)
    filled = [place for place in places(position) if not tables or place.name in tables]
    rows = [place for place in filled if place.row]
    if quoted and rows:
        filled = [place for place in rows if place.printed & set(quoted)]
    if not filled:
        filled = [
            Place(part, None, {}, [read_paper(paper).settings[group] for group in groups])
            for part, (paper, groups) in UNPRINTED.items()
            if part in name
        ]
    found = []
    for place in filled:
        expected = {}
        for group in place.settings:
            expected |= published_settings(group, position)
        lines = differences(run, position, expected, place.rule)
        found.append([f"{place.name}: {x}" for x in lines if not x.startswith(OF_A_FOLDER)])
    return min(found, key=len, default=["it fills no row and no curve"])


def settings_of(name, root=CONFIGS):
    """Returns the bindings of the command in a config's header."""
    files, bindings = COMMANDS[name]
    files = [file.replace(str(CONFIGS), str(root)) for file in files]
    return resolved(read_gin_files(files) | read_gin("\n".join(bindings)))


def experiment_problems(name, root=CONFIGS):
    """Returns the differences of the command in a config's header, which quotes the paper."""
    settings = settings_of(name, root)
    paper = re.search(r"^# Paper:(.*)$", (root / name).read_text(), re.M)
    quoted = re.findall(r"[\d.]*\d", paper[1]) if paper else ()
    return problems(settings, f"{name} {settings['Corpus.store']}", (), quoted)


def row_problems(entry, sweep):
    """Returns the differences of a row of a sweep."""
    return problems(entry.settings, f"{entry.name} {entry.settings['Corpus.store']}", SWEEPS[sweep])


def entries(sweep, root=CONFIGS):
    """Returns the experiments of a sweep at the paper's scale."""
    return read_sweep(root / f"sweeps/{sweep}.txt", SCALES["paper"], None, [], None)


def built(files: tuple[str, ...], bindings: tuple[str, ...] = ()) -> Experiment:
    """The experiment of files and bindings, all of which its model and its schedule read.

    Tracing the loss reads nothing more; tests/configs/test_every_build.py does it.
    """
    config.parse(files, bindings)
    experiment = Experiment(Trainer())
    jax.eval_shape(experiment.schedule, jax.ShapeDtypeStruct((), np.int32))
    check_all_read()
    return experiment


built_once = functools.cache(built)
