"""Runs a function on the batch elements of every data shard separately.

Plain counterpart: calling the function (tests/laws/test_sharding_laws.py compares a mesh with one
device). In a loop the compiler would gather weights that are split over the data axis, and sum
their gradients over devices, in every iteration. Here each shard gathers its copy before the loop:
for a TPU v4 slice, 11 gathers and 8 reductions inside loops become none
(tests/training/test_collectives.py counts them).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from brt.models.axis_rules import in_one_data_shard, named_spec, one_data_shard

ANY = PartitionSpec.UNCONSTRAINED


def by_data_shard(
    function: Callable[[Any, Any], tuple[Any, Any]], weights: Any, rows: Any
) -> tuple[Any, Any]:
    """Returns `function(weights, rows)`, computed for each data shard by `jax.vmap`.

    Without a mesh, with a batch size that the data axis does not divide, and inside such a function
    it is a plain call.

    Args:
        function: from weights and independent batch elements to a tree of arrays, batch first, and
            a tree of means over the batch.
        weights: a tree of arrays, split over the model axis by their names.
        rows: a tree of arrays, batch first.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or in_one_data_shard():
        return function(weights, rows)
    P = mesh.shape["data"]
    B = jax.tree.leaves(rows)[0].shape[0]
    if P == 1 or B % P:
        with one_data_shard():  # all batch elements are: no gathers in a loop inside this one
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

    with one_data_shard():
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
