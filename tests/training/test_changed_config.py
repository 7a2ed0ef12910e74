"""A run folder is another configuration's: which bindings may change when a run is resumed."""

import contextlib
import dataclasses

import jax
import pytest
from gin_settings import bound
from tiny_run import build, contents, differing, one_device, train_here, write_config

from brt.run.loop import TrainingRun
from brt.training.checkpoints.checkpoint import OtherModel
from brt.training.resume import ChangedConfig, check_bindings

STEPS = 4
BINDINGS = (
    f"Trainer.steps = {STEPS}",
    "CheckpointPolicy.every = 2",
    "Trainer.eval_every = 2",
    *bound("Evaluation", max_steps=1, cleared=False),
)


FREE = (
    *("Trainer.steps", "Trainer.log_every", "Trainer.eval_every", "Trainer.mesh"),
    *("Trainer.evaluation", "Trainer.checkpoints", "Trainer.accumulation", "Corpus.store"),
    *("Evaluation.", "CheckpointPolicy.", "RecallScore."),
)


def opened(tiny, folder, **options):
    mesh = one_device()
    with jax.set_mesh(mesh):
        run = TrainingRun(tiny.experiment, mesh, str(folder), **options)
        run.close()
    return run


def test_a_changed_binding_of_the_computation_is_refused(tiny, straight, monkeypatch):
    folder, bindings = straight.folder.path, tiny.experiment.bindings
    before = contents(folder)
    others = [name for name in bindings if not name.startswith(FREE)]
    assert len(others) > 30
    for name in others[::3]:
        monkeypatch.setattr(tiny.experiment, "bindings", {**bindings, name: "'changed'"})
        with pytest.raises(ChangedConfig) as caught:
            opened(tiny, folder)
        lines = str(caught.value).split("\n")
        assert lines[1:-1] == [f"  {name}: {bindings[name]} -> 'changed'"]
        assert folder in lines[0] and "--allow_changes" in lines[-1]
    assert contents(folder) == before


@pytest.mark.parametrize(
    "kind", [FREE[:4], ("Trainer.evaluation", "Trainer.checkpoints"), FREE[6:]], ids=lambda k: k[0]
)
def test_how_long_and_how_often_may_change(tiny, straight, monkeypatch, kind):
    bindings = tiny.experiment.bindings
    changed = {name: "'changed'" for name in bindings if name.startswith(kind)}
    changed |= {"RecallScore.far": "3"} if "RecallScore." in kind else {}
    assert len(changed) >= 2
    monkeypatch.setattr(tiny.experiment, "bindings", {**bindings, **changed})
    assert opened(tiny, straight.folder.path).start == STEPS


@pytest.mark.parametrize(
    ("plateau", "others", "line"),
    [
        (None, {"Trainer.steps": "%NUM", "NUM": "%OTHER", "OTHER": "8"}, None),
        (None, {"adamw.b1": "%B1", "B1": "0.8"}, "adamw.b1: 0.9 -> 0.8"),
        (None, {"Evaluation.model": "@evaluation/X", "evaluation/X.window": "8"}, None),
        (object(), {"evaluation/X.window": "8"}, "evaluation/X.window: "),
        (None, {"Trainer.accumulation": "2"}, None),
        (object(), {"Trainer.accumulation": "2"}, "Trainer.accumulation: "),
    ],
)
def test_macros_and_scopes_count_as_what_reads_them(
    tiny, straight, monkeypatch, plateau, others, line
):
    bindings = {**tiny.experiment.bindings, "adamw.b1": "0.9"}
    trainer = dataclasses.replace(tiny.experiment.trainer, plateau=plateau)
    monkeypatch.setattr(straight.checkpoints, "record", lambda step: {"bindings": bindings})
    with pytest.raises(ChangedConfig, match=line) if line else contextlib.nullcontext():
        check_bindings(straight.checkpoints, bindings | others, trainer, straight.store)


def test_other_tokens_are_refused_and_a_moved_store_is_not(tmp_path):
    path = write_config(tmp_path)
    train_here(build(path, *BINDINGS), tmp_path / "run", stop_after=2)
    (tmp_path / "stores").rename(tmp_path / "moved")
    moved = f"Corpus.store = '{tmp_path}/moved'"
    assert opened(build(path, *BINDINGS, moved), tmp_path / "run").start == 2
    (tmp_path / "texts" / "train" / "99.txt").write_text("one more document")
    tiny = build(path, *BINDINGS)
    with pytest.raises(ChangedConfig, match=rf"tokens of {tmp_path}/stores/train"):
        opened(tiny, tmp_path / "run")
    assert opened(tiny, tmp_path / "run", allow_changes=True).start == 2


def test_changes_are_accepted_with_the_flag_if_the_shapes_fit(tiny, straight, monkeypatch):
    bindings = {**tiny.experiment.bindings, "adamw.b1": "0.8"}
    monkeypatch.setattr(tiny.experiment, "bindings", bindings)
    run = opened(tiny, straight.folder.path, allow_changes=True)
    assert run.resumed and not differing(run.state, straight.state)


@pytest.mark.usefixtures("collect_garbage")
def test_changes_that_do_not_fit_are_an_error_even_with_the_flag(tiny, straight):
    wider = build(tiny.path, *BINDINGS, "BlockRecurrentTransformer.feed_forward_size = 20")
    before = contents(straight.folder.path)
    with pytest.raises(OtherModel, match=r"\(20, 16\)|\(16, 20\)"):
        opened(wider, straight.folder.path, allow_changes=True)
    assert contents(straight.folder.path) == before
