"""A run that is stopped during an evaluation makes it when it is resumed, and only once."""

import os
import signal

import numpy as np
import pytest
from test_plateau import scales
from tiny_run import assert_same_run, command, records, train_here

from brt import train
from brt.evaluation.segment_reader import SegmentReader

STEPS = 12
BINDINGS = (
    f"Trainer.steps = {STEPS}",
    "Trainer.log_every = 3",
    "CheckpointPolicy.every = 6",
    "Trainer.eval_every = 4",
    "Evaluation.max_steps = 3",
    # Every evaluation decides the rate of the steps after it.
    "Trainer.plateau = @ReduceOnPlateau()",
    "ReduceOnPlateau.patience = 0",
    "rsqrt.multiplier = 80.0",  # so high that the loss rises at step 8
)


@pytest.fixture
def passes(monkeypatch):
    """What each pass over the validation text read, and segments after which SIGTERM comes.

    A pass of three segments with the state kept, and one with it cleared, are one evaluation.
    """
    plan = {"read": [], "stop_after": None}
    read = SegmentReader.read

    def interrupted(self, *arguments, **options):
        plan["read"].append(0)
        for segment in read(self, *arguments, **options):
            plan["read"][-1] += 1
            if sum(plan["read"]) == plan["stop_after"]:
                os.kill(os.getpid(), signal.SIGTERM)
            yield segment

    monkeypatch.setattr(SegmentReader, "read", interrupted)
    return plan


def test_rates_of_the_undisturbed_run_follow_its_evaluations(straight):
    losses = [record["eval/loss"] for record in records(straight.folder.path, "eval/")]
    scale = [1.0, *scales(losses, 0.5, 0)]
    assert scale[2] < 1, "the run improved at every evaluation and shows nothing"
    usual = 80.0 / 100**0.5
    rates = [usual * min(step, 2) / 2 * scale[step // 4] for step in range(STEPS)]
    found = [record["train/learning_rate"] for record in records(straight.folder.path, "train/")]
    np.testing.assert_allclose(found, np.mean(np.reshape(rates, (-1, 3)), axis=1), rtol=1e-5)


@pytest.mark.parametrize(("segment", "step"), [(5, 4), (17, 12)])
def test_a_run_stopped_in_an_evaluation_makes_it_afterwards(
    tiny, straight, tmp_path, passes, segment, step
):
    passes["stop_after"] = segment
    run = train_here(tiny, tmp_path)
    assert sum(passes["read"]) == segment
    assert run.checkpoints.steps()[-1] == step and not run.done
    assert [r["step"] for r in records(tmp_path, "eval/")] == list(range(4, step, 4))
    run = train_here(tiny, tmp_path)
    assert run.start == step
    assert_same_run(run, straight)


def test_an_evaluation_may_be_left_any_number_of_times(tiny, straight, tmp_path, passes):
    for segment in (2, 4, 6):
        passes["stop_after"] = sum(passes["read"]) + segment - 1
        assert train_here(tiny, tmp_path).checkpoints.steps()[-1] == 4
    passes["stop_after"] = None
    assert_same_run(train_here(tiny, tmp_path), straight)


def test_an_evaluation_before_a_kill_is_not_made_again(tiny, straight, tmp_path, passes):
    passes["stop_after"] = 7
    train_here(tiny, tmp_path)

    def kill(step, state, batch):
        raise SystemError(f"killed in step {step}")

    with pytest.raises(SystemError, match="killed in step 9"):
        train_here(tiny, tmp_path, hook=kill)
    assert [r["step"] for r in records(tmp_path, "eval/")] == [4, 8]
    before = len(passes["read"])
    with pytest.raises(SystemError, match="killed in step 9"):
        train_here(tiny, tmp_path, hook=kill)
    assert len(passes["read"]) == before
    assert_same_run(train_here(tiny, tmp_path), straight)


def test_the_command_makes_the_last_evaluation_and_is_done_then(
    tiny, straight, tmp_path, passes, monkeypatch, capsys
):
    passes["stop_after"] = 13
    bindings = (f"--gin_bindings={binding}" for binding in BINDINGS)
    line = [f"--gin_file={tiny.path}", f"--workdir={tmp_path}", *bindings]
    for said in ("", f"Resuming in {tmp_path} from step 12.", "is trained to its last step, 12."):
        assert command(monkeypatch, train, *line) == 0
        assert said in capsys.readouterr().out
    assert records(tmp_path) == records(straight.folder.path)
