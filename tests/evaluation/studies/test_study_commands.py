"""Recordings and studies as commands, on trained runs: killed, partial, refused."""

import json
import math
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_run import PLAIN, build, command, contents, start, train_here, write_config

from brt import evaluate
from brt.evaluation.recording import Recording

NOT_MADE = shutil.ignore_patterns("recordings", "evaluation_*", "studies")
"""Leaves out of a copied run all outputs of evaluations and studies."""


@pytest.fixture(scope="module")
def runs(folder):
    """Folders of a trained recurrent run and of one without a state, on the same texts."""
    tiny = build(write_config(folder))
    train_here(tiny, folder / "rec")
    train_here(build(write_config(folder, *PLAIN)), folder / "slide")
    return folder


@pytest.mark.parametrize(
    ("name", "flags", "numbers"),
    [
        ("compare", ["--other={}/slide", "--documents=3"], ["better_top4_of", "difference_bits"]),
        ("compare", [], ["largest_difference_bits_first_segment", "worse_top40_of"]),
        ("compare", ["--gin.Compare.against='swapped'"], ["better_top4_of"]),
        ("memory_use", [], ["cost_cleared", "cost_swapped", "layer0/half_life_tokens"]),
        ("reach", [], ["state_cost_nearest", "context_reach"]),
        ("positions", ["--other={}/slide"], ["longest", "documents"]),
    ],
)
def test_a_study_is_one_command(monkeypatch, capsys, runs, name, flags, numbers):
    run = runs / "rec"
    flags = [flag.format(runs) for flag in flags]
    assert not command(monkeypatch, evaluate, f"--workdir={run}", f"--study={name}", *flags)
    shown = capsys.readouterr().out
    flag = dict(flag[2:].split("=") for flag in flags)
    beside = flag.get(
        "other", flag.get("gin.Compare.against", "cleared" * (name == "compare")).strip("'")
    )
    file = f"{name}-{Path(beside).name}.json" if beside else f"{name}.json"
    found = json.loads((run / "studies" / file).read_text())
    assert found["study"] == name and found["step"] == 6 and found["split"] == "validation"
    assert set(numbers) <= found["numbers"].keys()
    assert all(number in shown for number in numbers)
    assert found["summary"] in shown and f"{run}/studies/{file}" in shown
    for series in found["series"]:
        assert len(series["x"]) == len(series["y"]) and series["x_label"] and series["y_label"]
    if name == "compare" and not flags:
        # Nothing is cleared before a first segment.
        assert found["numbers"]["largest_difference_bits_first_segment"] == 0
        assert found["against"] == "cleared"


def test_an_evaluation_that_keeps_tokens_has_the_same_figures(monkeypatch, capsys, runs):
    run = runs / "rec"
    file = run / "evaluation_validation.json"
    assert not command(monkeypatch, evaluate, f"--workdir={run}")
    plain = json.loads(file.read_text())
    assert not command(monkeypatch, evaluate, f"--workdir={run}", "--record")
    shown, recorded = capsys.readouterr().out, json.loads(file.read_text())
    assert plain.keys() == recorded.keys()
    assert {"words", "characters", "word_level_perplexity", "cleared_bits_per_character"} <= set(
        plain
    )
    for name, value in plain.items():
        assert recorded[name] == (value if isinstance(value, str) else pytest.approx(value)), name
    assert plain["caveat"] in shown and "recordings/validation-cleared" in shown


def test_a_killed_evaluation_continues_to_the_same_figures(monkeypatch, runs, tmp_path):
    for name in ("whole", "killed"):
        shutil.copytree(runs / "rec", tmp_path / name, ignore=NOT_MADE)
    flags = f"--workdir={tmp_path / 'killed'}", "--record"
    process = start("tests.support.killed_evaluation", "4", *flags)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors
    kept = Recording(tmp_path / "killed" / "recordings" / "validation-kept")
    assert kept.done_D.any() and not kept.done_D.all()
    assert not (tmp_path / "killed" / "evaluation_validation.json").exists()
    for name in ("killed", "whole"):
        assert not command(monkeypatch, evaluate, f"--workdir={tmp_path / name}", "--record")
    killed, whole = (contents(tmp_path / name) for name in ("killed", "whole"))
    assert killed.keys() == whole.keys()
    for name in killed:
        if name.endswith(".npz") or name.startswith("evaluation"):
            assert killed[name][1] == whole[name][1], name


