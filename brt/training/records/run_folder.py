"""The run folder: config.gin, operative_config.gin, command.txt, environment.json, metrics.jsonl,
events.out.tfevents.*, checkpoints/; and .brt_lock while a process trains in it.
"""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import gin
import jax
from absl import logging

from brt.storage.growing import GrowingFiles
from brt.storage.paths import RemotePath, absolute, as_path, is_remote
from brt.storage.regular_files import MOST_BYTES, check_links, open_regular, read_bytes
from brt.storage.replaced_files import naming, replace_file, replacing
from brt.training.records.event_files import PREFIX, EventFile
from brt.training.records.metric_writers import USUAL, Wandb
from brt.training.records.record_file import RecordFile, record_of
from brt.training.records.run_lock import RunLock

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gin-config", "numpy", "brt")
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
EVALUATION = b'"eval/'
"""Text in the lines of evaluations."""


class RunFolder:
    """Writes a run's records; only process 0 of a run should have one that `writes`.

    In a bucket records are copied whole: at checkpoints, at the end, and about every minute.

    Args:
        metrics: some of `brt.training.records.metric_writers.KINDS`.

    Raises:
        brt.training.records.run_lock.FolderInUse: another process writes the folder.
    """

    def __init__(self, path: str, writes: bool = True, metrics: Sequence[str] = USUAL):
        self.path = absolute(path)
        self.writes = writes
        self._growing = GrowingFiles(RemotePath(self.path)) if is_remote(self.path) else None
        self._metrics: RecordFile | None = None
        self._kinds = tuple(metrics)
        self._writers: list[EventFile | Wandb] = []
        self._lock = self._locked() if writes else None

    def _locked(self):
        try:
            folder = as_path(self.path)
            folder.mkdir(parents=True, exist_ok=True)
            check_links(folder)
            return RunLock(self.path)
        except OSError as error:
            if error.strerror is None:  # it has a sentence already
                raise
            raise type(error)(
                error.errno, f"Cannot write to --workdir {self.path} ({error.strerror})"
            ) from error

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def on_disk(self) -> str:
        """The local folder in which records and traces grow: its own, or one to be copied."""
        return str(self._growing.folder) if self._growing else self.path

    def publish_traces(self) -> None:
        if self._growing:
            self._growing.copy_folder("plugins")

    def describe(self, config: str) -> None:
        if not self.writes:
            return
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

    def _write(self, name, text):
        path = as_path(self.file(name))
        with naming(path):
            replace_file(path.parent, path.name, text.encode())

    def open_metrics(self, step: int, settings: Mapping[str, str] | None = None) -> str | None:
        """Opens the records after `step`; drops later ones.

        settings: bindings of the run, for writers that show them.

        Returns the file with the earlier records of a restarted run, or None.
        """
        if not self.writes:
            return None
        if "wandb" in self._kinds:  # first, as it may be refused
            self._writers.append(Wandb(self.on_disk, self.path, settings or {}))
        metrics = as_path(self.file(METRICS))
        # Without records, event files belong to another program.
        files = as_path(self.path).iterdir() if metrics.exists() else ()
        events = [path for path in files if path.name.startswith(PREFIX)]
        moved = None
        if not step and read_metrics(self.path):
            moved = self._copy_records()
            metrics.unlink()
        self._drop_records_after(step)
        self._metrics = RecordFile(os.path.join(self.on_disk, METRICS))
        if self._growing or not step or "tensorboard" not in self._kinds:
            for path in events:
                path.unlink()
            events = []
        if "tensorboard" in self._kinds:
            self._writers.append(EventFile(self.on_disk, step + 1 if events else None))
        if empty := [writer for writer in self._writers if writer.begins_empty]:
            with open_regular(self._metrics.path) as lines:
                for record in filter(None, map(record_of, lines)):
                    self._write_numbers(empty, record)
        return moved

    def _drop_records_after(self, step):
        path = as_path(self.file(METRICS))
        if not path.exists():
            return
        kept = os.path.join(self.on_disk, METRICS)
        is_damaged = False
        with naming(kept), open_regular(path, MOST_BYTES) as old, replacing(kept) as new:
            for line in old:
                record = record_of(line)
                if record is None:
                    is_damaged |= line.endswith(b"\n") and bool(line.strip())
                elif record["step"] <= step:
                    new.write(line.rstrip(b"\n") + b"\n")
            if is_damaged:
                copy = self._copy_records()
                logging.warning(
                    "%s has damaged lines. The file as it was is kept as %s.", path, copy
                )
        if self._growing:
            self._growing.copy()

    def _copy_records(self) -> str:
        paths = (as_path(self.file(f"metrics.{number}.jsonl")) for number in itertools.count(1))
        copy = next(path for path in paths if not path.exists())
        with naming(copy):
            replace_file(copy.parent, copy.name, read_bytes(self.file(METRICS)))
        return str(copy)

    def record(self, step: int, scalars: dict[str, float | str]) -> None:
        if self._metrics is None:
            return
        self._check_lock()
        record = {"step": step, **scalars}
        self._metrics.append(record)
        self._write_numbers(self._writers, record)
        if self._growing:
            self._growing.copy_if_due()

    def _write_numbers(self, writers, record):
        numbers = {
            name: value
            for name, value in record.items()
            if name != "step" and not isinstance(value, str)
        }
        for writer in writers:
            writer.write(record["step"], numbers)

    def sync(self) -> None:
        """Waits until the records are on disk, so that no checkpoint is ahead."""
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
        try:
            self.close_records()
        finally:
            if self._lock:
                self._lock.release()

    def close_records(self) -> None:
        if self._metrics is None:
            return
        files = self._metrics, *self._writers
        with contextlib.ExitStack() as closing:
            for file in files:
                closing.callback(file.close)
            try:
                self.sync()
            finally:
                self._metrics, self._writers = None, []


def check_run_folder(path: str | os.PathLike) -> None:
    """Refuses links that lead out of a run folder.

    Checkpoints and metrics may be those of the run next to it, as `brt.sweep` links them where one
    model is evaluated with several settings.
    """
    check_links(as_path(path), siblings=(CHECKPOINTS, METRICS))


def read_metrics(
    path: str, problems: list[str] | None = None, most: int | None = None
) -> list[dict]:
    """Returns the records of a run folder, oldest first, without damaged and torn lines.

    problems: list to append sentences about damaged lines to; None logs them. most: number of
    records, evenly spaced, to read of a longer file, besides evaluations and the last ones; None
    for all.
    """
    file = os.path.join(path, METRICS)
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
        sentence = f"{file} is damaged: these lines were left out: {shown}."
        if problems is None:
            logging.warning("%s", sentence)
        else:
            problems.append(sentence)
    return records


def versions() -> dict[str, str | None]:
    def version(package):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)

    return {name: version(name) for name in PACKAGES}


def code_hash() -> str:
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
