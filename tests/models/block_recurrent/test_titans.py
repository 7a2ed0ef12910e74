"""Titans' memory against its equations, token by token in float64.

test_lact.py has the digits that it keeps over many blocks.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import titans_numpy
from flax import nnx
from tiny_models import quick_jit

from brt.models.block_recurrent.lact import LactCache, weighted_sums
from brt.models.block_recurrent.titans import (
    ENDS,
    MLPWeights,
    TitansMemory,
    TitansPairs,
    mlp_factors,
    parts_at_end,
)
from brt.models.sizes import Sizes

SHAPES = {"a token": (1, 4, 4), "a block": (7, 4, 6), "fewer hidden units": (5, 6, 3)}  # W, K, N


def memory_of(K, N, **options):
    sizes = Sizes(width=12, num_heads=2, head_size=K, feed_forward_size=8)
    return TitansMemory(nnx.Rngs(0), sizes, 16, hidden_size=N, **options)


def drawn(shape):
    """Weights, momentum and pairs of two documents and two heads, in float64."""
    W, K, N = SHAPES[shape]
    rng = np.random.default_rng(0)
    weights, momentum = (
        MLPWeights(rng.normal(size=(2, 2, N, K)), rng.normal(size=(2, 2, K, N))) for _ in range(2)
    )
    k, v = rng.normal(size=(2, 2, W, 2, K))
    rate, keep, kept = rng.uniform(size=(3, 2, W, 2))
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    return LactCache(weights, momentum), TitansPairs(k, v, 0.1 * rate, keep, kept)


@pytest.mark.parametrize("decay_to", ENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_is_the_recurrence_of_its_tokens(shape, decay_to):
    cache, pairs = drawn(shape)
    memory = memory_of(*SHAPES[shape][1:], decay_to=decay_to)
    start, _ = memory.init_cache(1, "float32")
    theirs = {}
    for b, h in np.ndindex(2, 2):
        ends = [np.float64(x[0, h]) * (decay_to == "initial") for x in start]
        tokens = (x[b, :, h] for x in (*pairs[:4], 1 - pairs.keep_BTH))
        heads = ([x[b, h] for x in part] for part in cache)
        theirs[b, h] = titans_numpy.after_chunk(*heads, ends, *tokens)
    for dtype, tolerance in (("float64", 1e-11), ("float32", 1e-4)):
        with jax.enable_x64(dtype == "float64"):
            inputs = jax.tree.map(functools.partial(jnp.asarray, dtype=dtype), (cache, pairs))
            after, _ = quick_jit(memory.update)(*inputs, memory.prepare(dtype))
        for part, (b, h) in itertools.product(range(2), theirs):
            for ours, expected in zip(after[part], theirs[b, h][part], strict=True):
                np.testing.assert_allclose(ours[b, h], expected, rtol=0, atol=tolerance)


def test_factors_are_those_of_the_gradient_of_the_squared_error():
    (weights, _), (k, v, *_) = jax.tree.map(jnp.float32, drawn("fewer hidden units"))
    memory = memory_of(6, 3)

    def loss(weights):
        return jnp.sum(jnp.square(memory.network(weights, k) - v))

    descent = weighted_sums(mlp_factors(weights, k, v), [1.0, 1.0])
    for ours, theirs in zip(descent, jax.grad(loss)(weights), strict=True):
        np.testing.assert_allclose(ours, -theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("momentum", "keep"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_parts_at_the_ends_of_gates(momentum, keep):
    """Their gradients are finite too, where products are 0."""
    W = 5
    gates = jnp.full((1, W, 1), momentum), jnp.full((1, W, 1), keep)
    in_momentum, in_weights = (x[0, :, 0] for x in quick_jit(parts_at_end)(*gates))
    last = np.arange(W) == W - 1
    np.testing.assert_array_equal(in_momentum, np.ones(W) if momentum else last)
    later = np.arange(W, 0, -1) if keep else np.ones(W)  # tokens that add the step to the weights
    np.testing.assert_array_equal(in_weights, later if momentum else np.ones(W) if keep else last)
    slopes = quick_jit(jax.jacobian(parts_at_end, argnums=(0, 1)))(*gates)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(slopes))
