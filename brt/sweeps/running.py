"""Runs of a sweep: concurrent processes that train and evaluate."""

import contextlib
import itertools
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from brt.command_line import INTERRUPTED
from brt.reporting.archive import ENDING, pack
from brt.reporting.gin_text import write_gin
from brt.reporting.run_files import read_evaluation
from brt.reporting.runs import STANDS_FOR_FILE
from brt.reporting.sweep_folder import RUNS, SEED
from brt.storage.replaced_files import replace_file
from brt.sweeps.entries import SweepEntry
from brt.sweeps.scales import SweepError
from brt.training.checkpoints.policy import recorded_best, stopped_early
from brt.training.records.run_folder import CHECKPOINTS, METRICS, read_metrics


class SweepRun(NamedTuple):
    """A run of an entry.

    config: gin file of the entry. split: of the final evaluation. flags: of both commands.
    """

    entry: SweepEntry
    config: Path
    seed: str
    workdir: Path
    split: str
    flags: Sequence[str] = ()

    @property
    def is_trained(self) -> bool:
        """Whether this run trains; otherwise it uses the checkpoints of `entry.trained_by`."""
        return self.entry.trained_by == self.entry.name

    def evaluated(self) -> bool:
        """Returns whether the run has ended and its checkpoint has been evaluated."""
        file = self.workdir / f"evaluation_{self.split}.json"
        try:
            step = read_evaluation(file).get("step", -1)
        except (OSError, ValueError):
            return False
        steps = self.entry.settings["Trainer.steps"]
        if step >= steps:
            return True
        records = read_metrics(str(self.workdir))
        last = max((record["step"] for record in records), default=-1)
        best, _ = recorded_best(records) or (last, None)
        return step == best and (stopped_early(records) or last >= steps)

    def begin(self) -> None:
        """Makes the run folder, or links it to the checkpoints of the entry that trains it."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        stands_for = json.dumps(self.entry.paper, indent=1)
        replace_file(self.workdir, STANDS_FOR_FILE, stands_for.encode())
        if not self.is_trained and not os.path.lexists(self.workdir / CHECKPOINTS):
            other = Path("..", f"{self.entry.trained_by}{SEED}{self.seed}")
            for name in (CHECKPOINTS, METRICS):
                (self.workdir / name).symlink_to(other / name)
        if (self.workdir / CHECKPOINTS).is_symlink():
            settings = self.entry.settings | {"Trainer.seed": int(self.seed)}
            text = write_gin(settings, self.entry.imports)
            replace_file(self.workdir, "config.gin", text.encode())

    def commands(self) -> list[list[str]]:
        train = [
            f"--gin_file={self.config}",
            f"--workdir={self.workdir}",
            f"--gin.Trainer.seed={self.seed}",
            *self.flags,
        ]
        split = f'--gin.Evaluation.split="{self.split}"'
        evaluate = ["brt.evaluate", f"--workdir={self.workdir}", split, *self.flags]
        if (self.workdir / CHECKPOINTS).is_symlink():
            return [evaluate]
        return [["brt.train", *train], evaluate]


def runs_of(
    folder: Path,
    entries: Sequence[SweepEntry],
    files: Sequence[Path],
    seeds: Sequence[str],
    split: str,
    flags: Sequence[str] = (),
) -> list[SweepRun]:
    """Returns the runs seed by seed, so that the first seed completes a table early."""
    return [
        SweepRun(entry, file, seed, folder / RUNS / f"{entry.name}{SEED}{seed}", split, flags)
        for seed in dict.fromkeys(seeds)
        for entry, file in zip(entries, files)
    ]


def run_all(runs: Sequence[SweepRun], processes: int, archive: str | None) -> None:
    """Runs all unfinished runs, `processes` at a time: training first, then evaluations."""
    devices: queue.Queue[dict[str, str]] = queue.Queue()
    gpus = visible_gpus() if processes > 1 else []
    # On a shared GPU JAX would give all memory to the first run.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if len(gpus) < processes else {}
    for gpu in itertools.islice(itertools.cycle(gpus or [None]), processes):
        devices.put(shared | {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    failed = threading.Event()

    def run_unless_failed(number: int, run: SweepRun) -> None:
        if failed.is_set():  # the next run may fail for the same reason
            return
        try:
            _run_one(run, f"{number} of {len(runs)}", devices, with_log=processes > 1)
            if archive:
                pack(run.workdir, Path(archive) / f"{run.workdir.name}{ENDING}")
        except BaseException:
            failed.set()
            raise

    for is_trained in (True, False):
        wave = [pair for pair in enumerate(runs, 1) if pair[1].is_trained == is_trained]
        with ThreadPoolExecutor(processes) as pool:
            started = [pool.submit(run_unless_failed, *pair) for pair in wave]
            try:
                for one in as_completed(started):
                    one.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _run_one(run, number, devices, with_log):
    print(f"[{number}] {run.entry.name}, seed {run.seed}", flush=True)
    if run.evaluated():
        return
    run.begin()
    variables = devices.get()
    try:
        log = run.workdir / "log.txt" if with_log else None
        for module, *arguments in run.commands():
            command(module, *arguments, log=log, variables=variables)
    finally:
        devices.put(variables)


def visible_gpus() -> list[str]:
    """Returns the numbers of the GPUs that a run may use; none on other machines."""
    found = _ask_jax("*[d.id for d in jax.devices() if d.platform == 'gpu']")
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = allowed.split(",") if allowed else None
    return [names[int(n)] if names else n for n in found]


def device_count(processes: int) -> int:
    """Returns the devices of each run, of which so many run at once."""
    if processes > 1 and visible_gpus():
        return 1
    return int(_ask_jax("jax.device_count()")[-1])


def _ask_jax(what):
    # In a process apart, because this one may hold no device.
    line = [sys.executable, "-c", f"import jax; print({what})"]
    return subprocess.run(line, stdout=subprocess.PIPE, check=True, text=True).stdout.split()


def shell_line(commands_of_run: Sequence[Sequence[str]]) -> str:
    words = [[sys.executable, "-m", *command_of_run] for command_of_run in commands_of_run]
    return " && ".join(map(shlex.join, [["cd", os.getcwd()], *words]))


def command(
    module: str,
    *arguments: str,
    log: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs a command of brt and raises if it fails.

    log: a file that the output is added to. variables: of the environment, besides the own ones.
    """
    line = [sys.executable, "-m", module, *arguments]
    environment = os.environ | (variables or {})
    with open(log, "a", encoding="utf-8") if log else contextlib.nullcontext() as output:
        status = subprocess.run(
            line, check=False, env=environment, stdout=output, stderr=output
        ).returncode
    if status:
        raise SweepError(
            f"{module} {_ended(status)}; the reason is in {log or 'the lines above'}. Once it is "
            "gone, the same command continues."
        )


def _ended(status: int) -> str:
    if status == INTERRUPTED:
        return "was interrupted"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
