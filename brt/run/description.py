"""Describes a command's run: sizes, settings, and prepared data."""

import jax
import numpy as np

from brt.data.extras import MissingExtra
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.models.mesh_axes import OVER_TIME
from brt.training.sharding import AnyMesh


def describe(experiment: Experiment, mesh: AnyMesh) -> str:
    """Returns an aligned table of parameters, operations, bytes per device and tokens per step."""
    counts = count_parameters(experiment.model)
    state = experiment.abstract_state(mesh)
    flops = experiment.model.flops_per_token()
    trainer = experiment.trainer
    rows = [
        ("parameters, embedding", _millions(counts.embedding)),
        ("parameters, layers", _millions(counts.layers)),
        ("parameters, cells and memory", _millions(counts.recurrence)),
        ("parameters, non-embedding", _millions(counts.non_embedding)),
        ("parameters, all", _millions(sum(counts))),
        ("FLOPs per token, forward", f"{flops / 1e6:,.1f} M"),
        ("FLOPs per token, training", f"{3 * flops / 1e6:,.1f} M"),
        ("bytes per device, parameters", _bytes_per_device(state.params)),
        ("bytes per device, optimizer", _bytes_per_device(state.optimizer)),
        ("bytes per device, caches", _bytes_per_device(state.caches)),
        ("tokens per step", f"{trainer.tokens_per_step:,} ({trainer.rows} batch elements)"),
        (f"devices, {' x '.join(mesh.shape)}", " x ".join(map(str, mesh.shape.values()))),
    ]
    if (N := mesh.shape.get(OVER_TIME, 1)) > 1:
        from brt.training.over_time.scan import scan_is_faster

        sizes = trainer.segments_per_step, N, trainer.segment_length
        scanned = scan_is_faster(experiment.model, *sizes)
        rows.append(("schedule over time", "scan" if scanned else "ring"))
    return "\n".join(f"{name:<30} {value:>24}" for name, value in rows)


def settings(experiment: Experiment) -> str:
    corpus = experiment.trainer.corpus
    width = max(map(len, experiment.bindings))
    lines = [f"{name:<{width}} = {value}" for name, value in sorted(experiment.bindings.items())]
    try:
        lines += ["", f"vocabulary: {corpus.vocabulary.size:,} ids"]
    except (OSError, ValueError, MissingExtra):  # `check_data` says why
        lines += ["", "vocabulary: cannot be opened"]
    for split in dict.fromkeys(("train", experiment.evaluation.split)):
        ready = "is prepared" if corpus.exists(split) else "is to be prepared"
        lines.append(f"store of split {split}: {ready}")
    return "\n" + "\n".join(lines)


def _millions(count):
    return f"{count / 1e6:,.1f}M ({count:,})"


def _bytes_per_device(tree):
    def size(leaf):
        shape = leaf.sharding.shard_shape(leaf.shape)
        return int(np.prod(shape)) * leaf.dtype.itemsize

    total = sum(size(leaf) for leaf in jax.tree.leaves(tree))
    return f"{total / 2**20:,.1f} MiB"
