"""Checkpoints, the only module that uses Orbax.

A checkpoint holds parameters, optimizer, caches, step, and a JSON record with a fingerprint of each
array. It is written in the background and appears under its final name when complete. One whose
fingerprints differ is damaged: it is never loaded and never deleted, and a run that resumes from an
older one quarantines it.
"""

import copy
import datetime
import itertools
import os
import re
import types
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from absl import logging
from jax.experimental import multihost_utils

from brt.checks import ManyFrom0, Rule
from brt.data.stores.token_store import VOCABULARY
from brt.storage.json_files import MOST_BYTES, Fields, misfit
from brt.storage.paths import RemotePath, absolute, as_path, is_remote, move
from brt.storage.regular_files import open_regular
from brt.training.checkpoints.array_reads import read_one_replica
from brt.training.checkpoints.fingerprints import fingerprints
from brt.training.checkpoints.mirror import COMPLETE, CheckpointMirror
from brt.training.checkpoints.policy import CheckpointPolicy
from brt.training.checkpoints.transient_errors import first_line, transient_reason
from brt.training.records.goodput import spent
from brt.training.train_step import TrainState

# etils, which Orbax uses for buckets, would import TensorFlow where it is installed.
os.environ.setdefault("EPATH_USE_TF", "false")

ASIDE = "aside"
"""Folder of quarantined checkpoints."""
STEP_NAME = ".step"
"""Name of `TrainState.step` among the fingerprints."""
HEXADECIMAL = Rule(
    "a number in hexadecimal digits",
    lambda text: re.fullmatch(r"[0-9a-f]{1,16}", text) is not None,
)
RECORD = Fields(
    {"fingerprints": dict[str, ManyFrom0]},
    {
        "bindings": dict[str, str],
        "interval": dict[str, float],
        "goodput": dict[str, float],
        "evaluated": bool,
        "ledger": Annotated[str, HEXADECIMAL],
        "vocabulary": VOCABULARY,
        "content": str,
    },
)
"""The training loop adds the optional fields."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written; the message names it and the reason."""


class Unreadable(CheckpointError):
    """A checkpoint is gone or damaged; those of other steps may be valid."""


class OtherModel(CheckpointError):
    """A valid checkpoint with other arrays than the model or optimizer of the config."""


