"""Runs a function on the batch elements of every data shard separately.

Plain counterpart: calling the function (tests/laws/test_sharding_laws.py compares a mesh with one
device). In every iteration of a loop the compiler would gather weights that are split over `fsdp`,
and sum their gradients over devices. Here each shard gathers its copy before the loop: for a TPU v4
slice, 11 gathers and 8 reductions inside loops become none (tests/training/test_collectives.py).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from brt.models.axis_rules import in_one_data_shard, one_data_shard
from brt.models.mesh_axes import RULES, copies, mesh_axes_of, named_spec, parts, without_batch

ANY = PartitionSpec.UNCONSTRAINED


def by_data_shard(
    function: Callable[[Any, Any], tuple[Any, Any]], weights: Any, rows: Any
) -> tuple[Any, Any]:
    """Returns `function(weights, rows)`, computed for each data shard by `jax.vmap`.

    It is a plain call without a mesh, with a batch size that the mesh does not divide, and inside
    such a function.

    function: from weights and independent batch elements to a tree of arrays, batch first, and a
    tree of means over the batch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or in_one_data_shard():
        return function(weights, rows)
    P = parts("B", mesh.shape)
    B = jax.tree.leaves(rows)[0].shape[0]
    if P == 1 or B % P:
        with one_data_shard():  # one shard has all batch elements: no gathers in inner loops
            return function(jax.tree_util.tree_map_with_path(_gathered, weights), rows)

    each = jax.tree_util.tree_map_with_path(functools.partial(copies, mesh.shape), weights)
    with one_data_shard():
        after, means = jax.vmap(function, spmd_axis_name=mesh_axes_of("B"))(
            each, jax.tree.map(functools.partial(divided, P), rows)
        )
    return jax.tree.map(functools.partial(joined, B), after), jax.tree.map(
        lambda x: jnp.mean(x, axis=0), means
    )


def model_parts(size: int) -> int:
    """Returns the parts that the model axis splits an axis of this size into; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    number = 1 if mesh.empty else parts("V", mesh.shape)
    return number if size % number == 0 else 1


def _gathered(path, x):
    mesh = jax.sharding.get_abstract_mesh()
    axes = without_batch(named_spec(path, x.shape, mesh.shape))
    return jax.lax.with_sharding_constraint(x, axes)


def divided(P: int, x: jax.Array) -> jax.Array:
    """Splits (B, ...) into (P, B / P, ...), a part for each data shard."""
    x = x.reshape(P, len(x) // P, *x.shape[1:])
    return jax.lax.with_sharding_constraint(x, _rows_first(x))


def joined(B: int, x: jax.Array) -> jax.Array:
    """Returns (B, ...) of (P, B / P, ...)."""
    x = jax.lax.with_sharding_constraint(x, _rows_first(x))
    return x.reshape(B, *x.shape[2:])


def _rows_first(x):
    return PartitionSpec(RULES["B"], *[ANY] * (x.ndim - 1))
