"""Weights that are cast before a loop, and whose gradients are added up in their own type.

    weights = cast_before(matrix_DA[...], dtype)        # before the loop
    y = x @ in_loop(weights)                            # in it

A loop that is given weights in bfloat16 adds up the gradients of all its turns in bfloat16 too.
Here the array in its own type goes along: nobody reads it, and its gradient is what is added up.
"""

import jax
from jax.typing import DTypeLike

LoopWeights = jax.Array | tuple[jax.Array, jax.Array]
"""An array, or the array in its own type and the same cast."""


def cast_before(x: jax.Array, dtype: DTypeLike) -> LoopWeights:
    """Returns an array for use in a loop that computes in `dtype`."""
    return x if x.dtype == dtype else (x, jax.lax.stop_gradient(x).astype(dtype))


def in_loop(weights: LoopWeights) -> jax.Array:
    """Returns the array in the type it was cast to."""
    return _cast(*weights) if isinstance(weights, tuple) else weights


@jax.custom_jvp
def _cast(x, narrow):
    return narrow


@_cast.defjvp
def _cast_jvp(primals, tangents):
    _, narrow = primals
    return narrow, tangents[0].astype(narrow.dtype)
