"""The best checkpoint is kept and read; a run that stops early ends alike, however disturbed."""

import json
import os
import shutil

import gin
import jax
import pytest
from gin_settings import bound
from hypothesis import given
from hypothesis import strategies as st
from marking import slow
from tiny_run import (
    PLAIN,
    Killed,
    assert_same_run,
    build,
    command,
    differing,
    records,
    train_here,
)

from brt import evaluate, generate, train
from brt.model_folder import load_run
from brt.reporting.run_tables import evaluations, overview
from brt.reporting.runs import Run
from brt.run.loop import TrainingRun
from brt.run.loop_evaluation import LoopEvaluation
from brt.training.checkpoints.checkpoint import CheckpointError
from brt.training.checkpoints.policy import Best, CheckpointPolicy, stopped_early
from brt.training.experiment_checks import check_trainer
from brt.training.records.run_folder import read_metrics
from brt.training.settings import Trainer

LINES = PLAIN
BINDINGS = (
    *bound("Trainer", steps=16, log_every=3, eval_every=2),
    *bound("Evaluation", max_steps=3, cleared=False),
    "rsqrt.multiplier = 4.0",  # so high that the loss rises at times, first at step 6
    *bound("CheckpointPolicy", every=5, keep_last=1, keep_best=True),
)
PATIENT = (*BINDINGS, "CheckpointPolicy.patience = 1")
KEPT = ("train/", "eval/", "data/", "best/")


@pytest.fixture(autouse=True)
def nothing_bound():
    """Policies made here are of their own arguments, not of the run before."""
    gin.clear_config()


@pytest.fixture(scope="module")
def patient(tiny):
    return build(tiny.path, *PATIENT)


@pytest.fixture(scope="module")
def straight(tiny, folder):
    """The whole run, and the parameters after each step."""
    params = {}

    def keep(step, state, batch):
        params[step - 1] = jax.device_get(state.params)
        return state, batch

    run = train_here(tiny, folder / "straight", hook=keep)
    params[16] = jax.device_get(run.state.params)
    return run, params


@pytest.fixture(scope="module")
def early(patient, folder):
    return train_here(patient, folder / "early")


def assert_same_end(run, expected):
    """Records, parameters, checkpoints and best evaluation are the same."""
    assert_same_run(run, expected)
    assert records(run.folder.path, *KEPT) == records(expected.folder.path, *KEPT)
    assert run.evaluation.best == expected.evaluation.best
    assert run.checkpoints.steps() == expected.checkpoints.steps()


def losses(run):
    return {r["step"]: r["eval/loss"] for r in records(run.folder.path, "eval/")}


# Kept checkpoints.


def test_the_best_checkpoint_outlives_the_newest_ones(straight):
    run, params = straight
    found = losses(run)
    best = min(found, key=found.get)
    assert 5 < best < 16, "the last evaluation is the best one, which shows nothing"
    assert run.checkpoints.steps() == [best, 16]
    said = {r["step"]: (r["best/step"], r["best/loss"]) for r in records(run.folder.path, "best/")}
    for step in found:
        before = {other: loss for other, loss in found.items() if other <= step}
        assert said[step] == min(((s, x) for s, x in before.items()), key=lambda pair: pair[1])
    _, loaded, step = load_run(run.folder.path)
    assert step == best and not differing(loaded, params[best])
    _, loaded, step = load_run(run.folder.path, step="newest")
    assert step == 16 and not differing(loaded, params[16])


def test_a_run_that_keeps_no_best_records_nothing_of_it(tiny, tmp_path):
    run = train_here(build(tiny.path, *BINDINGS[:-1], "Trainer.steps = 3"), tmp_path)
    assert run.checkpoints.steps() == [3] and not records(run.folder.path, "best/")
    assert load_run(run.folder.path)[2] == 3
    with pytest.raises(FileNotFoundError, match=r"CheckpointPolicy\.keep_best"):
        load_run(run.folder.path, step="best")


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, float("nan"), float("inf")]), max_size=12),
    st.sampled_from(["min", "max"]),
)
def test_the_best_of_the_records_is_the_best_in_the_loop(values, mode):
    policy = CheckpointPolicy(keep_best=True, metric="loss", mode=mode)
    best, lines = Best(), [{"step": 1, "train/loss": 0.0}]
    for step, value in enumerate(values, 1):
        best = policy.after(best, step, "loss", value)
        lines.append(json.loads(json.dumps({"step": step, "eval/loss": value})))
    assert policy.best_of(lines) == best
    compared = [(v if mode == "min" else -v, step) for step, v in enumerate(values, 1) if v == v]
    if not compared:
        assert best == Best(since=len(values))
    else:
        step = min(compared)[1]
        assert best == Best(step, values[step - 1], len(values) - step)