class Checkpoints:
    """The checkpoints of one folder.

    Args:
        folder: created when first written to. `gs://` is written by every process; other buckets
            by one process, from a local copy.
        policy: what to keep.
    """

    def __init__(self, folder: str, policy: CheckpointPolicy | None = None):
        import orbax.checkpoint as ocp  # takes a second, and only saving needs it
        import tensorstore

        # Orbax logs these counters, and TensorStore never frees them: 0.1 MB a checkpoint
        # (docs/benchmarks/robustness.md).
        tensorstore.experimental_collect_matching_metrics = lambda *_: []
        read_one_replica(ocp.type_handlers.get_type_handler(jax.Array))
        self._ocp = ocp
        self._retention = _Retention(policy or CheckpointPolicy())
        self._writing = 0  # newest step whose write has begun
        self.folder = absolute(folder)
        self._mirror: CheckpointMirror | None = None
        self._copier = ThreadPoolExecutor(1, "checkpoint-copy")
        self._copying: Future | None = None  # upload of the newest step
        if is_remote(self.folder) and not self.folder.startswith("gs://"):
            self._mirror = CheckpointMirror(RemotePath(self.folder))
        self._manager = ocp.CheckpointManager(
            str(self._mirror.folder) if self._mirror else self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._retention,
                step_name_format=_timeless_names(ocp.step),
                enable_async_checkpointing=True,
            ),
        )

    def steps(self) -> list[int]:
        return self._mirror.steps() if self._mirror else sorted(self._manager.all_steps())

    def save(self, state: TrainState, record: dict, best: int | None = None) -> None:
        """Begins to write a checkpoint; state and record may change as soon as this returns.

        record: JSON values. best: step of the best evaluation, whose checkpoint is kept. Raises
        `CheckpointError` if an earlier write failed.
        """
        ocp = self._ocp
        step = int(state.step)
        if step in self._manager.all_steps() or (self._mirror and step in self._mirror.steps()):
            return
        if jax.process_index() == 0 and os.path.lexists(os.path.join(self.folder, str(step))):
            self._move_aside(step, "no-folder")  # Orbax would delete it, or wait for a FIFO
        self.wait()  # so that an error names the checkpoint that failed, not the next one
        self._retention.best = best
        self._writing = step
        # Copies: the record is written while the caller's changes, and Orbax has views of a CPU's
        # buffers, which the next step reuses. It copies those of other devices to the host before
        # `save` returns; another copy would be in the device's memory.
        record = {**record, "fingerprints": fingerprints(state)}
        record = copy.deepcopy(record)
        if all(device.platform == "cpu" for device in state.step.devices()):
            state = jax.tree.map(jnp.copy, state)
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{name: ocp.args.StandardSave(part) for name, part in _parts(state).items()},
                    record=ocp.args.JsonSave(record),
                ),
                force=True,
            )
        except Exception as error:
            raise self._failed(error) from error
        if self._mirror:
            self._copying = self._copier.submit(self._copy_to, self._mirror, step)

    def _copy_to(self, mirror, step):
        self._manager.wait_until_finished()
        mirror.publish(step)
        mirror.keep(self._retention.kept(mirror.steps()))

    def wait(self) -> None:
        copying, self._copying = self._copying, None
        try:
            with spent("saves"):
                if copying:
                    copying.result()
                self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error):
        gone = not (is_remote(self.folder) or os.path.isdir(self.folder))
        advice = "Put the run folder back" if gone else "Free some space, or check the permissions,"
        return CheckpointError(
            f"Could not write the checkpoint of step {self._writing} in {self.folder} ({error}). "
            f"Complete checkpoints: {self.steps() or 'none'}. {advice} and run the same command "
            "again."
        )

    def record(self, step: int) -> dict:
        _check_files(os.path.join(self.folder, str(step)))
        args = self._ocp.args.Composite(record=self._ocp.args.JsonRestore())
        if self._mirror:  # Orbax cannot read it where it is
            self._mirror.fetch(step)
            self._manager.reload()
        record = self._manager.restore(step, args=args)["record"]
        if wrong := misfit(RECORD, record):
            raise CheckpointError(f"its record is damaged, as {wrong}")
        # The fingerprint of a single number is the number itself.
        if (held := record["fingerprints"].get(STEP_NAME)) != step:
            raise CheckpointError(f"it holds step {held}")
        return record

    def restore_latest(
        self, abstract: TrainState, parts: Sequence[str] = TrainState._fields
    ) -> tuple[TrainState, dict] | None:
        """Returns state and record of the newest valid checkpoint; None without checkpoints.

        Skips damaged ones, and copies under another step's name, with a warning. Raises
        `CheckpointError` if none is valid, or one is of another model or has a transient error.

        abstract: shapes, types and shardings. parts: fields of the state to read; others are None.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.restore(step, abstract, parts)
            except Unreadable as error:
                logging.warning("Skipped: %s", error)
        if steps:
            raise CheckpointError(
                f"None of the checkpoints {steps} in {self.folder} can be read: start in a new "
                "--workdir."
            )
        return None

    def restore(
        self, step: int, abstract: TrainState, parts: Sequence[str] = TrainState._fields
    ) -> tuple[TrainState, dict]:
        """Returns state and record of a step; raises `CheckpointError`."""
        steps = self.steps()
        others = ", ".join(str(other) for other in steps if other != step) or "none"
        if step not in steps:
            raise Unreadable(
                f"{self.folder} has no checkpoint of step {step}. Other steps: {others}."
            )
        try:
            return self._restore(step, abstract, parts)
        except OtherModel:
            raise
        except Exception as error:  # damage has many kinds of errors
            self._refuse_transient(step, error)
            raise Unreadable(
                f"Checkpoint {step} in {self.folder} is damaged: {first_line(error)}. Other "
                f"steps: {others}."
            ) from error

    def _restore(self, step, abstract, parts):
        ocp = self._ocp
        record = self.record(step)
        self._check_names(step, record, abstract, parts)
        shapes = {name: part for name, part in _parts(abstract).items() if name in parts}
        args = {name: ocp.args.StandardRestore(part) for name, part in shapes.items()}
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**args))
        except ValueError as error:
            if "the stored shape" not in str(error):
                raise
            raise self._other_model(step, first_line(error).split(". ")[0]) from error
        state = TrainState._make(
            jax.tree.map(_as_abstract, restored[name][name], getattr(abstract, name))
            if name in parts
            else None
            for name in TrainState._fields
        )
        saved, found = record["fingerprints"], fingerprints(state)
        bad = [name for name, value in found.items() if saved.get(name) != value]
        if bad:
            raise CheckpointError(f"the contents of {bad[:3]} are not what was written")
        return state, record

    def _check_names(self, step, record, abstract, parts):
        begins = tuple(f".{part}" for part in parts)
        saved = {name for name in record["fingerprints"] if name.startswith(begins)}
        paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(abstract))
        expected = {name for name in map(jax.tree_util.keystr, paths) if name.startswith(begins)}
        if odd := sorted(saved ^ expected):
            where = "the checkpoint" if odd[0] in saved else "the model or optimizer"
            raise self._other_model(step, f"{odd[0]} is in {where} alone ({len(odd)} such arrays)")

    def _other_model(self, step, reason):
        return OtherModel(
            f"Checkpoint {step} in {self.folder} has other arrays than this config: {reason}. Bind "
            "what the run's config.gin binds, or start in a new --workdir."
        )

    def _refuse_transient(self, step, error):
        if reason := transient_reason(error):
            raise CheckpointError(
                f"Checkpoint {step} in {self.folder} could not be read: {reason}. It may be whole, "
                "so nothing was changed: run the same command again when the cause is gone, or "
                f"move {os.path.join(self.folder, str(step))} elsewhere to resume from an older "
                "checkpoint."
            ) from error

    def quarantine(self, step: int) -> None:
        """Quarantines the checkpoints after `step`, which could not be read, as `6-unreadable`.

        All processes of a run call this together.
        """
        if jax.process_index() == 0:
            for other in self.steps():
                if other > step:
                    self._move_aside(other, "unreadable")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("checkpoints put aside")
        self._manager.reload()

    def _move_aside(self, step, why):
        folder = as_path(self.folder)
        suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        paths = (folder / ASIDE / f"{step}-{why}{suffix}" for suffix in suffixes)
        path = next(path for path in paths if not path.exists())
        try:
            if isinstance(folder, RemotePath):
                move(folder / str(step), RemotePath(path), first=COMPLETE)
            else:
                os.makedirs(folder / ASIDE, exist_ok=True)
                os.rename(folder / str(step), path)
        except OSError as error:
            raise CheckpointError(
                f"Checkpoint {step} in {self.folder} cannot be moved to {path} "
                f"({error.strerror or error}): move it and run the same command again."
            ) from error
        if self._mirror:
            self._mirror.forget(step)
        logging.warning("Checkpoint %d was moved to %s; nothing was deleted.", step, path)

    def close(self) -> None:
        self.wait()
        self._copier.shutdown()
        self._manager.close()


def _check_files(folder):
    def refuse(error):
        raise error

    if is_remote(folder):
        return
    for path, _, names in os.walk(folder, onerror=refuse):
        # A FIFO would block, and a sparse file fill the memory; arrays are read in parts.
        most = None if os.path.basename(path) == "d" else MOST_BYTES
        for name in names:
            open_regular(os.path.join(path, name), most).close()


def _timeless_names(step: Any) -> Any:
    """Returns Orbax's names of steps, without the times of checkpoints.

    Orbax would read the times at the start: with one damaged file no checkpoint could be opened.
    """

    class Timeless(step.Metadata):
        commit_timestamp = datetime.datetime.min

    def timeless(found):
        return Timeless(found.step, found.path)

    names = step.standard_name_format()
    return types.SimpleNamespace(
        build_name=names.build_name,
        find_all=lambda folder: map(timeless, names.find_all(folder)),
        find_step=lambda folder, step: timeless(names.find_step(folder, step)),
    )


class _Retention:
    def __init__(self, policy):
        self.policy = policy
        self.best: int | None = None

    def kept(self, steps):
        return self.policy.kept(steps, self.best)

    def should_preserve(self, checkpoints, *, context):
        kept = self.kept([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]


def _parts(state):
    """Returns each field for Orbax, which refuses empty arrays: they get one element."""
    return {
        name: {name: jax.tree.map(_with_elements, value)} for name, value in state._asdict().items()
    }


def _with_elements(x):
    if x.size:
        return x
    shape = tuple(max(n, 1) for n in x.shape)
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)
    return jnp.zeros(shape, x.dtype, device=x.sharding)


def _as_abstract(x, abstract):
    return x if abstract.size else jnp.zeros(abstract.shape, x.dtype, device=x.sharding)
