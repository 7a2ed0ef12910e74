"""Weights of a loop: cast before it, their gradients computed after it.

    weights = {"matrix_DA": cast_before(matrix_DA[...], dtype)}     # before the loop

    def turn(weights, carry, x):
        y = product("BSD,DA->BSA", x, weights["matrix_DA"])         # in it
        ...

    carry, ys = scan(turn, weights, carry, xs)

A loop that is given weights in bfloat16 adds up the gradients of all its turns in bfloat16 too.
Here the array in its own type goes along: nobody reads it, and its gradient is what is added up.
With `scan` nothing is added up at all for `product`: both of its sides are kept, and one product of
all turns after the backward loop is the gradient.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.shape_letters import as_here

LoopWeights = jax.Array | tuple[jax.Array, jax.Array]
"""An array, or the array in its own type and the same cast."""


def cast_before(x: jax.Array, dtype: DTypeLike) -> LoopWeights:
    """Returns an array for use in a loop that computes in `dtype`."""
    return x if x.dtype == dtype else (x, jax.lax.stop_gradient(x).astype(dtype))


def in_loop(weights: LoopWeights) -> jax.Array:
    """Returns the array in the type it was cast to."""
    if isinstance(weights, _Multiplied):
        weights = weights.weights
    return _cast(*weights) if isinstance(weights, tuple) else weights


def arrays_in_loop(weights: Any) -> Any:
    """Returns the tree of what `in_loop` returns of each entry of a tree of the loop's weights."""
    return jax.tree.map(in_loop, weights, is_leaf=_is_pair)


def product(letters: str, x: jax.Array | tuple[jax.Array, ...], weights: LoopWeights) -> jax.Array:
    """Returns the einsum of activations and weights, in the activations' type.

    Args:
        letters: three groups, such as "BSD,DA->BSA"; an axis that the result lacks is in both
            others.
        x: activations, or several arrays to be stacked along a first axis. These are kept as they
            are for the backward pass, which need not keep them twice.
        weights: an entry of the loop's.
    """
    if isinstance(weights, _Multiplied):
        return weights.product(letters, x)
    return jnp.einsum(letters, _stacked(x, 0), in_loop(weights))


def scan(
    turn: Callable[[Any, Any, Any], tuple[Any, Any]],
    weights: Any,
    carry: Any,
    xs: Any,
    remat: bool = False,
) -> tuple[Any, Any]:
    """Folds `turn(weights, carry, x)` over xs; as `jax.lax.scan`, with derivatives in reverse only.

    Args:
        turn: from weights, carry and x to the next carry and y.
        weights: a tree of `LoopWeights`. The gradients of those that a turn multiplies by `product`
            (once) are computed after the backward loop, those of others are added up in it.
        carry: the first.
        xs: a tree of arrays, the turns first.
        remat: keep nothing of a turn but its carry, and compute it again in the backward pass,
            which then adds up the gradients of all weights.

    Returns:
        The last carry, and the tree of all ys.
    """
    turn = as_here(turn)
    weights = jax.tree.map(_untapped, weights, is_leaf=_is_pair)
    if remat:
        recomputed = jax.checkpoint(turn)
        return jax.lax.scan(lambda carry, x: recomputed(weights, carry, x), carry, xs)
    letters: dict[int, str] = {}

    def outputs_of(weights, carry, x):
        tapped, products = _tapped(weights, None)
        turn(tapped, carry, x)
        letters.update({i: product.letters for i, product in products.items()})
        return {i: product.output for i, product in products.items()}

    def loop(weights, changes, carry, xs):
        def tapped_turn(carry, inputs):
            x, changes = inputs
            tapped, products = _tapped(weights, changes)
            carry, y = turn(tapped, carry, x)
            return carry, (y, {i: product.x for i, product in products.items()})

        carry, (ys, multiplied) = jax.lax.scan(tapped_turn, carry, (xs, changes))
        return (carry, ys), multiplied

    @jax.custom_vjp
    def run(weights, carry, xs):
        return jax.lax.scan(lambda carry, x: turn(weights, carry, x), carry, xs)

    def forward(weights, carry, xs):
        outputs = jax.eval_shape(outputs_of, weights, carry, jax.tree.map(lambda x: x[0], xs))
        turns = jax.tree.leaves(xs)[0].shape[0]
        changes = {i: jnp.zeros((turns, *y.shape), y.dtype) for i, y in outputs.items()}
        result, back, multiplied = jax.vjp(loop, weights, changes, carry, xs, has_aux=True)
        return result, (back, multiplied)

    def backward(kept, gradients):
        back, multiplied = kept
        dweights, dchanges, dcarry, dxs = back(gradients)
        leaves, tree = jax.tree.flatten(dweights, is_leaf=_is_pair)
        for i, x in multiplied.items():
            of_x, of_weights, of_y = letters[i].replace("->", ",").split(",")
            own, *narrow = leaves[i] if _is_pair(leaves[i]) else (leaves[i],)
            total = jnp.einsum(
                f"Z{of_x},Z{of_y}->{of_weights}",
                _stacked(x, 1),
                dchanges[i],
                preferred_element_type=own.dtype,
            )
            leaves[i] = (own + total, *narrow) if narrow else own + total
        return tree.unflatten(leaves), dcarry, dxs

    run.defvjp(forward, backward)
    return run(weights, carry, xs)


@jax.custom_jvp
def _cast(x, narrow):
    return narrow


@_cast.defjvp
def _cast_jvp(primals, tangents):
    _, narrow = primals
    return narrow, tangents[0].astype(narrow.dtype)


class _Multiplied:
    """Weights in a turn whose product is taken note of.

    After `product`: `letters`, `x` and `output` are those of it.
    """

    def __init__(self, weights, change, products, index):
        self.weights = weights
        self.change = change
        self._products = products
        self._index = index

    def product(self, letters, x):
        if self._index in self._products:
            raise ValueError(f"Weights are multiplied twice in one turn of a loop: {letters}.")
        self._products[self._index] = self
        self.letters, self.x = letters, x
        self.output = jnp.einsum(
            letters, _stacked(x, 0), jax.lax.stop_gradient(in_loop(self.weights))
        )
        if self.change is None:
            return self.output
        return _changed(self.output, self.change[self._index])


def _tapped(weights, changes):
    """Returns the tree of weights to be multiplied, and a dictionary that takes the products."""
    leaves, tree = jax.tree.flatten(weights, is_leaf=_is_pair)
    products: dict[int, _Multiplied] = {}
    tapped = [_Multiplied(leaf, changes, products, i) for i, leaf in enumerate(leaves)]
    return tree.unflatten(tapped), products


def _untapped(weights):
    """Returns the entry of a loop around this one as an entry; its gradient is added up there."""
    return weights.weights if isinstance(weights, _Multiplied) else weights


def _is_pair(node):
    return type(node) is tuple


@jax.custom_jvp
def _changed(y, change):
    """y + change, where change is known to be zero."""
    return y


@_changed.defjvp
def _changed_jvp(primals, tangents):
    return primals[0], tangents[0] + tangents[1]


def _stacked(x, axis):
    return jnp.stack(x, axis) if isinstance(x, (tuple, list)) else x
