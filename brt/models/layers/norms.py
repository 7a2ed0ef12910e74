"""RMS norm and layer norm, and the share of a part in a sum."""

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.layers.initializers import normal, parameter
from brt.models.ops import at_least_float32, rms_normed


class RMSNorm(nnx.Module):
    """x / rms(x) * scale, over the last axis of size D (`rms_normed`); purpose: of the scale."""

    def __init__(self, rngs: nnx.Rngs, width: int, purpose: str | None = None):
        self.scale_D = parameter(rngs, jax.nn.initializers.ones, width, purpose=purpose)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        return rms_normed(x_BTD, self.scale_D[...])


class LayerNorm(nnx.Module):
    """(x - mean) / std * scale + bias, over the last axis of size D.

    std: the initial scales are N(1, std ** 2).

    Source: Ba et al. 2016, arXiv:1607.06450; initial values of Transformer-XL's code.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, std: float = 0.0, epsilon: float = 1e-5):
        self.epsilon = epsilon
        self.scale_D = parameter(rngs, normal(std, mean=1.0), width)
        self.bias_D = parameter(rngs, jax.nn.initializers.zeros, width)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x = at_least_float32(x_BTD)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return (x * self.scale_D[...] + self.bias_D[...]).astype(x_BTD.dtype)


def share_of_norm(part: jax.Array, rest: jax.Array) -> jax.Array:
    """Returns a scalar in [0, 1]: the part's root mean square over the sum of both."""
    part = jnp.sqrt(jnp.mean(jnp.square(at_least_float32(part))))
    rest = jnp.sqrt(jnp.mean(jnp.square(at_least_float32(rest))))
    return part / jnp.maximum(part + rest, 1e-30)
