"""A longer memory at evaluation, while it helps: on made-up losses, and on a tiny model."""

import json
import math

import pytest
from tiny_run import TXL, build, command, shared_programs, train_here, write_config  # noqa: F401

from brt import evaluate
from brt.evaluation.studies.attention_length import sweep


@pytest.mark.parametrize("last", [100, 300, 1600])
def test_the_sweep_ends_one_length_after_the_last_that_helped(last):
    asked = []

    def loss_of(length):
        asked.append(length)
        return 3.0 - 0.002 * min(length, last) / 100

    found = sweep(loss_of, range(100, 4000, 100))
    assert found.best == last and found.ended
    assert asked == found.lengths == list(range(100, last + 200, 100))
    assert found.losses == [3.0 - 0.002 * min(length, last) / 100 for length in asked]


def test_a_sweep_that_never_stops_helping_says_so():
    found = sweep(lambda length: 3.0 - length / 1000, [10, 20, 30])
    assert found == ([10, 20, 30], [2.99, 2.98, 2.97], 30, False)


def test_the_threshold_is_a_thousandth_of_the_perplexity_and_a_loss_ends_the_sweep():
    for drop, best in ((0.00099, 1), (0.00101, 3), (-0.5, 1)):
        assert sweep(lambda length, d=drop: 2.0 - d * length, [1, 2, 3]).best == best


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("txl")
    path = write_config(folder, *TXL, without=("BlockRecurrentTransformer", "RecurrentCell"))
    train_here(build(path), folder / "run")
    return folder / "run"


def test_the_sweep_of_a_run_is_one_command(monkeypatch, capsys, run):
    flags = "--study=attention_length", "--context_step=24", "--longest_context=60"
    monkeypatch.setattr(
        "brt.evaluation.studies.attention_length.THRESHOLD", -math.inf
    )  # try them all
    assert not command(monkeypatch, evaluate, f"--workdir={run}", *flags)
    found = json.loads((run / "studies" / "attention_length.json").read_text())
    (curve,) = found["series"]
    assert curve["x"] == [16, 24, 48] and found["numbers"]["best_length"] == 48
    assert found["numbers"]["initial_length"] == 16  # training's own
    assert found["verdict"] in capsys.readouterr().out
    for length, perplexity in zip(curve["x"], curve["y"]):
        bindings = ("Evaluation.model=@evaluation/TransformerXL",)
        bindings += (f"evaluation/TransformerXL.memory_length={length}",)
        flags = [f"--gin.{binding}" for binding in bindings]
        assert not command(monkeypatch, evaluate, f"--workdir={run}", *flags)
        figures = json.loads((run / "evaluation_validation.json").read_text())
        assert perplexity == pytest.approx(figures["perplexity"], rel=1e-6)
    assert len(set(curve["y"])) == 3


def test_where_nothing_is_gained_the_verdict_speaks_of_no_fall(monkeypatch, capsys, run):
    flags = "--study=attention_length", "--context_step=24", "--longest_context=24"
    monkeypatch.setattr("brt.evaluation.studies.attention_length.THRESHOLD", 1.0)
    assert not command(monkeypatch, evaluate, f"--workdir={run}", *flags)
    out = capsys.readouterr().out
    assert "with an attention length of 16, as in training; 24 gains less" in out
    assert "falls" not in out


def test_a_model_without_that_setting_is_refused(monkeypatch, capsys, run):
    flags = "--study=attention_length", "--lengthened=BlockRecurrentTransformer.window"
    assert command(monkeypatch, evaluate, f"--workdir={run}", *flags) == 1
    shown = capsys.readouterr().err
    assert "whose model is TransformerXL" in shown and "Traceback" not in shown
