"""The scripts that set pretrained models side by side: what they bind, and what they print."""

import importlib
import json
import types

import pytest
from architectures import abstract
from gin_settings import bound
from paths import SCRIPTS
from tiny_run import build, command, train_here, write_config

from brt import evaluate

LINES = (
    *bound(
        "Trainer",
        model="@PretrainedLanguageModel",
        segments_per_step=2,
        segment_length=8,
        tokens_per_step=32,
        steps=2,
    ),
    *bound("GPT2", vocabulary_size=260, num_layers=2, width=8, num_heads=2, num_positions=8),
)
POOLED = ("PretrainedLanguageModel.memories = (@PooledMemory,)", "PooledMemory.hidden = (5,)")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS / "pretrained")
    return importlib.import_module


@pytest.mark.slow
def test_without_memory_every_overlap_is_evaluated(script, tmp_path, capsys, monkeypatch):
    compare = script("compare_overlaps")
    runs = []
    for name, more in (("alone-seed0", ()), ("alone-seed1", ()), ("pooled-seed0", POOLED)):
        folder = tmp_path / name
        folder.mkdir()
        seed = f"Trainer.seed = {name[-1]}"
        tiny = build(write_config(folder, *LINES, *more, seed))
        train_here(tiny, tmp_path / "runs" / name)
        runs.append(str(tmp_path / "runs" / name))
    assert compare.main([*runs, "--overlaps=0,3,9"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "`" in line]
    cells = {(row[0].strip(" `"), row[1].strip()): [cell.strip() for cell in row] for row in rows}
    assert cells.keys() == {("alone", "0"), ("alone", "3"), ("pooled", "0")}
    assert cells["alone", "0"][2] == "2" and "±" in cells["alone", "0"][4]
    assert not cells["alone", "3"][5] and cells["pooled", "0"][5]
    flops = [int(cells[key][3].replace(",", "")) for key in (("alone", "0"), ("alone", "3"))]
    assert flops[1] > flops[0]
    kept = json.loads((tmp_path / "runs/alone-seed0/overlaps_validation.json").read_text())
    assert kept["0"]["scored_tokens"] == kept["3"]["scored_tokens"]
    # What was evaluated is not evaluated again.
    monkeypatch.setattr(compare, "evaluate", None)
    assert compare.main([*runs, "--overlaps=0,3,9"]) == 0


def test_a_run_that_was_trained_further_is_evaluated_again(script, tmp_path, monkeypatch):
    compare = script("compare_overlaps")
    experiment = types.SimpleNamespace(model=None)
    for step, loss in ((2, 3.0), (4, 1.0)):
        monkeypatch.setattr(compare, "load_run", lambda _, step=step: (experiment, {}, step))
        figures = {"loss": loss, "step": step}
        monkeypatch.setattr(compare, "evaluate", lambda *_, figures=figures: figures)
        assert compare.figures_of(tmp_path, [0], "test")["0"]["loss"] == loss
    monkeypatch.setattr(compare, "overlaps_of", lambda *_: (6, {2: []}))  # 0 is of another step
    monkeypatch.setattr(compare, "evaluate", lambda *_: {"loss": 2.0, "step": 6})
    assert compare.figures_of(tmp_path, [2], "test").keys() == {"2"}


def test_a_run_with_an_overlap_is_evaluated_in_its_windows(script, monkeypatch):
    compare = script("compare_overlaps")
    for name, expected in (("gpt2_overlap", {0: 11, 3: 8}), ("gpt2_pooled", {11: None})):
        trainer = types.SimpleNamespace(segment_length=8, rows=2)
        experiment = types.SimpleNamespace(model=abstract(name), trainer=trainer)
        monkeypatch.setattr(compare, "load_run", lambda _, e=experiment: (e, {}, 1))
        _, found = compare.overlaps_of("run", [0, 3])
        assert {*found} == {*expected}
        for overlap, length in expected.items():
            assert not length or f"Trainer.segment_length = {length}" in found[overlap]


def test_without_overlap_a_run_is_evaluated_with_one_by_pooling(tmp_path, monkeypatch):
    longer = "GPT2.num_positions = 16"
    tiny = build(write_config(tmp_path, *LINES, *POOLED, longer))
    train_here(tiny, tmp_path / "run")
    length = tiny.experiment.trainer.segment_length

    def evaluated(overlap, *flags):
        given = f"overlap={overlap}", f"segment_length={length - overlap}"
        owners = "PretrainedLanguageModel", "Evaluation"
        flags = (*flags, *(f"--gin.{owner}.{one}" for owner, one in zip(owners, given)))
        assert command(monkeypatch, evaluate, f"--workdir={tmp_path}/run", *flags) == 0
        return json.loads((tmp_path / "run" / "evaluation_validation.json").read_text())

    anew = "--gin.PooledMemory.pooled='unrepeated'"
    alone, pooled_all, pooled_anew = evaluated(0), evaluated(3), evaluated(3, anew)
    assert evaluated(0, anew)["loss"] == alone["loss"]  # without an overlap nothing is repeated
    assert len({found["loss"] for found in (alone, pooled_all, pooled_anew)}) == 3
    assert alone["scored_tokens"] == pooled_all["scored_tokens"] == pooled_anew["scored_tokens"]
    assert anew.removeprefix("--gin.").replace("=", " = ", 1) in pooled_anew["given"]


def test_an_interval_over_seeds_is_that_of_student(script):
    spread = script("compare_overlaps").spread
    assert spread([3.0]) == "3.00"
    # scipy.stats.t.interval(0.95, 2, 2, 1 / sqrt(3)) reaches 2.484 from the mean.
    assert spread([1.0, 2.0, 3.0]) == "2.00 ± 2.48"


@pytest.mark.slow
def test_a_difference_is_taken_seed_by_seed(script):
    compare = script("compare_overlaps")
    key = compare.PERPLEXITY
    alone = {"0": {key: 400.0}, "1": {key: 300.0}, "2": {key: 200.0}}
    memory = {"0": {key: 390.0}, "2": {key: 190.0}, "7": {key: 1.0}}
    assert compare.difference(memory, alone) == "-10.00 ± 0.00"
    assert compare.difference(alone, alone) == compare.difference({"8": {key: 1.0}}, alone) == ""
