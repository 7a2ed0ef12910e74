"""Checkpoints: the one place that knows Orbax.

A checkpoint holds parameters, optimizer, caches and step, and a JSON record with a
fingerprint of each array. It is written in the background and appears under its final
name only when complete; one that does not read back with the same fingerprints is damaged
and is never loaded. What cannot be read is never deleted: a run that goes on from an older
checkpoint puts it aside.
"""

import copy
import itertools
import os
import re
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from absl import logging
from jax.experimental import multihost_utils

from brt.checks import ManyFrom0
from brt.data.stores.token_store import VOCABULARY
from brt.storage.json_files import Fields, misfit, read_json
from brt.storage.paths import RemotePath, absolute, is_remote, move
from brt.storage.regular_files import check_regular
from brt.training.checkpoints.library_settings import (
    leave_counters_unread,
    reach_buckets_without_tensorflow,
)
from brt.training.checkpoints.mirror import COMPLETE, CheckpointMirror
from brt.training.checkpoints.passing_errors import passing_reason
from brt.training.checkpoints.policy import CheckpointPolicy
from brt.training.train_step import TrainState

ASIDE = "aside"
"""Folder beside the checkpoints for those that a run does not go on from."""

STEP_NAME = ".step"
"""Name of `TrainState.step` among the fingerprints."""


class Hexadecimal:
    """Strings of a number's digits."""

    words = "a number in hexadecimal digits"

    def holds(self, value: Any) -> bool:
        """Tells whether a value is such a string."""
        return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{1,16}", value) is not None


RECORD = Fields(
    {"fingerprints": dict[str, ManyFrom0]},
    {
        "bindings": dict[str, str],
        "interval": dict[str, float],
        "evaluated": bool,
        "ledger": Annotated[str, Hexadecimal()],
        "vocabulary": VOCABULARY,
    },
)
"""What the record of a checkpoint has; the training loop adds the optional ones."""


class CheckpointError(RuntimeError):
    """No checkpoint can be read, or one cannot be written; the message says which and why."""


