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


@jax.custom_vjp
def rms_normed(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Returns x / rms(x) * scale, in the shape (..., D) and type of x; as `RMSNorm`.

    Of all vectors only x itself is kept for the backward pass, which is written by hand.
    """
    return _rms_forward(x_BTD, scale_D)[0]


def _rms_forward(x_BTD, scale_D):
    x = wide(x_BTD)
    factor_BT1 = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)
    return (x * factor_BT1 * scale_D).astype(x_BTD.dtype), (x_BTD, scale_D, factor_BT1)


def _rms_backward(kept, gradient_BTD):
    x_BTD, scale_D, factor_BT1 = kept
    gradient = wide(gradient_BTD)
    normed = wide(x_BTD) * factor_BT1
    along = jnp.mean(gradient * scale_D * normed, axis=-1, keepdims=True)
    dx = factor_BT1 * (gradient * scale_D - normed * along)
    dscale_D = jnp.sum(gradient * normed, axis=tuple(range(gradient.ndim - 1)))
    return dx.astype(x_BTD.dtype), dscale_D.astype(scale_D.dtype)


rms_normed.defvjp(_rms_forward, _rms_backward)


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


@jax.custom_vjp
def unit_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns each head's vector divided by its length (Block-Recurrent, section 3.2).

    Only what it returns is kept for the backward pass, which is written by hand, and the lengths.
    """
    return _unit_forward(x_BTHK)[0]


def _unit_forward(x_BTHK):
    x = wide(x_BTHK)
    factor_BTH1 = jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    unit_BTHK = (x * factor_BTH1).astype(x_BTHK.dtype)
    return unit_BTHK, (unit_BTHK, factor_BTH1)


def _unit_backward(kept, gradient_BTHK):
    unit_BTHK, factor_BTH1 = kept
    gradient, unit = wide(gradient_BTHK), wide(unit_BTHK)
    along = jnp.sum(gradient * unit, axis=-1, keepdims=True)
    return ((factor_BTH1 * (gradient - unit * along)).astype(unit_BTHK.dtype),)


unit_heads.defvjp(_unit_forward, _unit_backward)


def scaled_down_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns x / sqrt(K), queries of scaled dot-product attention (Vaswani et al. 2017)."""
    return x_BTHK * x_BTHK.shape[-1] ** -0.5


@jax.custom_vjp
def scaled_unit_heads(x_BHSK: jax.Array, scale_H: jax.Array) -> jax.Array:
    """Returns `unit_heads` times the absolute value of each head's scale, (B, H, S, K).

    As there, of all vectors only what it returns is kept for the backward pass.
    """
    return _scaled_forward(x_BHSK, scale_H)[0]


def _scaled_forward(x_BHSK, scale_H):
    x = wide(x_BHSK)
    factor_BHS1 = jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    scaled_BHSK = (x * factor_BHS1 * jnp.abs(scale_H)[:, None, None]).astype(x_BHSK.dtype)
    return scaled_BHSK, (scaled_BHSK, factor_BHS1, scale_H)


def _scaled_backward(kept, gradient_BHSK):
    scaled_BHSK, factor_BHS1, scale_H = kept
    gradient, scaled = wide(gradient_BHSK), wide(scaled_BHSK)
    size_H = jnp.abs(scale_H)
    # A scale of zero has no direction to go: its part of the gradient is zero as well.
    inverse_H = jnp.where(size_H > 0, 1.0 / jnp.where(size_H > 0, size_H, 1.0), 0.0)
    along = jnp.sum(gradient * scaled, axis=-1, keepdims=True)
    dx = factor_BHS1 * (
        gradient * size_H[:, None, None] - scaled * along * inverse_H[:, None, None]
    )
    dscale_H = jnp.sum(along, axis=(0, 2, 3)) * inverse_H * jnp.sign(scale_H)
    return dx.astype(scaled_BHSK.dtype), dscale_H.astype(scale_H.dtype)


scaled_unit_heads.defvjp(_scaled_forward, _scaled_backward)


def share_of_norm(part: jax.Array, rest: jax.Array) -> jax.Array:
    """Returns a scalar in [0, 1]: the part's root mean square over the sum of both."""
    part, rest = (jnp.sqrt(jnp.mean(jnp.square(wide(x)))) for x in (part, rest))
    return part / jnp.maximum(part + rest, 1e-30)
