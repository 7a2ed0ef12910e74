"""Sharding constraints of activations, and the kind of device of the mesh."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import PartitionSpec

from brt.models.mesh_axes import spec, without_batch

_ONE_SHARD = contextvars.ContextVar("one data shard", default=False)


def device() -> Any:
    """Returns the (abstract) device of the active mesh, or else the first device."""
    mesh = jax.sharding.get_abstract_mesh()
    return (None if mesh.empty else mesh.abstract_device) or jax.devices()[0]


def on_tpu() -> bool:
    return device().device_kind.startswith("TPU")


def on_gpu() -> bool:
    return device().platform == "gpu"


@contextlib.contextmanager
def true_while(variable: contextvars.ContextVar[bool]) -> Iterator[None]:
    """A context in which a variable is true."""
    token = variable.set(True)
    try:
        yield
    finally:
        variable.reset(token)


one_data_shard = functools.partial(true_while, _ONE_SHARD)
"""A context in which `constrain` leaves the batch axis whole, to trace one data shard."""
in_one_data_shard = _ONE_SHARD.get


def constrain(x: jax.Array, axes: str) -> jax.Array:
    if jax.sharding.get_abstract_mesh().empty:
        return x
    mesh_axes = without_batch(spec(axes)) if in_one_data_shard() else spec(axes)
    return jax.lax.with_sharding_constraint(x, mesh_axes)


def vectors(matrix_VD: jax.Array, ids_BT: jax.Array) -> jax.Array:
    """Returns `matrix_VD[ids_BT]`.

    Over slices each device takes its part of the width for all batch elements of its slice;
    otherwise XLA would exchange gradients of the whole matrix between slices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["data"] == 1 or in_one_data_shard():
        return matrix_VD[ids_BT]
    ids_BT = jax.lax.with_sharding_constraint(ids_BT, PartitionSpec("data"))
    x_BTD = matrix_VD[ids_BT]
    return jax.lax.with_sharding_constraint(x_BTD, PartitionSpec("data", None, "fsdp"))
