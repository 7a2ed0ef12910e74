"""Processes of a run begin only if they were started alike, and none waits for one that is gone."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from tiny_run import records, write_config

from brt import command_line, processes

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
def test_an_error_of_a_collective_ends_in_words_about_the_other_processes_and_others_as_they_are(
    monkeypatch, capsys, error, lost
):
    told = []

    class Left(SystemExit):
        pass

    def leave(status):
        raise Left(status)

    def main():
        raise error

    def run(explained, flags_parser):
        explained(["brt"])

    monkeypatch.setattr(processes, "is_watched", lambda: True)
    monkeypatch.setattr(processes, "end", told.append)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(command_line.app, "run", run)
    monkeypatch.setattr(command_line.compilation_cache, "begin", lambda at: None)
    monkeypatch.setattr(command_line.compilation_cache, "end", lambda: None)
    with flagsaver.flagsaver(), pytest.raises(Left):
        flags.FLAGS.mark_as_parsed()
        command_line.run(main)
    said = capsys.readouterr().err
    assert ("cannot be reached (UNKNOWN: Gloo" in said) == lost
    assert ("Start all processes again" in said) == lost
    # One that failed by itself tells the others why.
    assert told == ([] if lost else [str(error)])
    # An error that nobody wrote for a person is shown with its traceback.
    assert ("Traceback" in said) == (not lost and not isinstance(error, ValueError))


# With a service in this process.


class Service:
    """Keys and values, as the coordination service keeps them for all processes."""

    def __init__(self):
        self.values = {}
        self.gone = False
        self.hangs = False

    def key_value_set(self, key, value, allow_overwrite=False):
        if self.gone:
            raise RuntimeError("UNAVAILABLE: Socket closed\nRPC: /more")
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_dir_get(self, prefix):
        while self.hangs:
            time.sleep(0.01)
        return [(key, value) for key, value in list(self.values.items()) if key.startswith(prefix)]

    def blocking_key_value_get(self, key, timeout_in_ms):
        end = time.monotonic() + min(timeout_in_ms / 1000, 10)
        while key not in self.values:
            assert time.monotonic() < end, key
            time.sleep(0.01)
        return self.values[key]


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setattr(processes, "_client", lambda: made)
    monkeypatch.setattr(processes, "BEAT", 0.02)
    monkeypatch.setattr(processes, "SILENCE", 0.5)
    return made


@pytest.fixture
def left(monkeypatch):
    """Sentences with which the process would have ended."""
    said = []
    monkeypatch.setattr(processes, "leave", said.append)
    return said


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def meet(monkeypatch, service, said):
    """Holds one meeting of as many processes as there are things said, and what each raised."""
    raised = [None] * len(said)

    class Numbered(threading.local):
        number = 0
        count = len(said)

    number = Numbered()
    monkeypatch.setattr(processes, "_watch", number)

    def run(i):
        number.number = i
        try:
            processes.agree("bindings", said[i])
        except ValueError as error:
            raised[i] = str(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(said))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_processes_that_were_started_alike_agree(monkeypatch, service):
    said = {"Trainer.seed": "0", "version of jax": "1.2"}
    assert meet(monkeypatch, service, [said] * 4) == [None] * 4


def test_every_process_names_what_differs_and_where(monkeypatch, service):
    first = {"Trainer.seed": "0", "a": "1", "gone": "2"}
    other = {"Trainer.seed": "3", "a": "1", "new": "4"}
    raised = meet(monkeypatch, service, [first, first, other])
    assert raised[0] == raised[1] == raised[2]
    assert raised[0].split("\n")[1:-1] == [
        "  Trainer.seed: 0 in process 0, 3 in process 2",
        "  gone: 2 in process 0, (none) in process 2",
        "  new: (none) in process 0, 4 in process 2",
    ]


def test_a_run_of_one_process_agrees_with_itself_and_watches_nobody():
    processes.agree("bindings", {"Trainer.seed": "0"})
    processes.watch()
    assert not processes.is_watched()


def test_a_process_that_falls_silent_is_missed_and_one_that_beats_is_not(service, left):
    first = processes.Watch(0, 2)
    second = processes.Watch(1, 2)
    time.sleep(1.5)
    assert not left
    second._ended.set()  # it hangs: neither done nor failed
    until(lambda: left)
    assert left[0].startswith("Process 1 has given no sign of life")
    first._ended.set()


def test_a_process_that_is_done_is_not_missed(service, left):
    first = processes.Watch(0, 2)
    processes.Watch(1, 2).end(processes.DONE)
    time.sleep(1.5)
    assert not left
    first._ended.set()


def test_the_reason_of_a_process_that_failed_is_told_by_the_others(service, left):
    first = processes.Watch(0, 3)
    processes.Watch(2, 3).end(processes.FAILED + "No file is at x.gin.")
    until(lambda: left)
    assert left[0] == "Process 2 ended: No file is at x.gin."
    first._ended.set()


def test_a_service_that_is_gone_ends_the_others_with_a_sentence(service, left):
    processes.Watch(1, 2)
    service.gone = True
    until(lambda: left)
    assert left[0] == (
        "Process 0, which all others meet at, does not answer (UNAVAILABLE: Socket closed)."
    )


def test_a_service_that_hangs_ends_the_others_with_a_sentence(service, left):
    watch = processes.Watch(1, 2)
    other = processes.Watch(0, 2)
    service.hangs = True
    until(lambda: left)
    assert left[0].startswith("Process 0, which all others meet at, has not answered for")
    watch._ended.set()
    other._ended.set()
    service.hangs = False


# With real processes.

STEPS = 40
LINES = (
    f"Trainer.steps = {STEPS}",
    "Trainer.log_every = 1",
    "Trainer.eval_every = 20",
    "Evaluation.max_steps = 2",
    "CheckpointPolicy.every = 5",
)


def begin(path, workdir, *, count=2, of_last=()):
    """Starts so many processes of one run; the last has further flags."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    started = []
    for number in range(count):
        command = [sys.executable, "-m", "brt.train", f"--gin_file={path}", f"--workdir={workdir}"]
        if count > 1:
            command += [f"--coordinator_address=localhost:{port}", f"--num_processes={count}"]
            command += [f"--process_id={number}", *(of_last if number == count - 1 else ())]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, "XLA_FLAGS": flags}, **pipes))
    return started


