"""The figure of Zoology's task, and the bytes that its models carry."""

import csv
import re
import tomllib

import jax
import pytest
from flax import nnx
from manual_tables import FOLDER, manual_table

from brt import config
from brt.experiment import Experiment
from brt.reporting.gin_text import write_gin
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import SCALES


def carried(entry):
    config.parse([], [write_gin(entry.settings, entry.imports)])
    graph, params = nnx.split(Experiment.from_gin().evaluated_model(), nnx.Param)
    empty = jax.eval_shape(lambda params: nnx.merge(graph, params).init_caches(1), params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(empty))


@pytest.mark.parametrize("column", ["64 / 4", "128 / 8"])
def test_stated_bytes_are_those_of_the_caches_of_each_model(column):
    heads, *rows = manual_table("zoology_bytes")
    stated = [row[heads.index(f"bytes carried, {column}")] for row in rows]
    file = FOLDER / "sweeps" / ("zoology.txt" if column == "64 / 4" else "zoology_128.txt")
    of_model = {}  # one entry of each model, whatever its rate
    for entry in read_sweep(file, SCALES["paper"], None, [], None):
        settings = {k: v for k, v in entry.settings.items() if k != "cosine.maximum"}
        of_model.setdefault(str(sorted(settings.items(), key=str)), entry)
    found = [f"{carried(entry):,}" for entry in of_model.values()]
    assert found == [size for size in stated if size != "is full attention"]


def test_the_figure_has_the_bytes_and_the_shares_of_the_tables():
    figure = tomllib.loads((FOLDER / "results_page" / "tables.toml").read_text())["figure"]
    _, *rows = figure["zoology"]["rows"]
    shown = sorted(int(size) for row in rows for size in re.findall(r"(\d+)(?:, \d+)? kB", row))
    sizes = [[int(cell.replace(",", "")) for cell in row[2:] if cell[0].isdigit()]
             for row in manual_table("zoology_bytes")[1:]]  # fmt: skip
    assert shown == sorted(round(min(each) / 1000) for each in sizes)
    points = [*csv.reader((FOLDER / "figures" / "zoology.csv").read_text().splitlines())][1:]
    (rule,) = (cells for name, *cells in manual_table("zoology_rules") if "first pair" in name)
    for cell, (ladder, (title, null)) in zip(rule, figure["zoology"]["best"].items(), strict=True):
        assert null == float(cell)
        found = sorted(f"{float(y):.4f}" for line, _, y in points if line == title)
        assert found == sorted([f"{null:.4f}", *(row[-1] for row in manual_table(ladder)[1:])])
