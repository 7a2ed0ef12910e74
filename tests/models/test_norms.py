"""Root-mean-square norm and unit-length heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import quick_jit

from brt.models.layers.norms import RMSNorm
from brt.models.ops import rms_normed, scaled_heads, unit_heads


def draw(shape, offset=5.0):
    return np.random.default_rng(len(shape)).normal(offset, 3.0, shape)


@pytest.mark.parametrize("function", [RMSNorm(nnx.Rngs(0), 6), unit_heads], ids=["rms", "unit"])
def test_a_vector_of_zeros_stays_zero_and_has_a_gradient(function):
    zeros = jnp.zeros((2, 6))
    assert (function(zeros) == 0).all()
    gradient = jax.grad(lambda x: function(x).sum())(zeros)
    # The slope at zero is one over the root of epsilon.
    np.testing.assert_allclose(gradient, 1e3, rtol=1e-4)


@pytest.mark.parametrize("function", [RMSNorm(nnx.Rngs(0), 64), unit_heads], ids=["rms", "unit"])
def test_narrow_vectors_are_rounded_once_at_the_end(function):
    x = jnp.asarray(draw((50, 64), offset=0.0), jnp.bfloat16)
    found = function(x)
    assert found.dtype == jnp.bfloat16
    once = function(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert (np.asarray(found) == np.asarray(once)).all()


def root(total, x):
    return jnp.sqrt(total(x**2, axis=-1, keepdims=True) + 1e-6)


def scaled_formula(x_BHSK, scale_H):
    return jnp.einsum("BHSK,H->BHSK", x_BHSK / root(jnp.sum, x_BHSK), jnp.abs(scale_H))


@pytest.mark.parametrize(
    ("found", "formula", "axis"),
    [
        (rms_normed, lambda x, scale: x / root(jnp.mean, x) * scale, -1),
        (lambda x, scale: unit_heads(x), lambda x, scale: x / root(jnp.sum, x), 1),
        (scaled_heads, scaled_formula, 1),
    ],
    ids=["rms_normed", "unit_heads", "scaled_heads"],
)
@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_outputs_and_gradients_are_those_of_the_formula(found, formula, axis, size):
    rng = np.random.default_rng(1)
    shape = 2, 3, 4, 5
    x = size * rng.normal(size=shape)
    weights = rng.normal(size=shape)
    scale = rng.normal(size=shape[axis])

    def values(function):
        def total(x, scale):
            y = function(x, scale)
            return jnp.sum(y * weights), y

        return quick_jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(x, scale)

    with jax.enable_x64(True):
        for a, b in zip(*map(jax.tree.leaves, (values(found), values(formula))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12 / size)


def test_a_scale_of_zero_gives_zeros_and_finite_gradients():
    x_BHSK = jnp.asarray(draw((2, 3, 4, 5)), jnp.float32)
    scale_H = jnp.array([0.0, 1.0, -2.0])
    assert not scaled_heads(x_BHSK, scale_H)[:, 0].any()
    gradients = jax.grad(lambda *inputs: scaled_heads(*inputs).sum(), argnums=(0, 1))
    dx_BHSK, dscale_H = gradients(x_BHSK, scale_H)
    assert not dx_BHSK[:, 0].any() and dx_BHSK[:, 1:].any()
    assert np.isfinite(dscale_H).all()


def test_of_a_norm_only_its_input_is_kept_for_the_backward_pass():
    x_BTD, scale_D = jnp.ones((2, 3, 8), jnp.bfloat16), jnp.ones(8)
    _, back = jax.vjp(rms_normed, x_BTD, scale_D)
    large = [leaf for leaf in jax.tree.leaves(back) if getattr(leaf, "shape", ()) == x_BTD.shape]
    assert [leaf.dtype for leaf in large] == [jnp.bfloat16]
