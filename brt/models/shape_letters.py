"""Letters of shape suffixes, and the axis of the device mesh each is split over.

A parameter `queries_DA`, a cache field `keys_BWHK` and an activation `x_BTD` all say
their shape in their name, so one table of letters decides every sharding:
rows over `data`; heads, attention width, feed-forward and vocabulary over `model`;
and the width of whatever has no rows (parameters, and the optimizer's copies of them),
or a recurrent layer's input, over `data` too, as fully sharded data parallelism does.
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


def spec(letters: str) -> PartitionSpec:
    """Returns the partition of an array whose axes are named by `letters`.

    A mesh axis splits at most one axis of an array: the first letter that asks gets it.
    """
    taken, axes = set(), []
    for letter in letters:
        axis = RULES.get(letter)
        axes.append(None if axis in taken else axis)
        taken.add(axis)
    return PartitionSpec(*axes)


def named_spec(path: Any, shape: tuple[int, ...], mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Returns the partition of an array of a tree, by the letters at the end of its name.

    Names are dictionary keys or named-tuple fields (`queries_DA`, `keys_BWHK`), at any
    depth, so the optimizer's copies of a parameter follow it. What has no letters, one
    axis, another number of axes (factored moments) or an axis that does not divide is kept
    whole on every device.

    Args:
        path: of the array in its tree, as `jax.tree_util.tree_map_with_path` gives it.
        shape: of the array.
        mesh_shape: sizes of the mesh's axes, by name.
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
    """Returns the name in one step of a path; None for an index."""
    if isinstance(key, jax.tree_util.GetAttrKey):
        return key.name
    if isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, str):
        return key.key
    return None


@contextlib.contextmanager
def rows_of_one_shard() -> Iterator[None]:
    """Traces what is inside for the rows of one data shard: `constrain` leaves rows unsplit."""
    token = _ONE_SHARD.set(True)
    try:
        yield
    finally:
        _ONE_SHARD.reset(token)


def in_one_shard() -> bool:
    """Returns whether what is traced now has the rows of one data shard only."""
    return _ONE_SHARD.get()


def as_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is traced as if it were called here, wherever JAX calls it.

    The passes of a `jax.custom_vjp` are traced after the function around it has returned.
    """
    context = contextvars.copy_context()
    return lambda *inputs: context.copy().run(function, *inputs)


def constrain(x: jax.Array, letters: str) -> jax.Array:
    """Pins the layout of an activation inside `jit` under a mesh; elsewhere the identity."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    axes = spec(letters)
    if in_one_shard():
        axes = PartitionSpec(*(None if axis == "data" else axis for axis in axes))
    return jax.lax.with_sharding_constraint(x, axes)