def ends(started):
    """The exit status and output of each process."""
    outputs = [process.communicate(timeout=300)[0] for process in started]
    return [process.returncode for process in started], outputs


def test_another_binding_in_one_process_is_named_by_all_and_nothing_is_written(tmp_path):
    path = write_config(tmp_path, *LINES)
    statuses, outputs = ends(begin(path, tmp_path / "run", of_last=["--gin.Trainer.seed=3"]))
    assert statuses == [1, 1], outputs
    for output in outputs:
        assert "  Trainer.seed: 0 in process 0, 3 in process 1" in output
        assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


def test_one_of_several_processes_leaves_sigterm_to_jax_while_it_prepares(monkeypatch):
    def handler(number, frame):
        """Stands for JAX's."""

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        for several in (True, False):
            monkeypatch.setattr(jax.distributed, "is_initialized", lambda told=several: told)
            with command_line.terminable("again."):
                assert (signal.getsignal(signal.SIGTERM) is handler) == several
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_closed_terminal_asks_to_end_unless_nohup_has_it_ignored():
    previous = signal.getsignal(signal.SIGHUP)
    try:
        for handler, heeded in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            with command_line.terminable("again."):
                assert (signal.getsignal(signal.SIGHUP) != handler) == heeded
                assert (signal.SIGHUP in processes.ends_asked_for()) == heeded
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.slow
def test_processes_of_which_one_has_prepared_the_corpus_save_and_stop_at_sigterm(tmp_path):
    path = write_config(tmp_path, *LINES[1:], "Trainer.steps = 1_000_000")
    started = begin(path, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 12, seconds=300)
    for process in started:
        process.send_signal(signal.SIGTERM)
    statuses, outputs = ends(started)
    assert statuses == [0, 0], outputs
    step = int(re.search(r"saved step (\d+), run again", outputs[0])[1])
    assert (tmp_path / "run" / "checkpoints" / str(step)).is_dir()


