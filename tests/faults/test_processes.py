"""Processes of a run start only if they were started alike, and none waits for a lost one."""

import json
import os
import re
import signal
import time

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from gin_settings import bound
from tiny_run import TWO_LAYERS, TXL, build, ended, records, start_several, write_config

from brt import command_line
from brt.host import processes

LOST = "UNKNOWN: Gloo AllGather failed: [pair.cc:538] Read error [127.0.0.1]: Connection reset"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (jax.errors.JaxRuntimeError(LOST), True),
        (ValueError(LOST), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (ValueError("Trainer.steps = 0: UNKNOWN: at least 1"), False),
    ],
)
def test_a_failed_collective_names_the_other_processes(monkeypatch, capsys, error, lost):
    class Left(SystemExit):
        pass

    def leave(status):
        raise Left(status)

    def main():
        raise error

    def run(explained, flags_parser):
        explained(["brt"])

    monkeypatch.setattr(processes, "is_one_of_several", lambda: True)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(command_line.app, "run", run)
    monkeypatch.setattr(command_line.compilation_cache, "use", lambda at: None)
    with flagsaver.flagsaver(), pytest.raises(Left) as left:
        flags.FLAGS.mark_as_parsed()
        command_line.run(main)
    assert left.value.code == 1
    text = capsys.readouterr().err
    assert ("(UNKNOWN: Gloo" in text) == lost
    # An error that nobody wrote for a person is shown with its traceback.
    assert ("Traceback" in text) == (not lost and not isinstance(error, ValueError))


def test_each_difference_is_named_with_its_process():
    first = {"Trainer.seed": "0", "a": "1", "gone": "2"}
    other = {"Trainer.seed": "3", "a": "1", "new": "4"}
    assert processes.differences([first, first]) == []
    assert processes.differences([first, first, other]) == [
        "Trainer.seed: 0 in process 0, 3 in process 2",
        "gone: 2 in process 0, (none) in process 2",
        "new: (none) in process 0, 4 in process 2",
    ]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# With real processes.

STEPS = 40
LINES = (
    *bound("Trainer", steps=STEPS, log_every=1, eval_every=20),
    "Evaluation.max_steps = 2",
    "CheckpointPolicy.every = 5",
)


def test_a_different_binding_in_one_process_is_named_by_all(tmp_path):
    path = write_config(tmp_path, *LINES)
    statuses, outputs = ended(
        start_several(path, tmp_path / "run", of_last=["--gin.Trainer.seed=3"])
    )
    assert statuses == [1, 1], outputs
    for output in outputs:
        assert "  Trainer.seed: 0 in process 0, 3 in process 1" in output
        assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


def test_while_preparing_sigterm_is_left_to_jax(monkeypatch):
    def handler(number, frame):
        """A stub of JAX's."""

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        for several in (True, False):
            monkeypatch.setattr(jax.distributed, "is_initialized", lambda told=several: told)
            with command_line.terminable("again."):
                assert (signal.getsignal(signal.SIGTERM) is handler) == several
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_closed_terminal_ends_a_run_unless_nohup():
    previous = signal.getsignal(signal.SIGHUP)
    try:
        for handler, heeded in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            with command_line.terminable("again."):
                assert (signal.getsignal(signal.SIGHUP) != handler) == heeded
                assert (signal.SIGHUP in processes.signals_to_end()) == heeded
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.slow
def test_processes_save_and_stop_at_sigterm(tmp_path):
    path = write_config(tmp_path, *LINES[1:], "Trainer.steps = 1_000_000")
    started = start_several(path, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 12, seconds=300)
    for process in started:
        process.send_signal(signal.SIGTERM)
    statuses, outputs = ended(started)
    assert statuses == [0, 0], outputs
    step = int(re.search(r"saved step (\d+), run again", outputs[0])[1])
    assert (tmp_path / "run" / "checkpoints" / str(step)).is_dir()


@pytest.mark.slow
def test_processes_stop_early_with_the_same_best_checkpoint(tmp_path):
    policy = ("keep_best = True", "keep_last = 1", "patience = 2")
    lines = (f"CheckpointPolicy.{setting}" for setting in policy)
    path = write_config(
        tmp_path,
        *(*LINES, *lines, *TWO_LAYERS),
        *("Trainer.eval_every = 2", "rsqrt.multiplier = 4.0"),
    )
    for said in ("Stopped early at step", "stopped early, at step"):
        statuses, outputs = ended(start_several(path, tmp_path / "run"))
        assert statuses == [0, 0], outputs
        assert said in outputs[0]
    found = records(tmp_path / "run", "eval/", "best/")
    losses = {record["step"]: record["eval/loss"] for record in found if "eval/loss" in record}
    last = max(losses)
    best = min(losses, key=losses.get)
    assert best + 4 == last < STEPS
    assert found[-1] == {"step": last, "best/stopped_early": 1}
    kept = {int(entry.name) for entry in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {best, last}


@pytest.mark.slow
def test_a_study_of_attention_is_the_same_over_two_processes(tmp_path):
    path = write_config(
        tmp_path,
        *TXL,
        *bound("Trainer", mesh=(1, -1), steps=2, eval_every=2),
        *bound("TransformerXL", num_layers=2, memory_length=24),
        "Evaluation.max_steps = 1",
    )
    numbers = []
    for count, study in ((1, None), (1, "attention"), (2, "attention")):
        started = start_several(path, tmp_path / "run", count=count, study=study)
        statuses, outputs = ended(started)
        assert set(statuses) == {0}, outputs
        if study:
            written = json.loads((tmp_path / "run" / "studies" / "attention.json").read_text())
            numbers.append(written["numbers"])
    assert numbers[0]["segments"] and numbers[1] == pytest.approx(numbers[0], rel=1e-5)


@pytest.mark.slow
def test_another_store_in_one_process_is_refused_by_all(tmp_path, monkeypatch):
    """Its path is the same, as on two machines."""
    relative = 'TextFiles.path = "texts/{split}"', 'Corpus.store = "stores"'
    for name in ("other", "one"):
        (tmp_path / name).mkdir()
        path = write_config(tmp_path / name, *LINES, *relative)
        (tmp_path / name / "texts" / "train" / "00.txt").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        build(path)
    statuses, outputs = ended(start_several(path, tmp_path / "run", last_in=tmp_path / "other"))
    assert statuses == [1, 1], outputs
    for output in outputs:
        assert "tokens of split train, corpus 0: " in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("which", [0, 1])
def test_after_a_lost_process_any_number_continues(tmp_path, number, which):
    path = write_config(tmp_path, *LINES)
    statuses, outputs = ended(start_several(path, tmp_path / "whole", count=1))
    assert statuses == [0], outputs
    started = start_several(path, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 12, seconds=300)
    started[which].send_signal(number)
    begun = time.monotonic()
    output, _ = started[1 - which].communicate(timeout=150)
    assert started[1 - which].returncode != 0
    assert time.monotonic() - begun < 120
    started[which].kill()
    started[which].communicate()
    # A collective fails where a process was killed; JAX's service ends a run where one hangs.
    assert re.search("Another process ended|distributed service detected fatal errors", output)
    for count in (2, 4, 1):
        statuses, outputs = ended(start_several(path, tmp_path / "run", count=count))
        assert statuses == [0] * count, outputs
    found, expected = (records(tmp_path / name, "train/", "eval/") for name in ("run", "whole"))
    assert [record["step"] for record in found] == [record["step"] for record in expected]
    for one, other in zip(found, expected, strict=True):
        for name in one.keys() & {"train/loss", "eval/loss"}:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4)
