"""Checks and records of a resumed run."""

import re
import struct

import numpy as np
from jax.experimental import multihost_utils

from brt.bindings.read_bindings import differences
from brt.data.token_scores import Store
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.checkpoints.policy import Best, stopped_early
from brt.training.records.run_folder import read_metrics
from brt.training.settings import Trainer

EXECUTION = (
    *("Trainer.mesh:", "Trainer.accumulation:", "Trainer.devices_over_time:"),
    *("Trainer.log_every:", "Trainer.checkpoints:", "CheckpointPolicy."),
)
"""Beginnings of bindings of how a run is carried out."""
EVALUATION = ("Trainer.eval", "Evaluation.", "evaluation/", "RecallScore.", "FreeRunning.")
OTHERS = "Trainer.steps:", "Corpus.store:", "Pretrained.other_vocabulary:"
FREE_TO_CHANGE = (*EXECUTION, *EVALUATION, *OTHERS)
"""Beginnings of bindings that may change when a run is resumed."""
MACRO = re.compile(r"%([\w/]+)")


class ChangedConfig(ValueError):
    """The run folder has another configuration; the message lists the differences."""


def check_bindings(
    checkpoints: Checkpoints, bindings: dict[str, str], trainer: Trainer, store: Store
) -> None:
    """Refuses bindings, and tokens, that would change what the run computes."""
    free: tuple[str, ...] = FREE_TO_CHANGE
    if trainer.plateau:  # evaluations decide the learning rate
        # The shape of an evaluation follows from that of a microbatch.
        of_evaluation = "Trainer.eval", "Trainer.accumulation:", "Evaluation.", "evaluation/"
        free = tuple(name for name in free if not name.startswith(of_evaluation))
    record = _newest_record(checkpoints)
    recorded = record.get("bindings", bindings)
    changed = [
        line
        for line in differences(*map(_without_macros, (recorded, bindings)))
        if not line.startswith(free)
        and not f"{line.partition(':')[0].rpartition('/')[2]}:".startswith(free)
    ]
    content = store.manifest["content"]
    if (before := record.get("content", content)) != content:
        changed.append(f"tokens of {store.folder}, by hash: {before:.12} -> {content:.12}")
    if changed:
        raise ChangedConfig(
            f"The checkpoints in {checkpoints.folder} have other settings:\n  "
            + "\n  ".join(changed)
            + "\nUse a new --workdir, restore them, or pass --allow_changes to resume."
        )


def _without_macros(bindings):
    def value(match):
        name = match[1]
        return MACRO.sub(value, bindings[name]) if name in bindings else match[0]

    return {name: MACRO.sub(value, text) for name, text in bindings.items() if "." in name}


def _newest_record(checkpoints):
    for step in reversed(checkpoints.steps()):
        try:
            return checkpoints.record(step)
        except Exception:  # damaged; restoring reports it
            continue
    return {}


# Only process 0 needs access to the folder's records: it sends them to the others.


def best_evaluation(folder: str, step: int, trainer: Trainer) -> tuple[Best, bool]:
    if not trainer.policy.keep_best:
        return Best(), False
    records = [record for record in read_metrics(folder) if record["step"] <= step]
    best = trainer.policy.best_of(records, trainer.stream == "labelled")
    values = best.step is not None, best.step or 0, best.since, stopped_early(records)
    packed = np.frombuffer(struct.pack("<4qd", *values, best.value or 0.0), np.uint32)
    packed = np.asarray(multihost_utils.broadcast_one_to_all(packed), np.uint32)
    has_best, best_step, since, has_ended, value = struct.unpack("<4qd", packed.tobytes())
    return Best(best_step, value, since) if has_best else Best(since=since), bool(has_ended)


def recorded_loss(folder: str, step: int) -> float | None:
    losses = [
        record["eval/loss"]
        for record in read_metrics(folder)
        if record["step"] == step and "eval/loss" in record
    ]
    packed = np.array([bool(losses), losses[-1] if losses else 0.0], np.float32)
    is_recorded, loss = multihost_utils.broadcast_one_to_all(packed)
    return float(loss) if is_recorded else None
