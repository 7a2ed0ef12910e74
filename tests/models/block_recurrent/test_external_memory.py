"""The external memory: the ring, the search and refused settings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, WINDOW, abstract, random_model
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import OneKey, quick_jit

from brt.models.block_recurrent.external_memory import ExternalMemory, RingCache
from brt.models.sizes import Sizes

H, K = 2, 4


def memory_of(**options):
    sizes = Sizes(width=12, num_heads=H, head_size=K, feed_forward_size=10)
    return ExternalMemory(OneKey(), sizes, options.pop("window", WINDOW), **options)


def ring(rows, size):
    zeros = jnp.zeros((rows, size, H, K))
    return RingCache(zeros, zeros, jnp.zeros(rows, jnp.int32))


def tokens_of(rows, length, seed=0):
    """Queries, keys of unit length and values."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, rows, length, H, K)).astype(np.float32)
    return q, k / np.linalg.norm(k, axis=-1, keepdims=True), v


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.lists(st.booleans(), min_size=5))
def test_the_ring_holds_the_last_tokens_at_their_slots(cuts, pauses):
    """Rows that pause keep what they have; a segment may be longer than the memory."""
    size = 3 * WINDOW
    memory, cache = memory_of(size=size, neighbours=1), ring(2, size)
    read, seed = [[], []], 0
    for blocks, pauses_0 in zip(cuts, pauses):
        _, k, v = tokens_of(2, blocks * WINDOW, seed := seed + 1)
        rows_B = np.array([not pauses_0, True])
        cache = memory.write(cache, jnp.asarray(k), jnp.asarray(v), jnp.asarray(rows_B))
        for row in np.flatnonzero(rows_B):
            read[row] += list(zip(k[row], v[row]))
    assert cache.written_B.tolist() == [len(row) for row in read]
    for row, pairs in enumerate(read):
        expected = np.zeros((2, size, H, K), np.float32)
        for t, pair in enumerate(pairs):
            expected[:, t % size] = pair
        np.testing.assert_array_equal(cache.keys_BMHK[row], expected[0])
        np.testing.assert_array_equal(cache.values_BMHK[row], expected[1])


def test_buckets_find_63_percent_of_the_best_keys():
    """Of the k best, those that fall alone into one of k buckets: 1 - exp(-1)."""
    scores = np.random.default_rng(0).normal(size=(400, 4096)).astype(np.float32)
    memory = memory_of(window=128, size=4096, neighbours=32, search="bucketed")
    picks = np.asarray(memory._best(jnp.asarray(scores)[None, None]))[0, 0]
    assert all(len(set(row)) == 32 for row in picks.tolist())
    best = np.argsort(-scores, axis=1)[:, :32]
    found = np.mean([np.isin(exact, row) for exact, row in zip(best, picks)])
    assert found == pytest.approx(0.63, abs=0.02)


def test_dense_is_exact_with_as_many_neighbours_as_slots():
    dense = random_model("memorizing_dense")
    exact = random_model("memorizing_dense", search="exact", neighbours=2 * WINDOW)
    rng, rows = np.random.default_rng(3), 2
    tokens = rng.integers(0, VOCABULARY, (rows, 5 * SEGMENT)).astype(np.int32)

    @functools.partial(quick_jit, static_argnums=0)
    def loss_and_slope(graph, params, tokens_BT, caches):
        def loss(params):
            logits_BTV, after = nnx.merge(graph, params)(tokens_BT, caches)
            return jnp.mean(jax.nn.log_softmax(logits_BTV)[..., 0]), after

        return jax.value_and_grad(loss, has_aux=True)(params)

    caches = dense.init_caches(rows)
    for part in np.split(tokens, 5, axis=1):
        (a, after), slope = loss_and_slope(*nnx.split(dense, nnx.Param), part, caches)
        (b, _), other = loss_and_slope(*nnx.split(exact, nnx.Param), part, caches)
        np.testing.assert_allclose(a, b, rtol=1e-5)
        close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
        jax.tree.map(close, *map(nnx.to_pure_dict, (slope, other)))
        caches = after


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            dict(size=2),
            r"ExternalMemory\.size = 2 .*multiple of 4, .*BlockRecurrentTransformer\.window",
        ),
        (dict(size=10), r"ExternalMemory\.size = 10 .*multiple"),
        (dict(neighbours=9), r"neighbours = 9 .*at most ExternalMemory\.size = 8"),
        (dict(search="bucketed", neighbours=3), r"neighbours = 3 must divide 4, .*window"),
    ],
)
def test_sizes_that_do_not_fit_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        memory_of(**dict(size=8, neighbours=2) | options)


def test_a_layer_with_two_external_memories_is_refused():
    second = functools.partial(ExternalMemory, size=4, neighbours=2)
    with pytest.raises(ValueError, match=r"ExternalMemory\.name = 'memory'"):
        abstract("slide", neighbours=2, memorizing_layers=(-1,), memories=((second, (2,)),))
