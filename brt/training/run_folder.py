"""The run folder: the record of what was run, with what, and of every number it reported.

config.gin, operative_config.gin, command.txt, environment.json, metrics.jsonl,
events.out.tfevents.*, checkpoints/
"""

import glob
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

import gin
from absl import logging

from brt.regular_files import read_bytes

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gin-config", "numpy", "brt")


EVALUATION = b'"eval/'
"""What a line of metrics.jsonl holds if it is that of an evaluation."""


class RunFolder:
    """Writes a run's records; only process 0 of a run should have one that `writes`.

    Args:
        path: the folder, created if `writes`.
        writes: whether this process writes anything.

    Raises:
        PermissionError: if the folder cannot be written.
    """

    def __init__(self, path: str, writes: bool = True):
        self.path = os.path.abspath(path)
        self.writes = writes
        self._metrics: TextIO | None = None
        self._events: Any = None  # a TensorBoard writer
        if writes:
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
            "packages": versions(),
            "code": code_hash(),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
        self._write("config.gin", config)
        self._write("operative_config.gin", gin.operative_config_str())
        self._write("command.txt", shlex.join(sys.orig_argv) + "\n")
        self._write("environment.json", json.dumps(environment, indent=2) + "\n")

    def _write(self, name, text):
        with open(self.file(name) + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self.file(name) + ".new", self.file(name))

    def open_metrics(self, step: int) -> str | None:
        """Opens the records for writing after `step`; what lies beyond it is cut off.

        Returns:
            The file that earlier records went to if a run begins anew over them, otherwise None.
        """
        if not self.writes:
            return None
        from tensorboardX import SummaryWriter

        own = os.path.exists(self.file("metrics.jsonl"))
        aside = None if step else self._put_aside()
        damaged: list[str] = []
        kept = [record for record in read_metrics(self.path, damaged) if record["step"] <= step]
        if damaged:  # what follows rewrites the file
            copy = self._free_name()
            shutil.copyfile(self.file("metrics.jsonl"), copy)
            logging.warning("%s The file as it was is kept as %s.", damaged[0], copy)
        self._write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))
        self._metrics = open(self.file("metrics.jsonl"), "a", encoding="utf-8")  # noqa: SIM115
        # They are written anew from the records. In a folder without records they are not ours.
        for events in glob.glob(self.file("events.out.tfevents.*")) if own else ():
            os.remove(events)
        self._events = SummaryWriter(logdir=self.path, flush_secs=30)
        for record in kept:
            self._to_tensorboard(record)
        return aside

    def _put_aside(self):
        if not read_metrics(self.path):
            return None
        aside = self._free_name()
        os.replace(self.file("metrics.jsonl"), aside)
        return aside

    def _free_name(self):
        names = (self.file(f"metrics.{number}.jsonl") for number in itertools.count(1))
        return next(name for name in names if not os.path.lexists(name))

    def record(self, step: int, scalars: dict[str, float | str]) -> None:
        """Appends one line to metrics.jsonl; what of it is a number, to TensorBoard too."""
        if self._metrics is None:
            return
        record = {"step": step, **scalars}
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()
        self._to_tensorboard(record)

    def _to_tensorboard(self, record):
        for name, value in record.items():
            if name != "step" and not isinstance(value, str):
                self._events.add_scalar(name, value, record["step"])

    def sync(self) -> None:
        """Waits until the records are on disk: before a checkpoint that comes after them."""
        if self._metrics is not None:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            self._events.flush()

    def close(self) -> None:
        """Waits until the records are on disk, and closes their files."""
        if self._metrics is not None:
            self.sync()
            self._metrics.close()
            self._events.close()


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
        record = _record(line)
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
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _record(line):
    """Returns the record of a line; None if it is none: a step, and numbers and texts by name."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if type(record) is not dict or type(step := record.get("step")) is not int or step < 0:
        return None
    return record if all(map(_is_scalar, record.values())) else None


def _is_scalar(value):
    kind = type(value)
    return kind in (float, str) or (kind in (int, bool) and abs(value) < 2**63)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
