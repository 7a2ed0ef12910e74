"""Norms of width D, and the unit-length heads of query-key normalisation."""

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.layers.initializers import normal, parameter

EPSILON = 1e-6


def wide(x: jax.Array) -> jax.Array:
    """Returns `x` in at least float32, for sums of squares, softmax and losses."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class RMSNorm(nnx.Module):
    """x / rms(x) * scale: no mean is subtracted, nothing is added.

    Args:
        width: D, the size of the last axis.
        purpose: of its parameter, as `brt.models.layers.initializers.parameter` takes it; None:
            that of the module around it.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, purpose: str | None = None):
        self.scale_D = parameter(rngs, jax.nn.initializers.ones, width, purpose=purpose)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """(..., D) of any float type; the same shape and type."""
        return rms_normed(x_BTD, self.scale_D[...])


def rms_normed(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Returns x / rms(x) * scale, in the shape (..., D) and type of x; as `RMSNorm`."""
    x = wide(x_BTD)
    x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)
    return (x * scale_D).astype(x_BTD.dtype)


class LayerNorm(nnx.Module):
    """(x - mean) / std * scale + bias.

    Args:
        width: D, the size of the last axis.
        std: the scales begin as N(1, std ** 2).

    Source: Ba et al. 2016, arXiv:1607.06450; epsilon and beginning of Transformer-XL's code.
    """

    epsilon = 1e-5

    def __init__(self, rngs: nnx.Rngs, width: int, std: float = 0.0):
        self.scale_D = parameter(rngs, normal(std, mean=1.0), width)
        self.bias_D = parameter(rngs, jax.nn.initializers.zeros, width)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """(..., D) of any float type; the same shape and type."""
        x = wide(x_BTD)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return (x * self.scale_D[...] + self.bias_D[...]).astype(x_BTD.dtype)


def unit_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns each head's vector divided by its length (Block-Recurrent, section 3.2)."""
    x = wide(x_BTHK)
    x = x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    return x.astype(x_BTHK.dtype)


def share_of_norm(part: jax.Array, rest: jax.Array) -> jax.Array:
    """Returns a scalar in [0, 1]: the part's root mean square over the sum of both."""
    part, rest = (jnp.sqrt(jnp.mean(jnp.square(wide(x)))) for x in (part, rest))
    return part / jnp.maximum(part + rest, 1e-30)
