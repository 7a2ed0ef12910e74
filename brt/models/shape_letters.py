"""Letters of shape suffixes, and the axis of the device mesh each is split over.

A parameter `queries_DA`, a cache field `keys_BWHK` and an activation `x_BTD` all say
their shape in their name, so one table of letters decides every sharding:
rows over `data`; heads, attention width, feed-forward and vocabulary over `model`;
and the width of whatever has no rows (parameters, and the optimizer's copies of them),
or a recurrent layer's input, over `data` too, as fully sharded data parallelism does.
"""

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


def constrain(x: jax.Array, letters: str) -> jax.Array:
    """Pins the layout of an activation inside `jit` under a mesh; elsewhere the identity."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec(letters))
