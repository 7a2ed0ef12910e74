"""Sinusoids of distances or positions."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def sinusoid(
    positions: jax.Array, width: int, clamp: int | None = None, dtype: DTypeLike = "float32"
) -> jax.Array:
    """Returns sines of all frequencies, then their cosines (not interleaved), (..., D).

    positions: (...) int, also negative; those above `clamp` share its encoding. width: D, even.
    Frequency k is 10000 ** (-2k / D), k = 0 ... D / 2 - 1.

    Source: Transformer-XL, section 3.3, after Vaswani et al. 2017, section 3.5.
    """
    if clamp is not None:
        positions = jnp.minimum(positions, clamp)
    frequencies = 10000.0 ** (-jnp.arange(0, width, 2, jnp.promote_types(dtype, "float32")) / width)
    angles = positions[..., None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(dtype)
