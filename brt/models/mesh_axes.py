"""Logical axis names: names end in them (`x_BTD`), and `AXES` assigns them to axes of the mesh."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


class MeshAxis(NamedTuple):
    """An axis of the mesh.

    splits: logical axes that are divided over it. crosses: whether it crosses slices and nodes by
    default.
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
OVER_TIME = "sequence"
"""The axis that divides the segments of a step (`brt/training/over_time`)."""


def _rule(letter):
    names = tuple(name for name, axis in AXES.items() if letter in axis.splits)
    return names if len(names) > 1 else names[0]


RULES: dict[str, str | tuple[str, ...]] = {
    letter: _rule(letter) for axis in AXES.values() for letter in axis.splits
}

SUFFIX = re.compile(r"_([A-Z]+)$")


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
    """Returns the number of parts of a logical axis on a mesh."""
    return math.prod(mesh_shape[name] for name in mesh_axes_of(axis))


def named_spec(path: Any, shape: tuple[int, ...], mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Returns the partition of an array of a tree, from the axes at the end of its name.

    The name is the last dictionary key or named-tuple field. Replicated: vectors, arrays with
    another number of axes (factored moments), and axes that the mesh does not divide.
    """
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    match = SUFFIX.search(["", *[name for name in names if not name.isdigit()]][-1])
    if not match or len(match[1]) != len(shape) or (len(shape) < 2 and match[1] != "B"):
        return PartitionSpec()
    return PartitionSpec(
        *(
            mesh_axes if mesh_axes and size % parts(axis, mesh_shape) == 0 else None
            for axis, mesh_axes, size in zip(match[1], spec(match[1]), shape, strict=True)
        )
    )


def without_batch(mesh_axes: PartitionSpec) -> PartitionSpec:
    """Returns a partition without the mesh axes of the batch."""
    batch = RULES["B"], *mesh_axes_of("B")
    return PartitionSpec(*(None if names in batch else names for names in mesh_axes))


def copies(mesh_shape: Mapping[str, int], path: Any, x: jax.Array) -> jax.Array:
    """Returns a copy of a weight for each part of the batch, along a new first axis.

    path: as for `named_spec`. The model axis still divides each copy.
    """
    divided = named_spec(path, x.shape, mesh_shape)
    axes = without_batch(divided)
    if (data := mesh_shape["data"]) > 1:
        # The gradient is summed over `fsdp` first, so that slices exchange parts of the sum.
        fsdp = mesh_shape["fsdp"]
        x = _repeated(x, data, "data", *divided)
        x = jnp.broadcast_to(x[:, None], (data, fsdp, *x.shape[1:]))
        x = jax.lax.with_sharding_constraint(x, PartitionSpec("data", "fsdp", *axes))
        x = x.reshape(data * fsdp, *x.shape[2:])
        return jax.lax.with_sharding_constraint(x, PartitionSpec(RULES["B"], *axes))
    return _repeated(x, parts("B", mesh_shape), RULES["B"], *axes)


def _repeated(x, number, *axes):
    x = jnp.broadcast_to(x, (number, *x.shape))
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))
