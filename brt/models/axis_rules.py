"""Logical axis names, the mesh axes of each, and the kind of device of the mesh.

Names of parameters, cache fields and activations end in their axes (`x_BTD`), which `AXES` assigns
to axes of the mesh.
"""

import contextlib
import contextvars
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec


class MeshAxis(NamedTuple):
    """An axis of the mesh.

    splits: logical axes of arrays that are divided over it. crosses: whether it goes over slices
    and nodes by default; the others stay inside of one.
    """

    splits: str
    crosses: bool = False


AXES = {
    "data": MeshAxis("B", crosses=True),
    "fsdp": MeshAxis("BDIEU"),
    "model": MeshAxis("HAFV"),
}
"""The batch over `data` and `fsdp`; the width of parameters and optimizer state over `fsdp` (fully
sharded data parallelism); heads, attention width, MLP and vocabulary over `model`."""


def _rule(letter):
    names = tuple(name for name, axis in AXES.items() if letter in axis.splits)
    return names if len(names) > 1 else names[0]


RULES: dict[str, str | tuple[str, ...]] = {
    letter: _rule(letter) for axis in AXES.values() for letter in axis.splits
}

SUFFIX = re.compile(r"_([A-Z]+)$")

_ONE_SHARD = contextvars.ContextVar("one data shard", default=False)


def spec(axes: str) -> PartitionSpec:
    """Returns the partition of an array with these axes; each mesh axis is used once."""
    used: set[str] = set()
    mesh_axes = []
    for axis in axes:
        names = {*mesh_axes_of(axis)}
        mesh_axes.append(None if names & used else RULES.get(axis))
        used |= names
    return PartitionSpec(*mesh_axes)


def mesh_axes_of(axis: str) -> tuple[str, ...]:
    rule = RULES.get(axis, ())
    return (rule,) if isinstance(rule, str) else rule


def parts(axis: str, mesh_shape: Mapping[str, int]) -> int:
    """Returns the number of parts that a mesh divides a logical axis into."""
    return math.prod(mesh_shape[name] for name in mesh_axes_of(axis))


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
            mesh_axes if mesh_axes and size % parts(axis, mesh_shape) == 0 else None
            for axis, mesh_axes, size in zip(match[1], spec(match[1]), shape, strict=True)
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
    mesh_axes = without_batch(spec(axes)) if in_one_data_shard() else spec(axes)
    return jax.lax.with_sharding_constraint(x, mesh_axes)


def by_width(x_BTD: jax.Array) -> jax.Array:
    """Divides vectors of a matrix over `data` and, as its width, over `fsdp`.

    XLA finds the way from there to "BTD" inside of slices, and none from the matrix over slices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["data"] == 1 or in_one_data_shard():
        return x_BTD
    return jax.lax.with_sharding_constraint(x_BTD, PartitionSpec("data", None, "fsdp"))


def without_batch(mesh_axes: PartitionSpec) -> PartitionSpec:
    """Returns a partition without the mesh axes of the batch, "B"."""
    batch = RULES["B"], *mesh_axes_of("B")
    return PartitionSpec(*(None if names in batch else names for names in mesh_axes))
