"""A run that differs from a published number's settings fills its row, and the cell says in what.

The run folders hold what `brt.train` writes of a real experiment, every value in force, or in a
few tests the values that are bound; only the figures in them are made up.
"""

import json

import gin
import pytest
from fabricated_runs import filled_cells, make_entry_run, make_run, tables_of
from gin_settings import bound
from paths import ROOT
from published_checks import built

from brt.reporting.gin_text import read_gin_file, write_gin
from brt.reporting.papers.published_tables import read_paper
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import SCALES

ADDING_RECURRENCE, BLOCK_RECURRENT = map(read_paper, ("adding_recurrence", "block_recurrent"))
RECURRENT_MEMORY = read_paper("recurrent_memory")
BEGIN = "settings other than the published number's: "


def described(folder, name, *bindings, **scalars):
    """A run folder of a config as training describes it, with an evaluation of the test split.

    name: of the gin file below configs/, or several joined by `+`.
    """
    folder.mkdir()
    built([str(ROOT / "configs" / f"{part}.gin") for part in name.split("+")], bindings)
    (folder / "config.gin").write_text(gin.config_str())
    (folder / "operative_config.gin").write_text(gin.operative_config_str())
    figures = {"step": 10**9, "bits_per_token": 3.21, "perplexity": 32.1, **scalars}
    (folder / "evaluation_test.json").write_text(json.dumps(figures))
    return folder


def table_of(runs, paper=BLOCK_RECURRENT, name="table_1"):
    return tables_of(paper, runs)[name]


def cell(table, label):
    """The only measured cell of the row with this label."""
    (found,) = (cell for row, cells in filled_cells(table).items() if row[0] == label
                for cell in cells.values())  # fmt: skip
    return found


ALONE = {
    "BlockRecurrentTransformer.recurrent_layers = (2,)": "(2,) for (9,)",
    'RecurrentCell.order = "sequential"': "'sequential' for 'parallel'",
    "Trainer.steps = 1000": "1,000 for 500,000",
    'Trainer.stream = "contiguous"': "'contiguous' for 'documents'",
    "Trainer.average = @WeightAverage()": "@WeightAverage for None",
    "Trainer.schedule = @constant_rate": "@constant_rate (value 0.001, warmup_steps 1,000) "
    "for @rsqrt",
    "Trainer.optimizer = @adamw": "@adamw (b1 0.9, b2 0.999, clip_norm None, clip_value None, "
    "eps 1e-08, weight_decay 0.0) for @adafactor",
}
"""Bindings, each alone on the published config, and the note that the cell must have."""


@pytest.mark.parametrize("binding", ALONE)
def test_each_difference_alone_fills_the_row_and_is_named(tmp_path, binding):
    run = described(tmp_path / "run", "pg19_rec_fixed_skip", binding)
    found = cell(table_of([run]), "Rec:fixed:skip")
    assert found.values == (3.21,)
    assert found.note == f"{BEGIN}{binding.partition(' = ')[0]} = {ALONE[binding]}"


SAME = (
    *bound("Trainer", seed=7, log_every=1, eval_every=0, remat_segments=True, skip_nonfinite=True),
    'BlockRecurrentTransformer.remat = "layer"',
    'Corpus.store = "elsewhere/pg19_t5"',
    'TfdsText.name = "pg19:0.1.1"',
    "CheckpointPolicy.every = 10",
    'Evaluation.split = "test"',
)


def test_what_no_number_depends_on_is_no_difference(tmp_path):
    run = described(tmp_path / "run", "pg19_memorizing_64k", *SAME)
    assert table_of([run]).notes() == []


def test_what_a_run_does_not_bind_has_brt_s_default(tmp_path):
    run = make_run(tmp_path / "bound", "systems/rec_fixed_skip+recipes/arxiv")
    settings = read_gin_file(run / "config.gin")
    assert settings.pop("rsqrt.multiplier") == 0.5
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.gin").write_text(write_gin(settings))
    (run / "evaluation_test.json").write_text(json.dumps({"bits_per_token": 1.23}))
    note = cell(table_of([run]), "Rec:fixed:skip").note
    assert note == f"{BEGIN}rsqrt.multiplier = 1.0 for 0.5"