class Checkpoints:
    """The checkpoints of one folder.

    Args:
        folder: absolute path; created when first written to. In a bucket a checkpoint is complete
            when its last object is there. `gs://` is written in the background, by every process;
            other buckets by one process, while training waits.
        policy: what to keep.
    """

    def __init__(self, folder: str, policy: CheckpointPolicy | None = None):
        import orbax.checkpoint as ocp  # takes a second, and only runs that save need it

        leave_counters_unread()

        policy = policy or CheckpointPolicy()
        self._retention = _Retention(policy)
        self._writing = 0  # the newest step that was begun to be written
        self._skipped: dict[int, str] = {}  # steps not restored: what to call them aside
        self._ocp = ocp
        self.folder = absolute(folder)
        self._mirror: CheckpointMirror | None = None
        if is_remote(self.folder):
            reach_buckets_without_tensorflow()
            if not self.folder.startswith("gs://"):
                remote = RemotePath(self.folder)
                self._mirror = CheckpointMirror(remote)
        self._manager = ocp.CheckpointManager(
            str(self._mirror.folder) if self._mirror else self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._retention,
                enable_async_checkpointing=True,
            ),
        )

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return self._mirror.steps() if self._mirror else sorted(self._manager.all_steps())

    def save(self, state: TrainState, record: dict, best: int | None = None) -> None:
        """Begins to write a checkpoint; waits only for the copy off the devices.

        Args:
            state: the train state; may be donated as soon as this returns.
            record: json-able values to find again on restore; may be changed likewise.
            best: step of the best evaluation so far, whose checkpoint stays.

        Raises:
            CheckpointError: if an earlier write failed (a full disk, say).
        """
        ocp = self._ocp
        step = int(state.step)
        if step in self._manager.all_steps() or (self._mirror and step in self._mirror.steps()):
            return
        self._retention.best = best
        self.wait()  # so that an error names the checkpoint that failed, not the next one
        self._writing = step
        # Copies, because the record is written while the caller's goes on counting, and because
        # a backend may return views of buffers that the next step reuses.
        record = copy.deepcopy({**record, "fingerprints": _fingerprints(state)})
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
            if self._mirror:
                self._manager.wait_until_finished()
                self._mirror.publish(step)
                self._mirror.keep(self._retention.kept(self._mirror.steps()))
        except Exception as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Waits until everything begun is on disk."""
        try:
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
        """Returns the JSON record of one checkpoint."""
        ocp = self._ocp
        self._fetch(step)
        args = ocp.args.Composite(record=ocp.args.JsonRestore())
        return _checked(self._manager.restore(step, args=args)["record"])

    def restore_latest(
        self, abstract: TrainState, parts: Sequence[str] = TrainState._fields
    ) -> tuple[TrainState, dict] | None:
        """Returns the newest valid checkpoint, one that reads back as it was written.

        Args:
            abstract: shapes, types and shardings to restore into.
            parts: fields of the state to read; the others come back None.

        One that is damaged, or whose folder is named after another step than it holds, is skipped
        with a warning.

        Returns:
            (state, record), or None if the folder holds no checkpoint at all.

        Raises:
            CheckpointError: if there are checkpoints, but none is valid; or if one could not be
                read for a reason that may pass, such as too many open files.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                held = self._step_held(step)
                if held == step:
                    return self._restore(step, abstract, parts)
                self._skip_misnamed(step, held)
            except Exception as error:  # a damaged file shows itself in many ways
                if reason := passing_reason(error):
                    raise self._unread(step, reason) from error
                self._skipped[step] = "unreadable"
                logging.warning(
                    "Checkpoint %d in %s is damaged and was skipped: %s",
                    step,
                    self.folder,
                    str(error).strip().split("\n")[0][:300],
                )
        if steps:
            raise CheckpointError(
                f"None of the checkpoints {steps} in {self.folder} can be read into this model. "
                "If the config is right, remove the damaged ones or start in a new --workdir."
            )
        return None

    def restore(
        self, step: int, abstract: TrainState, parts: Sequence[str] = TrainState._fields
    ) -> tuple[TrainState, dict]:
        """Returns the checkpoint of one step; as `restore_latest`.

        Raises:
            CheckpointError: it is not there, is damaged, or could not be read just now.
        """
        if step not in (steps := self.steps()):
            kept = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(
                f"{self.folder} has no checkpoint of step {step}. Steps that are there: {kept}."
            )
        try:
            if (held := self._step_held(step)) != step:
                raise CheckpointError(f"it holds step {held}")
            return self._restore(step, abstract, parts)
        except Exception as error:  # a damaged file shows itself in many ways
            if reason := passing_reason(error):
                raise self._unread(step, reason) from error
            reason = str(error).strip().split("\n")[0][:300]
            others = ", ".join(str(other) for other in steps if other != step) or "none"
            raise CheckpointError(
                f"Checkpoint {step} in {self.folder} is damaged, or is of another model: {reason}. "
                f"Other steps that are there: {others}."
            ) from error

    def _step_held(self, step):
        """Returns the step that the checkpoint of this folder was saved at, by its own record."""
        folder = os.path.join(self.folder, str(step))
        if not is_remote(folder):
            _check_files(folder)
        path = os.path.join(folder, "record", "metadata")
        record = read_json(path, RECORD, "it is left out")
        # Of a single number the fingerprint is the number itself.
        if (held := record["fingerprints"].get(STEP_NAME)) is None:
            raise CheckpointError("its record does not say which step it holds")
        return held

    def _skip_misnamed(self, step, held):
        self._skipped[step] = f"holds-step-{held}"
        logging.warning(
            "%s holds the checkpoint of step %d, not of step %d, and was skipped: a copy, perhaps.",
            os.path.join(self.folder, str(step)),
            held,
            step,
        )

    def _unread(self, step, reason):
        return CheckpointError(
            f"Checkpoint {step} in {self.folder} could not be read: {reason}. It may be whole, so "
            "nothing was changed: run the same command again when the cause is mended, or move "
            f"{os.path.join(self.folder, str(step))} elsewhere to go on from an older checkpoint."
        )

    def _fetch(self, step):
        """Has a checkpoint on this disk where Orbax reads no other."""
        if self._mirror:
            self._mirror.fetch(step)
            self._manager.reload()

    def _restore(self, step, abstract, parts):
        ocp = self._ocp
        self._fetch(step)
        wanted = {name: part for name, part in _parts(abstract).items() if name in parts}
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                **{name: ocp.args.StandardRestore(part) for name, part in wanted.items()},
                record=ocp.args.JsonRestore(),
            ),
        )
        record = _checked(restored["record"])
        found = TrainState(
            *(
                jax.tree.map(_as_wanted, restored[name][name], getattr(abstract, name))
                if name in parts
                else None
                for name in TrainState._fields
            )
        )
        saved = record["fingerprints"]
        bad = [name for name, value in _fingerprints(found).items() if saved.get(name) != value]
        if bad:
            raise CheckpointError(f"the contents of {bad[:3]} are not what was written")
        return found, record

    def put_aside(self, step: int) -> None:
        """Moves what training from `step` on would be in the way of to `aside/`; deletes nothing.

        That is: checkpoints after `step`, and those before it that do not hold the step they are
        named after, or whose record cannot be read. Their new names say why, as `6-unreadable` and
        `7-holds-step-4`. Process 0 moves them; all processes of a run call this together.

        Raises:
            CheckpointError: a folder cannot be moved, or a record not be read just now.
        """
        if jax.process_index() == 0:
            for other in self.steps():
                if other != step and (why := self._reason_to_move(other, step)):
                    self._move_aside(other, why)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("checkpoints put aside")
        self._manager.reload()

    def _reason_to_move(self, other, step):
        if other not in self._skipped:
            try:
                if (held := self._step_held(other)) != other:
                    self._skip_misnamed(other, held)
            except Exception as error:
                if reason := passing_reason(error):
                    raise self._unread(other, reason) from error
                self._skipped[other] = "unreadable"
        return self._skipped.get(other, f"after-step-{step}" if other > step else None)

    def _move_aside(self, step, why):
        if is_remote(self.folder):
            path = self._move_remote_aside(step, why)
        else:
            path = self._rename_aside(step, why)
        logging.warning("Checkpoint %d was put aside as %s; nothing was deleted.", step, path)

    def _move_remote_aside(self, step, why):
        folder = RemotePath(self.folder)
        wanted = f"{step}-{why}"
        more = (f"{wanted}-{number}" for number in itertools.count(2))
        names = (folder / ASIDE / name for name in itertools.chain([wanted], more))
        path = next(path for path in names if not path.is_dir())
        move(folder / str(step), path, first=COMPLETE)
        if self._mirror:
            self._mirror.forget(step)
        return path

    def _rename_aside(self, step, why):
        folder = os.path.join(self.folder, ASIDE)
        wanted = os.path.join(folder, f"{step}-{why}")
        more = (f"{wanted}-{number}" for number in itertools.count(2))
        path = next(p for p in itertools.chain([wanted], more) if not os.path.lexists(p))
        try:
            os.makedirs(folder, exist_ok=True)
            os.rename(os.path.join(self.folder, str(step)), path)
        except OSError as error:
            raise CheckpointError(
                f"Checkpoint {step} in {self.folder} cannot be put aside as {path} "
                f"({error.strerror}): move it elsewhere and run the same command again."
            ) from error
        return path

    def close(self) -> None:
        """Waits until everything begun is on disk, and ends Orbax's threads."""
        self.wait()
        self._manager.close()


