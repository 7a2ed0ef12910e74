"""The type that sums of squares, softmax and losses are computed in."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
    """Returns `x` as float32, float64 if it is that."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