@given(st.sets(st.integers(0, 60)), st.integers(1, 4), st.none() | st.integers(1, 9), st.data())
def test_what_is_kept_is_the_newest_the_multiples_and_the_best(steps, last, every, data):
    best = data.draw(st.none() | st.integers(0, 60))
    kept = CheckpointPolicy(keep_last=last, keep_every=every).kept(steps, best)
    newest = sorted(steps, reverse=True)[:last]
    for step in steps:
        wanted = step in newest or step == best or (every is not None and step % every == 0)
        assert (step in kept) == wanted
    assert kept <= steps


# Killed and stopped.


@pytest.mark.parametrize(
    ("owner", "method", "number"),
    [
        (LoopEvaluation, "_compare", 2),
        (TrainingRun, "_save", 4),
        slow(LoopEvaluation, "_compare", 3),
        slow(TrainingRun, "_save", 2),
        slow(LoopEvaluation, "record_end", 1),
    ],
)
def test_a_run_killed_around_an_evaluation_ends_early_alike(
    patient, early, tmp_path, monkeypatch, owner, method, number
):
    usual, calls = getattr(owner, method), []

    def killing(self, *arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise Killed
        return usual(self, *arguments)

    monkeypatch.setattr(owner, method, killing)
    with pytest.raises(Killed):
        train_here(patient, tmp_path)
    assert_same_end(train_here(patient, tmp_path), early)


# Stopped early.


def test_a_run_without_improvement_stops_early_and_is_done(early, patient, straight):
    found = losses(straight[0])
    assert losses(early) == {step: found[step] for step in (2, 4, 6)}
    assert int(early.state.step) == 6 and early.evaluation.best == Best(4, found[4], 1)
    assert early.checkpoints.steps() == [4, 6]
    before = records(early.folder.path, *KEPT)
    assert before[-1] == {"step": 6, "best/stopped_early": 1}
    again = train_here(patient, early.folder.path)
    assert again.done and "stopped early, at step 6" in again.end
    assert records(early.folder.path, *KEPT) == before


def test_more_patience_goes_on_as_if_there_had_been_no_less(early, tiny, straight, tmp_path):
    shutil.copytree(early.folder.path, tmp_path, dirs_exist_ok=True)
    longer = build(tiny.path, *BINDINGS, "CheckpointPolicy.patience = 2")
    run = train_here(longer, tmp_path)
    assert run.start == 6
    assert_same_run(run, straight[0])
    assert run.evaluation.best == straight[0].evaluation.best


def test_less_patience_ends_the_run_where_it_is(patient, tiny, tmp_path):
    train_here(tiny, tmp_path, stop_after=7)
    run = train_here(patient, tmp_path)
    assert int(run.state.step) == 7 and stopped_early(read_metrics(str(tmp_path)))
    assert train_here(patient, tmp_path).done


def test_the_commands_say_which_checkpoint_they_read(patient, tmp_path, monkeypatch, capsys):
    line = [f"--gin_file={patient.path}", f"--workdir={tmp_path}"]
    line += [f"--gin.{binding.replace(' = ', '=')}" for binding in PATIENT]
    assert command(monkeypatch, train, *line) == 0
    capsys.readouterr()
    assert command(monkeypatch, train, *line) == 0
    assert "stopped early, at step 6" in capsys.readouterr().out

    def evaluated(*flags, name="validation"):
        assert command(monkeypatch, evaluate, f"--workdir={tmp_path}", *flags) == 0
        file = tmp_path / f"evaluation_{name}.json"
        return json.loads(file.read_text()), capsys.readouterr().out

    for flags in (("--step=best",), ("--record",)):
        found, said = evaluated(*flags)
        assert found["step"] == 4 and found["best_by"] == "loss" and "best by loss" in said
    run = Run(tmp_path)
    assert any("best checkpoint by loss" in note for note in evaluations([run]).notes())
    assert run.stopped_early
    table = overview([run])
    assert any("stopped early" in note for note in table.notes())
    found, _ = evaluated("--step=newest", name="validation_step_6")
    assert found["step"] == 6 and "best_by" not in found
    assert {e["step"] for e in Run(tmp_path).evaluations.values()} == {4, 6}
    for flag, said in (("--step=10", "4, 6"), ("--step=last", "best"), ("--step=-1", "newest")):
        assert command(monkeypatch, evaluate, f"--workdir={tmp_path}", flag) == 1
        assert said in capsys.readouterr().err
    line = [f"--workdir={tmp_path}", "--prompt=a", "--max_tokens=1"]
    assert command(monkeypatch, generate, *line) == 0
    assert "at step 4" in capsys.readouterr().err
    assert command(monkeypatch, generate, *line, "--step=6") == 0
    assert "at step 6" in capsys.readouterr().err


def test_a_damaged_best_checkpoint_is_not_replaced_by_another(early, tmp_path):
    shutil.copytree(early.folder.path, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "checkpoints" / "4" / "record").rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    with pytest.raises(CheckpointError, match=r"Checkpoint 4 .*6"):
        load_run(str(tmp_path))
    assert load_run(str(tmp_path), step="newest")[2] == 6


# Settings.


@pytest.mark.parametrize(
    ("labelled", "scalars", "expected"),
    [
        (False, ("accuracy", "f1", "loss"), "loss"),
        (True, ("accuracy", "f1", "f1/left", "loss", "macro_f1"), "f1"),
        (True, ("accuracy", "loss", "macro_f1"), "macro_f1"),
        (True, ("exact_match", "loss", "macro_f1", "micro_f1"), "micro_f1"),
        (True, ("answer_f1", "exact_match", "loss"), "answer_f1"),
        (True, ("accuracy", "loss"), "accuracy"),
    ],
)
def test_the_metric_follows_what_is_read(labelled, scalars, expected):
    policy = CheckpointPolicy(keep_best=True)
    values = dict.fromkeys(scalars, 0.5)
    assert policy.metric_of(values, labelled) == expected
    best = policy.after(Best(1, 0.5), 2, expected, 0.6)
    assert best.step == (1 if expected == "loss" else 2)


@pytest.mark.parametrize(
    ("metric", "low"),
    [
        *(("perplexity", True), ("eval/loss/books", True), ("cleared_bits_per_byte", True)),
        *(("recall_accuracy", False), ("f1/loss", False), ("answer_f1", False)),
    ],
)
def test_a_direction_follows_the_name(metric, low):
    policy = CheckpointPolicy(keep_best=True, metric=metric)
    best = policy.after(Best(1, 0.5), 2, policy.metric, 0.4)
    assert best.step == (2 if low else 1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"patience": 3}, "keep_best"),
        ({"metric": "loss"}, "keep_best"),
        ({"keep_best": True, "metric": "los"}, "mode"),
        ({"keep_best": True, "mode": "low"}, "mode"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, named):
    with pytest.raises(ValueError, match=rf"CheckpointPolicy\..*{named}"):
        CheckpointPolicy(**wrong)


def test_a_best_without_evaluations_is_refused():
    with pytest.raises(ValueError, match=r"keep_best.*Trainer\.eval_every"):
        policy = CheckpointPolicy(keep_best=True)
        check_trainer(Trainer(object(), print, print, 1, 8, 8, checkpoints=policy, eval_every=0))


def test_a_metric_that_is_not_there_costs_no_step(tiny, straight, tmp_path):
    wrong = build(tiny.path, *BINDINGS, "CheckpointPolicy.metric = 'f1'")
    with pytest.raises(ValueError, match=r"CheckpointPolicy\.metric = 'f1'.*loss"):
        train_here(wrong, tmp_path)
    run = train_here(tiny, tmp_path)
    assert run.start == 2
    assert_same_end(run, straight[0])


def test_records_of_the_best_stay_whole_when_lines_are_left_out(early):
    lines = read_metrics(early.folder.path, most=3)
    assert [r["best/step"] for r in lines if "best/step" in r] == [2, 4, 4]
    assert "best/stopped_early" in lines[-1]
