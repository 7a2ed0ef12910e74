"""Configs and sweeps of the recurrent memory's language models are the paper's rows."""

import functools
import re
from types import SimpleNamespace

import pytest
from fabricated_runs import ROOT
from sweeps import SCALES, read_sweep

from brt import config
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.reporting.gin_text import write_gin
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.recurrent_memory import TABLE_2, TABLE_4, TABLE_5

TABLES = {"rmt_table_2": TABLE_2, "rmt_table_4": TABLE_4, "rmt_table_5": TABLE_5}
every_table = pytest.mark.parametrize(
    "name",
    ["rmt_table_2", "rmt_table_4", pytest.param("rmt_table_5", marks=pytest.mark.slow)],
)


@functools.cache
def entries(name):
    """Entries of a sweep, each with its place in the paper's tables."""
    found = read_sweep(ROOT / f"configs/sweeps/{name}.txt", SCALES["paper"], None, [], None)
    return [(entry, placed(entry)) for entry in found]


def placed(entry):
    store = entry.settings["Corpus.store"].rsplit("/", 1)[-1]
    return paper_position(SimpleNamespace(paper_settings=entry.settings, corpus=store))


@every_table
def test_a_sweep_has_the_rows_of_its_table_that_are_trained_in_their_order(name):
    table, found = TABLES[name], entries(name)
    rows = [row for row in table.rows if row.where is not None]
    assert (
        len(found) == len(rows) == {"rmt_table_2": 16, "rmt_table_4": 14, "rmt_table_5": 49}[name]
    )
    for (entry, where), row in zip(found, rows, strict=True):
        for what, value in (table.where | row.where).items():
            assert getattr(where, what) == value, (entry.name, what)
    assert len({write_gin(entry.settings) for entry, _ in found}) == len(found)
    assert all(len(entry.name) < 240 for entry, _ in found)


@every_table
def test_batches_schedules_and_losses_are_the_published_ones(name):
    tokens = {150: 60 * 150, 50: 128 * 50, 512: 22 * 512, 128: 64 * 128}
    for entry, where in entries(name):
        settings = entry.settings
        segment = where.segment_length
        assert settings["Trainer.tokens_per_step"] == tokens[segment]
        evaluated = settings.get("Evaluation.segment_length", segment)
        assert evaluated == min(segment, 128) if name == "rmt_table_4" else evaluated == segment
        assert settings["Evaluation.tokens_per_step"] == 10 * evaluated
        assert str(settings["Trainer.schedule"]) == "@cosine"
        assert settings["Trainer.steps"] in ((400_000,) if name == "rmt_table_4" else (2e5, 4e5))
        assert ("RecurrentMemoryTransformer" in str(settings["Trainer.model"])) == (
            where.system not in ("Tr-XL", "Baseline")
        )
        assert settings.get("Trainer.reread_segments", 0) == where.bptt_depth
        assert not {"Trainer.segments_per_step", "Trainer.bptt_depth"} & settings.keys()
        weight = settings.get("RecurrentMemoryTransformer.auxiliary_weight", 0)
        assert weight == (0.01 if where.system == "Tr-XL + RMT" else 0)


def built(name, *bindings):
    corpus = "corpora/enwik8_symbols" if "enwik8" in name else "recipes/wikitext103"
    config.parse([f"{ROOT}/configs/rmt/{name}+{ROOT}/configs/{corpus}.gin"], bindings)
    return Experiment.from_gin()


@pytest.mark.parametrize(
    ("name", "published", "more"),
    [
        ("rmt_wt103_150.gin", 151_107_538 + 10 * 410, 410),
        ("rmt_wt103_50.gin", 151_107_538 + 10 * 410, 410),
        ("memtr_wt103_150.gin", 151_107_538 + 10 * 410, 410),
        ("rmt_txl_wt103_150.gin", 151_107_538 + 10 * 410, 410 + 411),
        ("rmt_enwik8_128.gin", 41_055_436 + 20 * 512, 512),
    ],
)
def test_the_count_of_parameters_is_the_published_one(name, published, more):
    # More: the begin vector, and one more word with its bias for the auxiliary loss.
    counts = count_parameters(built(name).model)
    assert counts.embedding + counts.non_embedding == published + more
    assert counts.recurrence == (20 * 512 if "enwik8" in name else 10 * 410)


def test_the_header_of_a_config_names_its_row():
    files = sorted((ROOT / "configs" / "rmt").glob("*.gin"))
    assert len(files) == 7
    for file in files:
        text = file.read_text()
        assert re.search(rf"^# Run: .*{file.name}", text, re.M)
        printed = re.search(r"^# Paper:  ([\d.]+(?: ± [\d.]+)?) (?:perplexity|bits)", text, re.M)
        assert printed[1] in {row.printed[0] for t in TABLES.values() for row in t.rows}
        assert re.search(r"^# Ours: ", text, re.M)


@pytest.mark.slow
@every_table
def test_every_row_builds_and_reads_every_binding(name, tmp_path):
    for entry, _ in entries(name):
        file = tmp_path / "entry.gin"
        file.write_text(write_gin(entry.settings))
        config.parse([str(file)])
        Experiment.from_gin()


def test_a_depth_beyond_the_segments_of_a_step_is_named():
    bindings = "Trainer.reread_segments = 0", "Trainer.bptt_depth = 4"
    with pytest.raises(ValueError, match=r"bptt_depth = 4 .*segments_per_step = 5"):
        built("rmt_wt103_150.gin", *bindings)


def test_a_config_builds_in_the_cheaper_way_that_its_header_names():
    for name in ("rmt_wt103_150.gin", "rmt_wt103_50.gin", "rmt_enwik8_128.gin"):
        text = (ROOT / "configs" / "rmt" / name).read_text()
        bindings = re.findall(r"--gin.(Trainer.(?:reread|segm|bptt)\w+=\d)", text)
        published, cheaper = built(name).trainer, built(name, *bindings).trainer
        assert cheaper.bptt_depth == published.reread_segments > 0
        assert cheaper.rows * cheaper.segments_per_step == published.rows
        assert not cheaper.reread_segments
