"""Runs a function on the rows of every data shard by itself, with weights that all of them have.

    after, means = by_row_shard(function, weights, rows)

For functions with a loop in them (over blocks, over parts of the tokens). Left to itself, the
compiler gathers weights that are split over the data axis in every turn of the loop, and sums
their gradients over the devices in every turn of the backward loop. Here each shard has its own
copy of the weights: the copies are gathered before the loop, their gradients are summed in the
loop by each device for itself, and over the devices after it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from brt.models.shape_letters import in_one_shard, named_spec, rows_of_one_shard

ANY = PartitionSpec.UNCONSTRAINED


def by_row_shard(
    function: Callable[[Any, Any], tuple[Any, Any]], weights: Any, rows: Any
) -> tuple[Any, Any]:
    """Returns `function(weights, rows)`, computed for each data shard of the rows by itself.

    Without a mesh, with rows that the data axis does not divide, and inside of such a function it
    is just that.

    Args:
        function: from weights and rows to a tree whose leaves have rows first, and a tree of
            numbers that are means over rows. It must treat every row alike and by itself.
        weights: a tree of arrays without rows. Those that are named by their letters are split
            over the model axis as these say, all others are whole on every device.
        rows: a tree of arrays with rows first.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or in_one_shard():
        return function(weights, rows)
    P = mesh.shape["data"]
    B = jax.tree.leaves(rows)[0].shape[0]
    if P == 1 or B % P:
        with rows_of_one_shard():  # all rows are: nothing is gathered in a loop inside of this one
            return function(jax.tree_util.tree_map_with_path(_gathered, weights), rows)

    def copies(path, x):
        x = jnp.broadcast_to(x, (P, *x.shape))
        axes = PartitionSpec("data", *_model_axes(path, x.shape[1:], mesh.shape))
        return jax.lax.with_sharding_constraint(x, axes)

    def divided(x):
        x = x.reshape(P, B // P, *x.shape[1:])
        return jax.lax.with_sharding_constraint(x, _rows_first(x))

    def joined(x):
        x = jax.lax.with_sharding_constraint(x, _rows_first(x))
        return x.reshape(B, *x.shape[2:])

    with rows_of_one_shard():
        after, means = jax.vmap(function, spmd_axis_name="data")(
            jax.tree_util.tree_map_with_path(copies, weights), jax.tree.map(divided, rows)
        )
    return jax.tree.map(joined, after), jax.tree.map(lambda x: jnp.mean(x, axis=0), means)


def model_parts(size: int) -> int:
    """Returns the parts that the model axis splits an axis of this size into; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    parts = 1 if mesh.empty else mesh.shape["model"]
    return parts if size % parts == 0 else 1


def _gathered(path, x):
    mesh = jax.sharding.get_abstract_mesh()
    return jax.lax.with_sharding_constraint(x, _model_axes(path, x.shape, mesh.shape))


def _model_axes(path, shape, mesh_shape):
    axes = named_spec(path, shape, mesh_shape)
    return PartitionSpec(*(None if axis == "data" else axis for axis in axes))


def _rows_first(x):
    return PartitionSpec("data", *[ANY] * (x.ndim - 1))
