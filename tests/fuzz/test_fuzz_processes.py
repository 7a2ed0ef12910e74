"""Bad conditions of processes: closed streams, and two at once in one folder."""

import os
import subprocess
import sys
import threading
import time

import fsspec
import pytest
from fuzzing import Tally
from paths import ROOT
from test_fuzz_files import both, draws
from tiny_run import PLAIN, write_config

from brt.training.records import run_lock
from brt.training.records.run_lock import FolderInUse, RunLock

TRAIN = ("brt.train", "--workdir=run")
PREPARE = ("brt.prepare", "--splits=train")
EVALUATE = ("brt.evaluate", "--workdir=run")
REPORT = ("brt.report", "run", "-o", "report.html")
STREAMS = ("2>&-", ">&-", "<&- >&- 2>&-", "<&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&-")


@both
def test_a_command_runs_with_any_streams_or_names_the_bad_one(scale, tmp_path):
    tally = Tally("streams")
    path = write_config(tmp_path, *PLAIN)
    cases = [(PREPARE, "2>&-"), (PREPARE, ">/dev/full")]
    if scale:
        cases = [(line, how) for line in (PREPARE, TRAIN, EVALUATE, REPORT) for how in STREAMS]
    for (module, *given), how in cases:
        own = [f"--gin_file={path}"] if module in ("brt.prepare", "brt.train") else []

        def call(how=how, command=(module, *own, *given)):
            done = subprocess.run(
                ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m", *command],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=80,
            )
            assert "Traceback" not in done.stderr, done.stderr
            if done.returncode and done.stderr:
                raise ValueError(done.stderr)
            return done.returncode

        # With stderr closed nothing can be said of a full standard output.
        allowed = (0, 1) if how == ">/dev/full 2>&-" else (0,)
        right = lambda status: status in allowed  # noqa: B023, E731
        tally.judge(f"{module} {how}", call, right, ["standard output"])
    tally.check()


@both
@pytest.mark.parametrize("storage", ["disk", "bucket"])
def test_of_processes_that_begin_at_once_one_has_the_folder(scale, tmp_path, monkeypatch, storage):
    for name, seconds in (("HEARTBEAT", 0.05), ("TIMEOUT", 0.6), ("SETTLE", 0.2)):
        monkeypatch.setattr(run_lock, name, seconds)
    tally = Tally(f"locks, {storage}")
    folder = str(tmp_path) if storage == "disk" else "memory://test-fuzz-locks"
    for number, rng in draws(21, (2, 40)[scale]):
        delays = rng.uniform(0.0, 0.1, int(rng.integers(2, 6)))
        release = bool(rng.integers(2))

        def call(delays=delays, release=release):
            taken, refused = [], []

            def begin(delay):
                time.sleep(delay)
                try:
                    taken.append(RunLock(folder))
                except FolderInUse as error:
                    refused.append(str(error))

            threads = [threading.Thread(target=begin, args=(delay,)) for delay in delays]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (owner,) = taken
            owner.check()
            if release or storage == "disk":
                owner.release()
            else:  # killed
                owner._ended.set()
            RunLock(folder).release()
            return len(refused)

        right = lambda found: found == len(delays) - 1  # noqa: B023, E731
        tally.judge(f"{number}: {delays}", call, right, [])
    fsspec.filesystem("memory").store.clear()
    tally.check()
