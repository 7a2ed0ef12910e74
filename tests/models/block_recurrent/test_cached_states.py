"""Cached states: the kept states, their cost, and the plain layer when none is kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import abstract
from flax import nnx
from tiny_models import OneKey, drawn, quick_jit, randomised

from brt.models.block_recurrent.cached_states import CachedStates, Segments, merged
from brt.models.block_recurrent.delta_layers import (
    GatedDeltaLayer,
    KimiDeltaLayer,
    LinearAttentionLayer,
)
from brt.models.block_recurrent.memory import LayerTokens
from brt.models.sizes import Sizes

D, H, K, W = 10, 2, 4, 4
SIZES = Sizes(width=D, num_heads=H, head_size=K, feed_forward_size=8)


def numbered(number):
    """A segment that holds one number."""
    states = jnp.full((1, 1, 1, 1, 1), float(number)), jnp.full((1, 1, 1, 1), 10.0 * number)
    return Segments(*states, jnp.ones((1, 1), jnp.int32))


@pytest.mark.parametrize("most", [1, 3, 5])
def test_merged_states_are_sums_of_powers_of_two_segments(most):
    segments = jax.tree.map(lambda x: jnp.zeros_like(jnp.repeat(x, most, axis=1)), numbered(0))
    add = jax.jit(merged)
    for count in range(1, 21):
        segments = add(segments, numbered(count))
        left, expected = count, []
        for level in range(most):  # from the newest on
            size = left if level == most - 1 else 2**level * (left >> level & 1)
            expected.append(sum(range(left - size + 1, left + 1)) if size else 0)
            left -= size
        assert left == 0
        np.testing.assert_array_equal(segments.states_BZHKK[0, :, 0, 0, 0], expected)
        np.testing.assert_array_equal(segments.sums_BZHK[0, :, 0, 0], 10 * np.array(expected))
        assert segments.tokens_BZ.sum() == count


def run_of(memory):
    def run(x_BTD):
        cache = memory.init_cache(len(x_BTD), x_BTD.dtype)
        tokens = LayerTokens(x_BTD, None, None, None, None)
        return memory.run(cache, tokens, x_BTD, jnp.ones(x_BTD.shape[:2], bool))

    return run


@functools.cache
def memory_of(**settings):
    return randomised(drawn(lambda: CachedStates(OneKey(), SIZES, W, **settings)), 1)


def inputs(tokens):
    return np.random.default_rng(0).normal(size=(2, tokens, D)).astype(np.float32)


@pytest.mark.parametrize("memory", [GatedDeltaLayer, KimiDeltaLayer, LinearAttentionLayer])
def test_the_first_segment_is_that_of_the_layer_alone(memory):
    cached = memory_of(memory=memory, most=2, every=3)
    x_BTD = inputs(3 * W)
    y_BTD, cache, metrics = quick_jit(run_of(cached))(x_BTD)
    expected, alone, _ = quick_jit(run_of(cached.memory))(x_BTD)
    np.testing.assert_allclose(y_BTD, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert metrics["cached_share"] == 0
    kept = cache.segments.states_BZHKK[:, -1]
    np.testing.assert_allclose(kept, alone.matrix_BHKK, rtol=1e-4, atol=1e-5)
    assert (cache.segments.tokens_BZ == np.array([0, 3 * W])).all()


@pytest.mark.parametrize("most", [3, 6])
def test_carried_bytes_grow_with_the_states_kept(most):
    memory = nnx.eval_shape(lambda: CachedStates(OneKey(), SIZES, W, most=most))
    cache = memory.init_cache(1, "bfloat16")
    found = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    state, sums, inputs = 4 * H * K * K, 4 * H * K, 2 * 3 * 3 * H * K
    assert found == (1 + most) * (state + sums + 4) + inputs


def test_more_chosen_states_than_are_kept_are_refused():
    with pytest.raises(ValueError, match=r"chosen = 3 exceeds CachedStates\.most = 2"):
        CachedStates(OneKey(), SIZES, W, most=2, chosen=3)


def test_the_memory_inside_is_bound_by_name():
    model = abstract("cached_states_merged")
    (memory,) = model.layers[1].memories
    assert isinstance(memory.memory, LinearAttentionLayer) and memory.merged
    assert model.windows_reach() == 2 * W
