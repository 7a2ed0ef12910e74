"""The run folder: the record of what was run, with what, and of every number it reported.

config.gin, operative_config.gin, command.txt, environment.json, metrics.jsonl,
events.out.tfevents.*, checkpoints/; and .brt_lock while a process trains in it.
"""

import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import gin
from absl import logging

from brt.storage.failed_writes import naming
from brt.storage.growing import GrowingFiles
from brt.storage.paths import RemotePath, absolute, as_path, is_remote
from brt.storage.regular_files import read_bytes
from brt.training.records.metric_writers import USUAL, MetricWriter, TensorBoard, Wandb
from brt.training.records.record_file import (
    RecordFile,
    cut,
    kept_records,
    line_of,
    record_of,
    records_in,
)
from brt.training.records.run_lock import RunLock

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gin-config", "numpy", "brt")

EVALUATION = b'"eval/'
"""What a line of metrics.jsonl holds if it is that of an evaluation."""


class RunFolder:
    """Writes a run's records; only process 0 of a run should have one that `writes`.

    In a bucket nothing can be appended to: there the records are copied whole, at every checkpoint,
    at the end, and every minute or so between.

    Args:
        path: the folder, created if `writes`.
        writes: whether this process writes anything.
        metrics: where numbers go, some of `brt.training.records.metric_writers.KINDS`.

    Raises:
        brt.training.records.run_lock.FolderInUse: another process writes the folder.
        OSError: the folder cannot be written.
    """

    def __init__(self, path: str, writes: bool = True, metrics: Sequence[str] = USUAL):
        self.path = absolute(path)
        self.writes = writes
        self._remote = RemotePath(self.path) if is_remote(self.path) else None
        self._growing = GrowingFiles(self._remote) if self._remote else None
        self._metrics: RecordFile | None = None
        self._kinds = tuple(metrics)
        self._writers: list[MetricWriter] = []
        self._lock = self._locked() if writes else None

    def _locked(self):
        try:
            if not self._remote:
                os.makedirs(self.path, exist_ok=True)
            return RunLock(self.path)
        except OSError as error:
            if error.strerror is None:  # it has a sentence already
                raise
            raise type(error)(
                error.errno, f"Cannot write to --workdir {self.path} ({error.strerror})"
            ) from error

    def file(self, name: str) -> str:
        """Returns the path of a file of the folder."""
        return os.path.join(self.path, name)

    def describe(self, config: str) -> None:
        """Writes the config, as bound and as read, the command and the environment."""
        if not self.writes:
            return
        import jax

        environment = {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "devices": [str(device.device_kind) for device in jax.devices()],
            "processes": jax.process_count(),
            "packages": versions(),
            "code": code_hash(),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
        self._write("config.gin", config)
        self._write("operative_config.gin", gin.operative_config_str())
        self._write("command.txt", shlex.join(sys.orig_argv) + "\n")
        self._write("environment.json", json.dumps(environment, indent=2) + "\n")

    @property
    def on_disk(self) -> str:
        """The folder of this disk that records and traces grow in: its own, or one to be copied."""
        return str(self._growing.folder) if self._growing else self.path

    def publish_traces(self) -> None:
        """Copies what was traced to where the folder is, if that is not this disk."""
        if self._growing:
            self._growing.copy_folder("plugins")

    def _write(self, name, text):
        if self._remote:
            (self._remote / name).write_text(text)
            return
        with naming(self.file(name)):
            with open(self.file(name) + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self.file(name) + ".new", self.file(name))

    def open_metrics(self, step: int, settings: Mapping[str, str] | None = None) -> str | None:
        """Opens the records for writing after `step`; what lies beyond it is cut off.

        settings: bindings of the run, for writers that show them.

        Returns:
            The file that earlier records went to if a run begins anew over them, otherwise None.
        """
        if not self.writes:
            return None
        if "wandb" in self._kinds:  # first, as it may have to be refused
            self._writers.append(Wandb(self.on_disk, self.path, settings or {}))
        own = as_path(self.file("metrics.jsonl")).exists()
        aside = None if step else self._put_aside()
        self._cut_back(step)
        self._metrics = RecordFile(os.path.join(self.on_disk, "metrics.jsonl"))
        # In a folder without records they are not ours.
        old = self._old_events() if own else []
        if self._remote or not step or "tensorboard" not in self._kinds:
            for events in old:
                events.unlink()
            old = []
        if "tensorboard" in self._kinds:
            self._writers.append(TensorBoard(self.on_disk, step, begins_empty=not old))
        if empty := [writer for writer in self._writers if writer.begins_empty]:
            for record in records_in(self._metrics.path):
                self._write_on(empty, record)
        return aside

    def _cut_back(self, step):
        path = self.file("metrics.jsonl")
        if not self._remote and os.path.exists(path) and (found := kept_records(path, step)):
            if found.end < os.path.getsize(path):
                cut(path, found.end)
            return
        damaged: list[str] = []
        kept = [record for record in read_metrics(self.path, damaged) if record["step"] <= step]
        if damaged:  # what follows rewrites the file
            copy = self._free_name()
            self._copy_records(copy)
            logging.warning("%s The file as it was is kept as %s.", damaged[0], copy)
        text = b"".join(map(line_of, kept)).decode()
        self._write("metrics.jsonl", text)
        if self._growing:
            Path(self.on_disk, "metrics.jsonl").write_text(text, encoding="utf-8")

    def _old_events(self):
        files = self._remote.iterdir() if self._remote else Path(self.path).iterdir()
        return [path for path in files if path.name.startswith("events.out.tfevents.")]

    def _put_aside(self):
        if not read_metrics(self.path):
            return None
        aside = self._free_name()
        if self._remote:
            self._copy_records(aside)
            (self._remote / "metrics.jsonl").unlink()
        else:
            os.replace(self.file("metrics.jsonl"), aside)
        return aside

    def _free_name(self):
        names = (self.file(f"metrics.{number}.jsonl") for number in itertools.count(1))
        taken = RemotePath.exists if self._remote else os.path.lexists
        return next(name for name in names if not taken(as_path(name)))

    def _copy_records(self, copy):
        if self._remote:
            (self._remote / "metrics.jsonl").copy_to(RemotePath(copy))
        else:
            shutil.copyfile(self.file("metrics.jsonl"), copy)

    def record(self, step: int, scalars: dict[str, float | str]) -> None:
        """Appends one line to metrics.jsonl; what of it is a number goes to the others, too."""
        if self._metrics is None:
            return
        self._check_lock()
        record = {"step": step, **scalars}
        self._metrics.append(record)
        self._write_on(self._writers, record)
        if self._growing:
            self._growing.copy_if_due()

    def _write_on(self, writers, record):
        numbers = {
            name: value
            for name, value in record.items()
            if name != "step" and not isinstance(value, str)
        }
        for writer in writers:
            writer.write(record["step"], numbers)

    def sync(self) -> None:
        """Waits until the records are on disk: before a checkpoint that comes after them.

        Raises:
            OSError: they cannot be written, or the folder is gone or belongs to another process.
        """
        if self._metrics is not None:
            self._check_lock()
            self._metrics.sync()
            for writer in self._writers:
                writer.flush()
            if self._growing:
                self._growing.copy()

    def _check_lock(self):
        if self._lock:
            self._lock.check()

    def close(self) -> None:
        """Closes the records, and gives the folder free for other processes, whatever fails."""
        try:
            self.close_records()
        finally:
            if self._lock:
                self._lock.release()

    def close_records(self) -> None:
        """Waits until the records are on disk, and closes their files, whatever fails."""
        if self._metrics is None:
            return
        with ExitStack() as closing:
            closing.callback(self._metrics.close)
            for writer in self._writers:
                closing.callback(writer.close)
            closing.callback(self._forget_files)
            self.sync()

    def _forget_files(self):
        self._writers = []
        self._metrics = None


def read_metrics(
    path: str, problems: list[str] | None = None, most: int | None = None
) -> list[dict]:
    """Returns the records of a run folder, oldest first; a torn last line is left out.

    Lines that are damaged are left out too.

    Args:
        path: of the run folder.
        problems: takes a sentence about damaged lines; None logs it.
        most: of more lines than these only about so many are read, evenly spaced, and with them
            all evaluations and the last ones; None for all.
    """
    file = os.path.join(path, "metrics.jsonl")
    try:
        lines = read_bytes(file).split(b"\n")
    except FileNotFoundError:
        return []
    records, damaged = [], []
    spacing = max(1, len(lines) // most) if most else 1
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number % spacing and number < len(lines) - 1 and EVALUATION not in line:
            continue
        record = record_of(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):  # the last line of a run that was killed has no end
            damaged.append(f"{number:,}")
    if damaged:
        shown = ", ".join(damaged[:5]) + ", ..." * (len(damaged) > 5)
        sentence = f"{file} is damaged: lines that are no records were left out ({shown})."
        if problems is None:
            logging.warning("%s", sentence)
        else:
            problems.append(sentence)
    return records


def versions() -> dict[str, str | None]:
    """Returns the versions of the packages that decide what is computed."""
    return {name: _version(name) for name in PACKAGES}


def code_hash() -> str:
    """Returns a short hash of brt's own source files, which may be ahead of its version."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