def test_runs_of_other_steps_are_no_seeds_of_one_another(tmp_path):
    runs = [described(tmp_path / "whole", "pg19_rec_fixed_skip")]
    runs.append(described(tmp_path / "short", "pg19_rec_fixed_skip", "Trainer.steps = 1000"))
    table = table_of(runs)
    filled = {row[0]: cells for row, cells in filled_cells(table).items()}
    assert [*filled] == ["Rec:fixed:skip", "Rec:fixed:skip, Trainer.steps = 1000"]
    assert all(len(c.values) == 1 for cells in filled.values() for c in cells.values())
    assert table.notes() == [f"{BEGIN}Trainer.steps = 1,000 for 500,000"]


def test_another_scales_model_fills_its_row_with_its_size(tmp_path):
    (tmp_path / "sweep.txt").write_text("pg19_rec_fixed_skip.gin\npg19_slide_13l.gin\n")
    corpus = ROOT / "configs/corpora/text.gin"
    entries = read_sweep(tmp_path / "sweep.txt", SCALES["small"], corpus, [], 100_000)
    table = table_of(
        make_entry_run(tmp_path / entry.name, entry, evaluations={"test": 2.5}) for entry in entries
    )
    steps, tokens = (entries[0].settings[f"Trainer.{n}"] for n in ("steps", "tokens_per_step"))
    for label, layers in (("Rec:fixed:skip", 4), ("Slide:13L", 5)):
        note = cell(table, label).note
        assert note.startswith(f"{BEGIN}a model of {layers} layers, d 128; ")
        assert f"Trainer.steps = {steps:,} for 500,000" in note
        assert f"Trainer.tokens_per_step = {tokens:,} for 131,072" in note
        assert "recurrent_layers" not in note and "window" not in note


PRETRAINED = (
    ("arpt_table_1", "pretrained/gpt2+corpora/wikitext103_raw", "gpt2"),
    ("arpt_table_2", "pretrained/gpt2_pooled+corpora/pg19_first", "gpt2"),
    ("rmt_table_3", "readers/t5+labelled/hyperpartisan", "t5-base"),
)
"""Tables of pretrained models, a config of a row, and the folder that it begins with."""
SMALL = {"num_layers": "2 for 12", "width": "8 for 768", "num_heads": "2 for 12"}


def pretrained_table(folder, name, of_config, *bindings):
    scalars = {"word_level_perplexity": 150.0, "f1": 0.9, "answer_f1": 0.5, "exact_match": 0.4}
    run = make_run(folder, of_config, *bindings, evaluations={"test": scalars})
    table = table_of([run], ADDING_RECURRENCE if "arpt" in name else RECURRENT_MEMORY, name)
    assert sum(map(len, filled_cells(table).values())) in (1, 2)
    return table


@pytest.mark.parametrize(
    "row, binding, note",
    [
        (1, 'FirstDocuments.first = {"train": 2}', "{'train': 2} for {'train': 1250}"),
        (1, 'FirstTokens.first = {"test": 9}', "{'test': 9} for {'validation': 15000}"),
        (2, "Hyperpartisan.split_file = None", "None for 'hp-splits.json'"),
    ],
)
def test_a_part_of_the_published_corpus_is_named(tmp_path, row, binding, note):
    name, of_config, folder = PRETRAINED[row]
    given = [f'Pretrained.folder = "{folder}"', binding]
    notes = pretrained_table(tmp_path / "run", name, of_config, *given).notes()
    assert notes == [f"{BEGIN}{binding.partition(' = ')[0]} = {note}"]


@pytest.mark.parametrize("name, of_config, folder", PRETRAINED)
def test_a_small_model_a_random_one_and_a_short_run_are_named(tmp_path, name, of_config, folder):
    body = {"gpt2": "GPT2", "t5": "T5"}
    body = body[of_config.partition("/")[2].partition("+")[0].partition("_")[0]]
    small = [f"{body}.{size} = {text.split()[0]}" for size, text in SMALL.items()]
    (note,) = pretrained_table(
        tmp_path / "run", name, of_config, *small, "Trainer.steps = 2"
    ).notes()
    for size, text in SMALL.items():
        assert f"{body}.{size} = {text}" in note
    assert f"Pretrained.folder = None (random parameters) for {folder!r}" in note
    assert "Trainer.steps = 2 for " in note


def test_a_body_of_its_folder_s_sizes_is_compared_by_the_folder(tmp_path):
    unbound = [f"GPT2.{size} = None" for size in (*SMALL, "num_positions")]
    notes = []
    for folder in ("gpt2", "gpt2-medium"):
        given = *unbound, f'Pretrained.folder = "models/{folder}"'
        notes += pretrained_table(tmp_path / folder, *PRETRAINED[0][:2], *given).notes()
    assert notes == [f"{BEGIN}Pretrained.folder = 'gpt2-medium' for 'gpt2'"]
