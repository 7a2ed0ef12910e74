"""Norms that keep one vector for the backward pass, which is written out; a ReLU that keeps its
result, which a product keeps as well, and no mask.

Plain counterparts: the functions of the same names in `brt.models.ops`
(tests/models/test_norms.py). Written for the memory of an accelerator, where they are not measured
alone. On a CPU (7 layers, d 256, 4,096 tokens) they take as much time and 1.14 of the temporary
memory.
"""

import jax
import jax.numpy as jnp

from brt.models.ops import EPSILON
from brt.models.precision import at_least_float32


@jax.custom_vjp
def rms_normed(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Returns x / rms(x) * scale, (..., D) in the type of x."""
    return rms_forward(x_BTD, scale_D)[0]


def rms_forward(x_BTD, scale_D):
    x = at_least_float32(x_BTD)
    factor_BT1 = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)
    return (x * factor_BT1 * scale_D).astype(x_BTD.dtype), (x_BTD, scale_D, factor_BT1)


def rms_backward(residuals, gradient_BTD):
    x_BTD, scale_D, factor_BT1 = residuals
    gradient = at_least_float32(gradient_BTD)
    normed = at_least_float32(x_BTD) * factor_BT1
    along = jnp.mean(gradient * scale_D * normed, axis=-1, keepdims=True)
    dx = factor_BT1 * (gradient * scale_D - normed * along)
    dscale_D = jnp.sum(gradient * normed, axis=tuple(range(gradient.ndim - 1)))
    return dx.astype(x_BTD.dtype), dscale_D.astype(scale_D.dtype)


rms_normed.defvjp(rms_forward, rms_backward)


@jax.custom_vjp
def unit_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns x / its length, (..., K) in the type of x. Source: Block-Recurrent, section 3.2."""
    return _unit_forward(x_BTHK)[0]


def _unit_forward(x_BTHK):
    x = at_least_float32(x_BTHK)
    factor_BTH1 = jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    unit_BTHK = (x * factor_BTH1).astype(x_BTHK.dtype)
    return unit_BTHK, (unit_BTHK, factor_BTH1)


def _unit_backward(residuals, gradient_BTHK):
    unit_BTHK, factor_BTH1 = residuals
    gradient, unit = at_least_float32(gradient_BTHK), at_least_float32(unit_BTHK)
    along = jnp.sum(gradient * unit, axis=-1, keepdims=True)
    return ((factor_BTH1 * (gradient - unit * along)).astype(unit_BTHK.dtype),)


unit_heads.defvjp(_unit_forward, _unit_backward)


@jax.custom_vjp
def scaled_unit_heads(x_BHSK: jax.Array, scale_H: jax.Array) -> jax.Array:
    """Returns `unit_heads` times the absolute value of each head's scale, (B, H, S, K)."""
    return _scaled_forward(x_BHSK, scale_H)[0]


def _scaled_forward(x_BHSK, scale_H):
    x = at_least_float32(x_BHSK)
    factor_BHS1 = jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    scaled_BHSK = (x * factor_BHS1 * jnp.abs(scale_H)[:, None, None]).astype(x_BHSK.dtype)
    return scaled_BHSK, (scaled_BHSK, factor_BHS1, scale_H)


def _scaled_backward(residuals, gradient_BHSK):
    scaled_BHSK, factor_BHS1, scale_H = residuals
    gradient, scaled = at_least_float32(gradient_BHSK), at_least_float32(scaled_BHSK)
    size_H = jnp.abs(scale_H)
    # The gradient of |scale| at zero is zero.
    inverse_H = jnp.where(size_H > 0, 1.0 / jnp.where(size_H > 0, size_H, 1.0), 0.0)
    along = jnp.sum(gradient * scaled, axis=-1, keepdims=True)
    dx = factor_BHS1 * (
        gradient * size_H[:, None, None] - scaled * along * inverse_H[:, None, None]
    )
    dscale_H = jnp.sum(along, axis=(0, 2, 3)) * inverse_H * jnp.sign(scale_H)
    return dx.astype(scaled_BHSK.dtype), dscale_H.astype(scale_H.dtype)


scaled_unit_heads.defvjp(_scaled_forward, _scaled_backward)


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """Returns what `jax.nn.relu` returns.

    With the barrier the product after it reads the result. Otherwise XLA computes it again there,
    and adds the residual in another pass: on a TPU v4 7.7 k cycles more for 512 tokens.
    """
    return jax.lax.optimization_barrier(jax.nn.relu(x))


def _relu_forward(x):
    y = relu(x)
    return y, y


relu.defvjp(_relu_forward, lambda y, gradient: (jnp.where(y > 0, gradient, 0),))
