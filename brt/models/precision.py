"""The type of sums of squares, softmax and losses."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
    """Returns `x` as float32, or float64 if it is float64."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