class _Retention:
    """`CheckpointPolicy.kept`, as Orbax asks for it."""

    def __init__(self, policy):
        self.policy = policy
        self.best: int | None = None

    def kept(self, steps):
        return self.policy.kept(steps, self.best)

    def should_preserve(self, checkpoints, *, context):
        kept = self.kept([found.step for found in checkpoints])
        return [found.step in kept for found in checkpoints]


def _check_files(folder):
    """Refuses a checkpoint in which something is no regular file, on which reading might wait."""
    for path, _, names in os.walk(folder):
        for name in names:
            check_regular(os.path.join(path, name))


def _checked(record):
    if wrong := misfit(RECORD, record):
        raise CheckpointError(f"its record is damaged, as {wrong}")
    return record


def _parts(state):
    """Returns each field as Orbax takes it: arrays without elements, which it refuses, get one."""
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


def _as_wanted(x, abstract):
    return x if abstract.size else jnp.zeros(abstract.shape, x.dtype, device=x.sharding)


@jax.jit
def _sums(leaves):
    """Returns a 32-bit sum over the bits of each array, weighted by index; the same on any mesh."""

    def add(x):
        size = x.dtype.itemsize
        x = jax.lax.bitcast_convert_type(
            x, {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint32"}[size]
        )
        x = x.astype(jnp.uint32)
        weight = jnp.ones(x.shape, jnp.uint32)
        for axis in range(x.ndim):
            index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
            weight = weight * jnp.uint32(2654435761) + 2 * index + 1
        return jnp.sum(x * weight, dtype=jnp.uint32)

    return [add(x) for x in leaves]


def _fingerprints(state) -> dict[str, int]:
    flat = jax.tree_util.tree_flatten_with_path(state)[0]
    names = [jax.tree_util.keystr(path) for path, _ in flat]
    sums = jax.device_get(_sums([leaf for _, leaf in flat]))
    return {name: int(value) for name, value in zip(names, sums, strict=True)}
