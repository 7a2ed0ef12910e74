"""Weights of a loop: cast before it, their gradients computed after it.

Plain counterpart: `jax.lax.scan` and `jnp.einsum` (tests/models/test_loop_weights.py). With it and
`data_shards`, a block of the cell's loop took 0.41 M and 0.19 M cycles (backward, forward) on a
TPU v4, instead of 0.61 M and 0.53 M, before it had a kernel.

    weights = {"matrix_DA": cast_before(matrix_DA[...], dtype)}     # before the loop

    def step(weights, carry, x):
        y = product("BSD,DA->BSA", x, weights["matrix_DA"])         # in it
        ...

    carry, ys = scan(step, weights, carry, xs)

`jax.lax.scan` sums the gradients of bfloat16 weights in bfloat16. Here the uncast array is an
unused input, whose gradient is summed. For weights that `product` multiplies, both factors are
kept, and one product after the backward loop is the gradient; of an unrolled loop the sum of one
product a step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.axis_rules import in_this_context
from brt.models.fast.kernels.product_sum import product_sum

LoopWeights = jax.Array | tuple[jax.Array, jax.Array]
"""An array, or the array in its own type and its cast."""


def cast_before(x: jax.Array, dtype: DTypeLike) -> LoopWeights:
    """Returns an array for use in a loop that computes in `dtype`."""
    return x if x.dtype == dtype else (x, jax.lax.stop_gradient(x).astype(dtype))


def in_loop(weights: LoopWeights) -> jax.Array:
    """Returns the array in the type it was cast to."""
    if isinstance(weights, _Multiplied):
        weights = weights.weights
    return _cast(*weights) if isinstance(weights, tuple) else weights


def arrays_in_loop(weights: Any) -> Any:
    """Returns a tree of weights with `in_loop` applied to each."""
    return jax.tree.map(in_loop, weights, is_leaf=_is_pair)


def arrays_uncast(weights: Any) -> Any:
    """Returns a tree of weights with each array in its own type."""

    def uncast(weights):
        weights = _untapped(weights)
        return weights[0] if _is_pair(weights) else weights

    return jax.tree.map(uncast, weights, is_leaf=_is_pair)


def product(equation: str, x: jax.Array | tuple[jax.Array, ...], weights: LoopWeights) -> jax.Array:
    """Returns the einsum of activations and weights, in the activations' type.

    equation: an axis that the result lacks is in both factors. x: activations, or several arrays to
    be stacked along a first axis, which the backward pass keeps unstacked.
    """
    if isinstance(weights, _Multiplied):
        return weights.product(equation, x)
    return jnp.einsum(equation, _stacked(x, 0), in_loop(weights))


def products(
    equation: str, compute: Callable[[list[jax.Array]], Sequence[jax.Array]], weights: Any
) -> list[jax.Array]:
    """Returns what `compute` returns of the matrices in the activations' type.

    compute: returns the activations x and the product of each matrix, the einsum of x and it.
    """
    x, *ys = compute([*map(_constant, weights)])
    return [_recorded(w, equation, x, y) for w, y in zip(weights, ys, strict=True)]


def added_products(
    equation: str,
    compute: Callable[..., Sequence[jax.Array]],
    xs: Sequence[jax.Array],
    weights: Any,
) -> list[jax.Array]:
    """Returns what `compute` returns of activations and matrices in their type.

    compute: its first result has the sum of all products, the einsums of each x and its matrix.
    """
    y, *rest = compute([*xs], [*map(_constant, weights)])
    for x, w in zip(xs, weights, strict=True):
        y = _recorded(w, equation, x, y)
    return [y, *rest]


def _constant(weights):
    """Returns a matrix whose gradient, if its product is recorded, is not that of the product."""
    matrix = in_loop(weights)
    return jax.lax.stop_gradient(matrix) if isinstance(weights, _Multiplied) else matrix


def _recorded(weights, equation, x, y):
    return weights.recorded(equation, x, y) if isinstance(weights, _Multiplied) else y


def scan(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    weights: Any,
    carry: Any,
    xs: Any,
    remat: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any]:
    """Folds `step(weights, carry, x)` over xs, as `jax.lax.scan`; no forward-mode derivatives.

    weights: a tree of `LoopWeights`; a step passes each to `product` at most once. remat: keep only
    the carries, and recompute each step in the backward pass. unroll: steps of an iteration, as of
    `jax.lax.scan`, without remat; if all are one, nothing that a backward pass needs is stacked.
    """
    weights = jax.tree.map(_untapped, weights, is_leaf=_is_pair)
    if remat:
        recomputed = jax.checkpoint(step)
        return jax.lax.scan(lambda carry, x: recomputed(weights, carry, x), carry, xs)

    # The shapes of all products, whose gradients the backward loop returns as those of `changes`,
    # zeros that are added to the products.
    equations: dict[int, str] = {}

    def products_of(weights, carry, x):
        tapped, products = _tapped(weights, None)
        step(tapped, carry, x)
        equations.update({i: product.equation for i, product in products.items()})
        return {i: product.output for i, product in products.items()}

    shapes = jax.eval_shape(products_of, weights, carry, jax.tree.map(lambda x: x[0], xs))
    length = jax.tree.leaves(xs)[0].shape[0]
    step = in_this_context(step)

    def loop(weights, changes, carry, xs):
        def tapped_step(carry, inputs):
            x, changes = inputs
            tapped, products = _tapped(weights, changes)
            carry, y = step(tapped, carry, x)
            return carry, (y, {i: product.x for i, product in products.items()})

        carry, (ys, factors) = jax.lax.scan(tapped_step, carry, (xs, changes), unroll=unroll)
        return (carry, ys), factors

    @jax.custom_vjp
    def run(weights, carry, xs):
        return jax.lax.scan(lambda carry, x: step(weights, carry, x), carry, xs, unroll=unroll)

    def forward(weights, carry, xs):
        changes = {i: jnp.zeros((length, *y.shape), y.dtype) for i, y in shapes.items()}
        result, back, factors = jax.vjp(loop, weights, changes, carry, xs, has_aux=True)
        return result, (back, factors)

    def backward(kept, gradients):
        back, factors = kept
        dweights, dchanges, dcarry, dxs = back(gradients)
        leaves, tree = jax.tree.flatten(dweights, is_leaf=_is_pair)
        for i, x in factors.items():
            uncast, *cast = leaves[i] if _is_pair(leaves[i]) else (leaves[i],)
            pair = x, dchanges[i]
            if unroll < length:
                total = _weight_gradient(equations[i], uncast.dtype, "Z", [pair])
            else:  # an array of all steps' factors would be a copy of them
                pairs = [jax.tree.map(lambda x, n=n: x[n], pair) for n in range(length)]
                total = _weight_gradient(equations[i], uncast.dtype, "", pairs)
            leaves[i] = (uncast + total, *cast) if cast else uncast + total
        return jax.tree.unflatten(tree, leaves), dcarry, dxs

    run.defvjp(forward, backward)
    return run(weights, carry, xs)


@jax.custom_jvp
def _cast(x, cast):
    return cast


@_cast.defjvp
def _cast_jvp(primals, tangents):
    _, cast = primals
    return cast, tangents[0].astype(cast.dtype)


class _Multiplied:
    """Weights whose product in a step is recorded."""

    def __init__(self, weights, changes, products, index):
        self.weights = weights
        self.changes = changes
        self._products = products
        self._index = index

    def product(self, equation, x):
        weights = jax.lax.stop_gradient(in_loop(self.weights))
        return self.recorded(equation, x, jnp.einsum(equation, _stacked(x, 0), weights))

    def recorded(self, equation, x, output):
        """Returns the output, the product of x and the weights, with its change."""
        if self._index in self._products:
            raise ValueError(f"Weights are multiplied twice in one step of a loop: {equation}.")
        self._products[self._index] = self
        self.equation, self.x, self.output = equation, x, output
        if self.changes is None:
            return self.output
        return _changed(self.output, self.changes[self._index])


def _tapped(weights, changes):
    leaves, tree = jax.tree.flatten(weights, is_leaf=_is_pair)
    products: dict[int, _Multiplied] = {}
    tapped = [_Multiplied(leaf, changes, products, i) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(tree, tapped), products


def _weight_gradient(equation, dtype, steps, pairs):
    x_axes, weight_axes, y_axes = equation.replace("->", ",").split(",")
    equation = f"{steps}{x_axes},{steps}{y_axes}->{weight_axes}"
    pairs = [(_stacked(x, len(steps)), dy) for x, dy in pairs]
    return product_sum(equation, pairs, dtype)


def _untapped(weights):
    return weights.weights if isinstance(weights, _Multiplied) else weights


def _is_pair(node):
    return type(node) is tuple


@jax.custom_jvp
def _changed(y, change):
    return y


@_changed.defjvp
def _changed_jvp(primals, tangents):
    return primals[0], tangents[0] + tangents[1]


def _stacked(x, axis):
    return jnp.stack(x, axis) if isinstance(x, (tuple, list)) else x
