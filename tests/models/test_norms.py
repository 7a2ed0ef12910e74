"""Root-mean-square norm and unit-length heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from brt.models.layers.norms import RMSNorm, unit_heads, wide

SHAPES = [(1, 1, 1), (2, 3, 8), (5, 7), (2, 1, 2, 33)]


def draw(shape, size=3.0, offset=5.0):
    return np.random.default_rng(len(shape)).normal(offset, size, shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_norm_gives_every_vector_root_mean_square_one(shape):
    y = RMSNorm(nnx.Rngs(0), shape[-1])(jnp.asarray(draw(shape), jnp.float32))
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(y), axis=-1)), 1, rtol=1e-5)


def test_a_norm_divides_and_scales_and_subtracts_nothing():
    norm, x = RMSNorm(nnx.Rngs(0), 4), np.array([3.0, -1.0, 2.0, 7.0])
    norm.scale_D[...] = jnp.array([1.0, -2.0, 0.0, 0.5])
    rms = np.sqrt((9 + 1 + 4 + 49) / 4 + 1e-6)
    expected = [3 / rms, 2 / rms, 0.0, 3.5 / rms]
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-6)


def test_the_scale_is_the_only_parameter():
    norm = RMSNorm(nnx.Rngs(0), 4)
    assert [path for path, _ in nnx.to_flat_state(nnx.state(norm))] == [("scale_D",)]
    assert (norm.scale_D[...] == 1).all()


@pytest.mark.parametrize("function", [RMSNorm(nnx.Rngs(0), 6), unit_heads], ids=["rms", "unit"])
def test_a_vector_of_zeros_stays_zero_and_has_a_gradient(function):
    zeros = jnp.zeros((2, 6))
    assert (function(zeros) == 0).all()
    gradient = jax.grad(lambda x: function(x).sum())(zeros)
    # The slope at zero is one over the root of epsilon.
    np.testing.assert_allclose(gradient, 1e3, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_heads_get_length_one_and_keep_their_direction(shape):
    x = draw(shape, offset=0.0)
    y = np.asarray(unit_heads(jnp.asarray(x, jnp.float32)))
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(y * np.linalg.norm(x, axis=-1, keepdims=True), x, rtol=1e-4)


@pytest.mark.parametrize("function", [RMSNorm(nnx.Rngs(0), 64), unit_heads], ids=["rms", "unit"])
def test_narrow_vectors_are_rounded_once_at_the_end(function):
    x = jnp.asarray(draw((50, 64), offset=0.0), jnp.bfloat16)
    found = function(x)
    assert found.dtype == jnp.bfloat16
    once = function(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert (np.asarray(found) == np.asarray(once)).all()


def test_wide_never_narrows():
    assert wide(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32
    assert wide(jnp.ones(2, jnp.float32)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert wide(jnp.ones(2, jnp.float64)).dtype == jnp.float64
