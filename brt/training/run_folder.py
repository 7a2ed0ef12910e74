"""The run folder: the record of what was run, with what, and of every number it reported.

config.gin, operative_config.gin, command.txt, environment.json, metrics.jsonl,
events.out.tfevents.*, checkpoints/
"""

import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import gin

from brt.storage.growing import GrowingFiles
from brt.storage.paths import RemotePath, absolute, as_path, is_remote
from brt.training.metric_writers import USUAL, MetricWriter, TensorBoard, Wandb

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gin-config", "numpy", "brt")

PROBE = ".brt_can_write"
"""An object that is written to a bucket, and removed, to see if it can be."""


class RunFolder:
    """Writes a run's records; only process 0 of a run should have one that `writes`.

    In a bucket nothing can be appended to: there the records are copied whole, at every checkpoint,
    at the end, and every minute or so between.

    Args:
        path: the folder, created if `writes`.
        writes: whether this process writes anything.
        metrics: where numbers go, some of `brt.training.metric_writers.KINDS`.

    Raises:
        PermissionError: if the folder cannot be written.
    """

    def __init__(self, path: str, writes: bool = True, metrics: Sequence[str] = USUAL):
        self.path = absolute(path)
        self.writes = writes
        self._remote = RemotePath(self.path) if is_remote(self.path) else None
        self._growing = GrowingFiles(self._remote) if self._remote else None
        self._metrics: TextIO | None = None
        self._kinds = tuple(metrics)
        self._writers: list[MetricWriter] = []
        if writes and self._remote:
            (self._remote / PROBE).write_text("")  # raises what is to be said
            (self._remote / PROBE).unlink(missing_ok=True)
        elif writes:
            try:
                os.makedirs(self.path, exist_ok=True)
                tempfile.TemporaryFile(dir=self.path).close()
            except OSError as error:
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
            "packages": {name: _version(name) for name in PACKAGES},
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
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        self._write("metrics.jsonl", text)
        growing = os.path.join(self.on_disk, "metrics.jsonl")
        if self._growing:
            Path(growing).write_text(text, encoding="utf-8")
        self._metrics = open(growing, "a", encoding="utf-8")  # noqa: SIM115
        # They are written anew from the records. In a folder without records they are not ours.
        for events in self._old_events() if own else ():
            events.unlink()
        if "tensorboard" in self._kinds:
            self._writers.append(TensorBoard(self.on_disk))
        for record in kept:
            self._write_on([writer for writer in self._writers if writer.begins_empty], record)
        return aside

    def _old_events(self):
        files = self._remote.iterdir() if self._remote else Path(self.path).iterdir()
        return [path for path in files if path.name.startswith("events.out.tfevents.")]

    def _put_aside(self):
        if not read_metrics(self.path):
            return None
        names = (self.file(f"metrics.{number}.jsonl") for number in itertools.count(1))
        aside = next(name for name in names if not as_path(name).exists())
        if self._remote:
            records = self._remote / "metrics.jsonl"
            records.copy_to(RemotePath(aside))
            records.unlink()
        else:
            os.replace(self.file("metrics.jsonl"), aside)
        return aside

    def record(self, step: int, scalars: dict[str, float | str]) -> None:
        """Appends one line to metrics.jsonl; what of it is a number goes to the others, too."""
        if self._metrics is None:
            return
        record = {"step": step, **scalars}
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()
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
        """Waits until the records are on disk: before a checkpoint that comes after them."""
        if self._metrics is not None:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            for writer in self._writers:
                writer.flush()
            if self._growing:
                self._growing.copy()

    def close(self) -> None:
        """Waits until the records are on disk, and closes their files."""
        if self._metrics is not None:
            self.sync()
            self._metrics.close()
            for writer in self._writers:
                writer.close()
            self._writers = []
            self._metrics = None


def read_metrics(path: str) -> list[dict]:
    """Returns the records of a run folder, oldest first; a torn last line is left out."""
    try:
        lines = (as_path(path) / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