@pytest.mark.slow
def test_several_processes_stop_early_together_and_keep_the_same_best_checkpoint(tmp_path):
    policy = ("keep_best = True", "keep_last = 1", "patience = 2")
    lines = (f"CheckpointPolicy.{setting}" for setting in policy)
    path = write_config(
        tmp_path, *LINES, *lines, "Trainer.eval_every = 2", "rsqrt.multiplier = 4.0"
    )
    for said in ("Stopped early at step", "stopped early, at step"):
        statuses, outputs = ends(begin(path, tmp_path / "run"))
        assert statuses == [0, 0], outputs
        assert said in outputs[0]
    found = records(tmp_path / "run", "eval/", "best/")
    losses = {record["step"]: record["eval/loss"] for record in found if "eval/loss" in record}
    last = max(losses)
    best = min(losses, key=losses.get)
    assert (
        last < STEPS and last == best + 4 and found[-1] == {"step": last, "best/stopped_early": 1}
    )
    kept = {int(entry.name) for entry in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {best, last}


@pytest.mark.slow
def test_a_process_that_cannot_begin_ends_the_others_with_its_reason(tmp_path):
    path = write_config(tmp_path, *LINES)
    statuses, outputs = ends(begin(path, tmp_path / "run", of_last=["--gin.Trainer.stps=3"]))
    assert statuses == [1, 1], outputs
    assert "Process 1 ended:" in outputs[0] and "stps" in outputs[0] and "stps" in outputs[1]


@pytest.mark.slow
def test_another_store_in_one_process_is_refused_by_all(tmp_path):
    path = write_config(tmp_path, *LINES)
    (tmp_path / "other").mkdir()
    other = write_config(tmp_path / "other", *LINES)
    text = next((tmp_path / "other" / "texts" / "train").iterdir())
    text.write_bytes(text.read_bytes()[::-1] + b"e")
    subprocess.run([sys.executable, "-m", "brt.prepare", f"--gin_file={other}"], check=True)
    store = f'--gin.Corpus.store="{tmp_path}/other/stores"'
    statuses, outputs = ends(begin(path, tmp_path / "run", of_last=[store]))
    assert statuses == [1, 1], outputs
    for output in outputs:
        assert "tokens of split train, corpus 0: " in output or "Corpus.store" in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("which", [0, 1])
def test_a_lost_process_ends_the_others_and_the_run_goes_on_with_any_number(
    tmp_path, number, which
):
    path = write_config(tmp_path, *LINES)
    statuses, outputs = ends(begin(path, tmp_path / "whole", count=1))
    assert statuses == [0], outputs
    started = begin(path, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 12, seconds=300)
    started[which].send_signal(number)
    begun = time.monotonic()
    output, _ = started[1 - which].communicate(timeout=150)
    assert started[1 - which].returncode != 0
    assert time.monotonic() - begun < 120
    started[which].kill()
    started[which].communicate()
    assert re.search(r"Error: .*Start all processes again", output, re.DOTALL), output
    for count in (2, 4, 1):
        statuses, outputs = ends(begin(path, tmp_path / "run", count=count))
        assert statuses == [0] * count, outputs
    found, expected = (records(tmp_path / name, "train/", "eval/") for name in ("run", "whole"))
    assert [record["step"] for record in found] == [record["step"] for record in expected]
    for one, other in zip(found, expected, strict=True):
        for name in one.keys() & {"train/loss", "eval/loss"}:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4)