def test_parameters_that_diverged_are_not_evaluated(monkeypatch, capsys, runs):
    load, before = evaluate.load_params, contents(runs / "slide")

    def diverged(*arguments):
        state, record = load(*arguments)
        return state._replace(params=jax.tree.map(lambda x: x * np.nan, state.params)), record

    monkeypatch.setattr(evaluate, "load_params", diverged)
    assert command(monkeypatch, evaluate, f"--workdir={runs}/slide") == 1
    assert "at step 6 is nan" in capsys.readouterr().err
    assert contents(runs / "slide") == before


def test_some_documents_are_recorded_and_the_rest_later(monkeypatch, capsys, runs, tmp_path):
    shutil.copytree(runs / "slide", tmp_path / "run", ignore=NOT_MADE)
    flags = f"--workdir={tmp_path / 'run'}", "--record"
    assert not command(monkeypatch, evaluate, *flags, "--documents=2", "--study_seed=3")
    shown = capsys.readouterr().out
    recording = Recording(tmp_path / "run" / "recordings" / "validation-kept")
    chosen = np.flatnonzero(recording.done_D).tolist()
    assert len(chosen) == 2 and f"documents {chosen}" in shown
    nats = np.concatenate([recording.document(d).nats_T for d in chosen])
    bits = nats.mean(dtype=float) / math.log(2)
    assert f"{bits:,.6f}" in shown and "bits_per_byte" not in shown
    assert not list((tmp_path / "run").glob("evaluation_*"))  # it is not of the split
    assert not command(monkeypatch, evaluate, *flags)
    assert (tmp_path / "run" / "evaluation_validation.json").exists()


def test_each_compared_run_has_the_loss_of_its_evaluation(monkeypatch, runs):
    flags = "--study=compare", f"--other={runs}/slide"  # of all documents
    assert not command(monkeypatch, evaluate, f"--workdir={runs}/rec", *flags)
    found = json.loads((runs / "rec" / "studies" / "compare-slide.json").read_text())["numbers"]
    for name, key in (("rec", "bits_per_token"), ("slide", "other_bits_per_token")):
        assert not command(monkeypatch, evaluate, f"--workdir={runs / name}")
        figures = json.loads((runs / name / "evaluation_validation.json").read_text())
        assert found[key] == pytest.approx(figures["bits_per_token"], rel=1e-6)
    assert found["tokens"] == figures["scored_tokens"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--documents=2"], "--documents with --study or --record"),
        (["--other={}/slide"], "--other goes with --study"),
        (["--gin.Evaluation.split='nothing'"], "leads to no files"),
        (
            ["--gin.Corpus.vocabulary='words:{}/words.txt'", "--gin.Corpus.store='{}/words'"],
            "trained with the tokenizer bytes of size 256, and",
        ),
        (["--study=compare", "--other=nowhere"], "nowhere is not a run folder"),
        (["--study=reach", "--other={}/rec"], "--study=reach cannot read 1 further runs"),
        (["--study=reach", "--record"], "--study and --record are two commands"),
        (["--study=compare", "--other={}/slide/../rec"], "is the run itself"),
        (["--record", "--gin.Trainer.stream='contiguous'"], "Trainer.stream"),
        (["--study=reach", "--gin.Trainer.stream='contiguous'"], "Trainer.stream"),
    ],
)
def test_what_cannot_be_studied_is_said(monkeypatch, capsys, runs, flags, sentence):
    flags = [flag.format(runs) for flag in flags]
    (runs / "words.txt").write_text("<eos>\n<unk>\naaa\n")
    (runs / "texts" / "nothing").mkdir(exist_ok=True)
    before = contents(runs / "rec")
    assert command(monkeypatch, evaluate, f"--workdir={runs}/rec", *flags) == 1
    shown = capsys.readouterr().err
    assert sentence in shown and "Traceback" not in shown
    assert contents(runs / "rec") == before
