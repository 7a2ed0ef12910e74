"""One process at a time trains in a run folder, and a folder that is gone stops its run."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import fsspec
import pytest
from tiny_run import PLAIN, command, contents, train_here

from brt import evaluate, train
from brt.training.records import run_lock
from brt.training.records.run_lock import NAME, FolderInUse, FolderLost, RunLock

HOLDER = """
import sys, time
from brt.training.records.run_lock import RunLock
lock = RunLock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""
LINES = (*PLAIN, "CheckpointPolicy.every = 4", "Trainer.log_every = 1")
BUCKET = "memory://test-locks/run"


@pytest.fixture
def fast(monkeypatch):
    """Heartbeats and waits of parts of a second."""
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.1)
    monkeypatch.setattr(run_lock, "TIMEOUT", 1.5)
    monkeypatch.setattr(run_lock, "SETTLE", 0.0)


@pytest.fixture
def faster(fast, monkeypatch):
    """Waits for owners that are known to be gone."""
    monkeypatch.setattr(run_lock, "TIMEOUT", 0.2)


@pytest.fixture
def bucket():
    yield BUCKET
    fsspec.filesystem("memory").store.clear()


def dies(lock):
    """Leaves a lock as a process does that is killed on another machine."""
    lock._ended.set()
    lock._thread.join()


def left_behind(folder, **changes):
    """Writes the lock of a process that is not there any more."""
    owner = {"host": "other.example", "pid": 17, "started": "2026-01-02 03:04:05+00:00"}
    owner |= {"boot": "another", "id": "its own", **changes}
    (folder / NAME).write_text(json.dumps(owner))


# On a disk.


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "text": True}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], **pipes)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse) as refused:
            RunLock(str(tmp_path))
        for named in (str(tmp_path), socket.gethostname(), f"process {holder.pid} ", NAME):
            assert named in str(refused.value)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        begun = time.monotonic()
        RunLock(str(tmp_path)).release()
        assert time.monotonic() - begun < run_lock.TIMEOUT / 2
    finally:
        holder.kill()
        holder.communicate()


def test_a_copied_folder_with_its_lock_can_be_trained_in(tmp_path):
    lock = RunLock(str(tmp_path / "."))
    try:
        shutil.copytree(tmp_path, tmp_path / "copy")
        RunLock(str(tmp_path / "copy")).release()
        lock.check()
    finally:
        lock.release()


@pytest.mark.usefixtures("fast")
def test_another_machines_lock_counts_while_it_is_renewed(tmp_path, caplog):
    # The file system may not tell its locks to other machines.
    left_behind(tmp_path)
    lock = RunLock(str(tmp_path))
    assert "other.example" in caplog.text and "17" in caplog.text
    lock.release()

    left_behind(tmp_path)
    renewal = subprocess.Popen(
        ["sh", "-c", f"sleep 0.3; echo >> {tmp_path / NAME}"], stdin=subprocess.DEVNULL
    )
    with pytest.raises(FolderInUse, match=r"process 17 on other\.example"):
        RunLock(str(tmp_path))
    renewal.wait()
    assert (tmp_path / NAME).exists()


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("lacking", ["locks", "numbers"])
def test_without_locks_of_the_file_system_the_heartbeat_decides(tmp_path, monkeypatch, lacking):
    def flock(file, flags):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    if lacking == "locks":
        monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    else:
        monkeypatch.setattr(run_lock.os.path, "samestat", lambda one, other: False)
    first = RunLock(str(tmp_path))
    with pytest.raises(FolderInUse, match=str(os.getpid())):
        RunLock(str(tmp_path))
    first.check()
    dies(first)
    RunLock(str(tmp_path)).release()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": 3}', "\x1b]0;x\x07", "null\n"])
@pytest.mark.usefixtures("faster")
def test_a_damaged_lock_does_not_block_a_folder_for_good(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    RunLock(str(tmp_path)).release()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("of somebody else")
    (tmp_path / "run" / NAME).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        RunLock(str(tmp_path / "run"))
    assert (tmp_path / "precious").read_text() == "of somebody else"


@pytest.mark.usefixtures("faster")
def test_characters_for_the_terminal_do_not_reach_it(tmp_path, caplog):
    left_behind(tmp_path, host="\x1b]0;title\x07")
    RunLock(str(tmp_path)).release()
    assert "title" in caplog.text and "\x1b" not in caplog.text


# In a bucket.


@pytest.mark.usefixtures("fast")
def test_in_a_bucket_only_a_living_owner_refuses_others(bucket):
    first = RunLock(bucket)
    with pytest.raises(FolderInUse, match=str(os.getpid())):
        RunLock(bucket)
    first.check()
    dies(first)
    second = RunLock(bucket)
    with pytest.raises(FolderLost, match=bucket):  # it was only stopped, and continues
        time.sleep(run_lock.TIMEOUT)
        first.check()
    first.release()
    second.check()
    second.release()
    RunLock(bucket).release()


@pytest.mark.parametrize("storage", ["disk", "bucket"])
@pytest.mark.usefixtures("fast")
def test_an_owner_notices_that_its_lock_was_removed(tmp_path, bucket, storage):
    lock = RunLock(str(tmp_path) if storage == "disk" else bucket)
    lock.path.unlink()
    end = time.monotonic() + 10
    with pytest.raises(FolderLost, match=NAME):
        while time.monotonic() < end:
            lock.check()
            time.sleep(0.05)
    lock.release()


# Runs.


def test_a_folder_in_training_can_only_be_evaluated(tiny, tmp_path, monkeypatch, capsys):
    workdir = tmp_path / "run"
    line = [f"--gin_file={tiny.path}", f"--workdir={workdir}"]
    train_here(tiny, workdir, stop_after=3)
    assert NAME not in contents(workdir)
    lock = RunLock(str(workdir))
    try:
        before = contents(workdir)
        for further in ([], ["--gin.Trainer.seed=1"]):
            assert command(monkeypatch, train, *line, *further) == 1
            said = capsys.readouterr().err
            assert str(workdir) in said and str(os.getpid()) in said and "Traceback" not in said
            assert contents(workdir) == before
        assert command(monkeypatch, evaluate, f"--workdir={workdir}") == 0
        assert command(monkeypatch, train, *line, "--eval_only") == 0
    finally:
        lock.release()
    assert command(monkeypatch, train, *line) == 0
    assert NAME not in contents(workdir)


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_run_whose_folder_is_taken_stops_and_makes_none(tiny, tmp_path, what):
    workdir, steps = tmp_path / "run", []

    def hook(step, state, batch):
        steps.append(step)
        if step == 4 and what == "removed":
            shutil.rmtree(workdir)
        elif step == 4:
            copy = workdir / "copy"
            shutil.copyfile(workdir / "metrics.jsonl", copy)
            os.replace(copy, workdir / "metrics.jsonl")
        return state, batch

    with pytest.raises(OSError, match=rf"metrics\.jsonl was {what}"):
        train_here(tiny, workdir, hook=hook)
    assert steps[-1] < 6
    assert workdir.exists() == (what == "replaced")
