"""Logical axis names, the mesh axis of each, and the kind of device of the mesh.

Names of parameters, cache fields and activations end in their axes (`x_BTD`). The batch is split
over `data`; heads, attention width, MLP and vocabulary over `model`; the width of parameters and
optimizer state over `data` (fully sharded data parallelism).
"""

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

RULES = {
    "B": "data",
    "H": "model",
    "A": "model",
    "F": "model",
    "V": "model",
    "D": "data",
    "I": "data",
    "E": "data",
    "U": "data",
}

SUFFIX = re.compile(r"_([A-Z]+)$")

_ONE_SHARD = contextvars.ContextVar("one data shard", default=False)


def spec(axes: str) -> PartitionSpec:
    """Returns the partition of an array with these axes; each mesh axis is used once."""
    mesh_axes: list[str | None] = []
    for axis in axes:
        mesh_axis = RULES.get(axis)
        mesh_axes.append(None if mesh_axis in mesh_axes else mesh_axis)
    return PartitionSpec(*mesh_axes)


def named_spec(path: Any, shape: tuple[int, ...], mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Returns the partition of an array of a tree, from the axes at the end of its name.

    The name is the last dictionary key or named-tuple field. Vectors, arrays with another number of
    axes (factored moments), and axes that the mesh does not divide are replicated.
    """
    name = next(filter(None, map(_name, reversed(path))), "")
    match = SUFFIX.search(name)
    if not match or len(match[1]) != len(shape) or (len(shape) < 2 and match[1] != "B"):
        return PartitionSpec()
    return PartitionSpec(
        *(
            axis if axis and size % mesh_shape[axis] == 0 else None
            for axis, size in zip(spec(match[1]), shape, strict=True)
        )
    )


def _name(key):
    if isinstance(key, jax.tree_util.GetAttrKey):
        return key.name
    if isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, str):
        return key.key
    return None


def device() -> Any:
    """Returns the (abstract) device of the active mesh, or else the first device."""
    mesh = jax.sharding.get_abstract_mesh()
    return (None if mesh.empty else mesh.abstract_device) or jax.devices()[0]


def on_tpu() -> bool:
    return device().device_kind.startswith("TPU")


def on_gpu() -> bool:
    return device().platform == "gpu"


@contextlib.contextmanager
def one_data_shard() -> Iterator[None]:
    """Traces for the batch elements of one data shard: `constrain` leaves the batch axis whole."""
    token = _ONE_SHARD.set(True)
    try:
        yield
    finally:
        _ONE_SHARD.reset(token)


def in_one_data_shard() -> bool:
    return _ONE_SHARD.get()


def in_this_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` so that it is traced in the context that is active now.

    JAX traces the passes of a `jax.custom_vjp` after the calling function has returned.
    """
    context = contextvars.copy_context()
    return lambda *inputs: context.copy().run(function, *inputs)


def constrain(x: jax.Array, axes: str) -> jax.Array:
    if jax.sharding.get_abstract_mesh().empty:
        return x
    mesh_axes = spec(axes)
    if in_one_data_shard():
        mesh_axes = PartitionSpec(*(None if axis == "data" else axis for axis in mesh_axes))
    return jax.lax.with_sharding_constraint(x, mesh_axes)
