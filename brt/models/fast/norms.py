"""Norms that keep their input alone for the backward pass; a ReLU that keeps its result, which a
product keeps as well, and no mask.

Plain counterparts: the functions of the same names in `brt.models.ops`
(tests/models/test_norms.py). Written for the memory of an accelerator, where they are not measured
alone.
"""

import functools

import jax
import jax.numpy as jnp

from brt.models import ops

_recomputed = functools.partial(jax.checkpoint, prevent_cse=False)
rms_normed = _recomputed(ops.rms_normed)
unit_heads = _recomputed(ops.unit_heads)
scaled_unit_heads = _recomputed(ops.scaled_unit_heads)


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
