"""The loop over blocks: matrices are cast before it, and on a mesh each data shard has a loop.

Plain counterpart: `brt.models.ops.scan_blocks` (tests/models/fast/test_block_loop.py). The gradient
of a matrix is a product of each step, in the activations' type, and the sum of these in the type of
the parameter.
"""

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models import ops
from brt.models.axis_rules import in_one_data_shard
from brt.models.fast.data_shards import by_data_shard
from brt.models.fast.products import einsum
from brt.models.ops import Matrix, stacked


@jax.tree_util.register_pytree_node_class
class CastMatrix(Matrix):
    """A `Matrix` that is cast already; its gradient is in the type of the original."""

    leaves = ("array", "cast")

    def __init__(self, array: jax.Array, dtype: DTypeLike):
        super().__init__(array, dtype)
        self.cast = None if array.dtype == dtype else jax.lax.stop_gradient(array).astype(dtype)

    def value(self) -> jax.Array:
        return self.array if self.cast is None else _cast(self.array, self.cast)

    def __call__(self, equation: str, *x: jax.Array) -> jax.Array:
        return einsum(equation, stacked(x), self.value())

    def gradient(self, total: jax.Array) -> Self:
        """Returns the cotangent of the matrix, for a `jax.custom_vjp`."""
        cast = None if self.cast is None else jnp.zeros_like(self.cast)
        return self.tree_unflatten(self.dtype, (total.astype(self.array.dtype), cast))


def scan_blocks(
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any]],
    weights: Any,
    carry: Any,
    blocks: Any,
    remat: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any, Any]:
    """Returns `brt.models.ops.scan_blocks`."""
    weights = jax.tree.map(_before, weights, is_leaf=_is_matrix)
    if jax.sharding.get_abstract_mesh().empty or in_one_data_shard():
        return ops.scan_blocks(step, weights, carry, blocks, remat, unroll)

    def run(weights, rows):
        carry, blocks = rows
        carry, outputs, metrics = ops.scan_blocks(step, weights, carry, blocks, remat, unroll)
        return (carry, outputs), metrics

    (carry, outputs), metrics = by_data_shard(run, weights, (carry, blocks))
    return carry, outputs, metrics


def _before(weights):
    is_plain = _is_matrix(weights) and not isinstance(weights, CastMatrix)
    return CastMatrix(weights.array, weights.dtype) if is_plain else weights


def _is_matrix(node):
    return isinstance(node, Matrix)


@jax.custom_jvp
def _cast(x, cast):
    return cast


@_cast.defjvp
def _cast_jvp(primals, tangents):
    _, cast = primals
    return cast, tangents[0].astype(cast.dtype)
