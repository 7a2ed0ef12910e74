"""The mesh of a training run, optionally with an axis over time."""

from typing import Any

import jax
from jax.sharding import AxisType

from brt.models.diagonal import layerwise_of
from brt.models.mesh_axes import OVER_TIME
from brt.models.model import Model
from brt.training.settings import Trainer
from brt.training.sharding import AnyMesh


def divided(trainer: Trainer, model: Model, mesh: AnyMesh) -> Any:
    """Returns a (data fsdp / N, N, 1, model) mesh of a (data, fsdp, model) one; itself for N = 1.

    Raises:
        ValueError: the run cannot divide time over N devices.
    """
    N, K = trainer.devices_over_time, trainer.segments_per_step
    if N == 1:
        return mesh
    asked = f"Trainer.devices_over_time = {N}"
    data, models = mesh.shape["data"] * mesh.shape["fsdp"], mesh.shape["model"]
    if data % N or K % N or models > 1:
        raise ValueError(
            f"{asked} must divide the {data} devices of the batch (Trainer.mesh) and the {K} "
            f"segments of a step (Trainer.segments_per_step); and {models} model-parallel devices "
            "must be 1."
        )
    refused = trainer.clear_state, trainer.reread_segments, trainer.most_scored
    if model.dropout or any(refused):
        raise ValueError(
            f"{asked} trains without dropout: bind that of {type(model).__name__} to 0, and no "
            "Trainer.clear_state, reread_segments and most_scored."
        )
    if trainer.bptt_depth is not None:
        raise ValueError(f"{asked} has gradients through the whole step: bind no bptt_depth.")
    layerwise_of(model, "Trainer.devices_over_time")
    names, shape = ("data", OVER_TIME, "fsdp", "model"), (data // N, N, 1, models)
    types = (AxisType.Auto,) * len(names)
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return jax.sharding.AbstractMesh(shape, names, types)
    return jax.sharding.Mesh(mesh.devices.reshape(shape), names, types)
