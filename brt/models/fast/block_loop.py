"""The loop over blocks: matrices are cast before it, their gradients computed after it.

Plain counterpart: `brt.models.ops.scan_blocks` (tests/models/fast/test_block_loop.py). With it and
`data_shards`, a block of the cell's loop took 0.41 M and 0.19 M cycles (backward, forward) on a TPU
v4, instead of 0.61 M and 0.53 M, before it had a kernel.

`jax.lax.scan` sums the gradients of bfloat16 matrices in bfloat16, one product a step. Here both
factors of each product are kept, and the gradient is one product after the backward loop, or the
sum of one product a step for an unrolled loop.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.axis_rules import in_one_data_shard, in_this_context, on_gpu
from brt.models.fast.data_shards import by_data_shard
from brt.models.ops import Matrix, stacked


@jax.tree_util.register_pytree_node_class
class CastMatrix(Matrix):
    """A `Matrix` that is cast already; its gradient is in the type of the original."""

    def __init__(self, array: jax.Array, dtype: DTypeLike):
        super().__init__(array, dtype)
        self.cast = None if array.dtype == dtype else jax.lax.stop_gradient(array).astype(dtype)

    def value(self) -> jax.Array:
        return self.array if self.cast is None else _cast(self.array, self.cast)

    def __call__(self, equation: str, *x: jax.Array) -> jax.Array:
        return _product(equation, stacked(x), self.value())

    def gradient(self, total: jax.Array) -> Self:
        """Returns the cotangent of the matrix, for a `jax.custom_vjp`."""
        cast = None if self.cast is None else jnp.zeros_like(self.cast)
        return self.tree_unflatten(self.dtype, (total.astype(self.array.dtype), cast))

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return (self.array, self.cast), self.dtype

    @classmethod
    def tree_unflatten(cls, dtype: Any, children: tuple[Any, ...]) -> Self:
        matrix = object.__new__(cls)
        matrix.dtype, (matrix.array, matrix.cast) = dtype, children
        return matrix


class _Recorded(CastMatrix):
    """A matrix whose product in a step is recorded and gets a change added."""

    def __init__(self, matrix, index, factors, shapes, changes):
        self.array, self.cast, self.dtype = matrix.array, matrix.cast, matrix.dtype
        self.index, self.multiplied = index, False
        self.factors, self.shapes, self.changes = factors, shapes, changes

    def __call__(self, equation, *x):
        if self.multiplied:
            raise ValueError(f"A matrix is multiplied twice in one step of a loop: {equation}.")
        self.multiplied = True
        key = self.index, equation
        y = _product(equation, stacked(x), jax.lax.stop_gradient(self.value()))
        self.factors[key], self.shapes[key] = x, jax.ShapeDtypeStruct(y.shape, y.dtype)
        return y if self.changes is None else _changed(y, self.changes[key])


def scan_blocks(
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any]],
    weights: Any,
    carry: Any,
    blocks: Any,
    remat: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any, Any]:
    """Returns `brt.models.ops.scan_blocks`; no forward-mode derivatives.

    unroll: steps of an iteration, as in `jax.lax.scan`, without remat; if one iteration has all
    steps, nothing is stacked for the backward pass.
    """
    weights = jax.tree.map(_before, weights, is_leaf=_is_matrix)
    if not jax.sharding.get_abstract_mesh().empty:
        if not in_one_data_shard():
            return _by_data_shard(step, weights, carry, blocks, remat, unroll)
        step = in_this_context(step)
    blocks_first = functools.partial(jnp.swapaxes, axis1=0, axis2=1)
    xs = jax.tree.map(blocks_first, blocks)
    if remat or not any(map(_is_matrix, jax.tree.leaves(weights, is_leaf=_is_matrix))):
        step = jax.checkpoint(step) if remat else step
        carry, ys = jax.lax.scan(lambda *x: _pair(step(weights, *x)), carry, xs)
    else:
        carry, ys = _scan(step, unroll, weights, carry, xs)
    outputs, metrics = ys
    means = jax.tree.map(functools.partial(jnp.mean, axis=0), metrics)
    return carry, jax.tree.map(blocks_first, outputs), means


def _by_data_shard(step, weights, carry, blocks, *options):
    def run(weights, rows):
        carry, outputs, metrics = scan_blocks(step, weights, *rows, *options)
        return (carry, outputs), metrics

    (carry, outputs), metrics = by_data_shard(run, weights, (carry, blocks))
    return carry, outputs, metrics


def _before(weights):
    if not _is_matrix(weights):
        return weights
    if isinstance(weights, CastMatrix):
        return CastMatrix.tree_unflatten(weights.dtype, (weights.array, weights.cast))
    return CastMatrix(weights.array, weights.dtype)


def _pair(result):
    carry, outputs, metrics = result
    return carry, (outputs, metrics)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(step, unroll, weights, carry, xs):
    return jax.lax.scan(lambda *x: _pair(step(weights, *x)), carry, xs, unroll=unroll)


def _forward(step, unroll, weights, carry, xs):
    shapes: dict[tuple[int, str], jax.ShapeDtypeStruct] = {}

    def recorded(weights, carry, inputs):
        x, changes = inputs
        leaves, tree = jax.tree.flatten(weights, is_leaf=_is_matrix)
        factors: dict[tuple[int, str], Any] = {}
        for i, leaf in enumerate(leaves):
            if _is_matrix(leaf):
                leaves[i] = _Recorded(leaf, i, factors, shapes, changes)
        carry, outputs, metrics = step(jax.tree.unflatten(tree, leaves), carry, x)
        return carry, ((outputs, metrics), factors)

    def loop(weights, changes, carry, xs):
        body = functools.partial(recorded, weights)
        carry, (ys, factors) = jax.lax.scan(body, carry, (xs, changes), unroll=unroll)
        return (carry, ys), factors

    # Zeros added to the products: their gradients are those of the products.
    first, length = jax.tree.map(lambda x: x[0], xs), len(jax.tree.leaves(xs)[0])
    jax.eval_shape(recorded, weights, carry, (first, None))  # for `shapes`
    changes = jax.tree.map(lambda y: jnp.zeros((length, *y.shape), y.dtype), shapes)
    result, back, factors = jax.vjp(loop, weights, changes, carry, xs, has_aux=True)
    return result, (back, factors)


def _backward(step, unroll, kept, gradients):
    back, factors = kept
    dweights, dchanges, dcarry, dxs = back(gradients)
    leaves, tree = jax.tree.flatten(dweights, is_leaf=_is_matrix)
    for (i, equation), x in factors.items():
        changed = x, dchanges[i, equation]
        total = _matrix_gradient(equation, leaves[i].array.dtype, *changed, unroll)
        children = leaves[i].array + total, leaves[i].cast
        leaves[i] = CastMatrix.tree_unflatten(leaves[i].dtype, children)
    return jax.tree.unflatten(tree, leaves), dcarry, dxs


_scan.defvjp(_forward, _backward)


def _matrix_gradient(equation, dtype, x, dy, unroll):
    x_axes, matrix_axes, y_axes = equation.replace("->", ",").split(",")
    if unroll < len(dy):
        equation = f"Z{x_axes},Z{y_axes}->{matrix_axes}"
        return jnp.einsum(equation, stacked(x, 1), dy, preferred_element_type=dtype)
    # An array of all steps' factors would be a copy.
    equation = f"{x_axes},{y_axes}->{matrix_axes}"
    steps = ((stacked([part[n] for part in x]), dy[n]) for n in range(len(dy)))
    products = (_product(equation, *pair, preferred_element_type=dtype) for pair in steps)
    return functools.reduce(jnp.add, products)


def _product(equation, a, b, **options):
    """Returns the einsum of two arrays; on GPUs one for each part along a result's X.

    This saves the copies that split and stack, an estimated 0.6 % of a step of pg19_rec_fixed_skip.
    """
    if not on_gpu() or "->X" not in equation:
        return jnp.einsum(equation, a, b, **options)
    both = zip((a, b), equation.split(","), strict=True)
    parts = (x if axes.startswith("X") else itertools.repeat(x) for x, axes in both)
    equation = equation.replace("X", "")
    return jnp.stack([jnp.einsum(equation, *pair, **options) for pair in zip(*parts, strict=False)])


def _is_matrix(node):
    return isinstance(node, Matrix)


@jax.custom_jvp
def _cast(x, cast):
    return cast


@_cast.defjvp
def _cast_jvp(primals, tangents):
    _, cast = primals
    return cast, tangents[0].astype(cast.dtype)


@jax.custom_jvp
def _changed(y, change):
    return y


@_changed.defjvp
def _changed_jvp(primals, tangents):
    return primals[0], tangents[0] + tangents[1]
