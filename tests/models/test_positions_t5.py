"""The relative position bias: buckets, the table of a block, the row of a decoded token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import quick_jit

from brt.models.layers.positions_t5 import RelativeBias, t5_buckets
from brt.models.ops import HIDDEN, window_table


def exact_bucket(distance, num_buckets, max_distance):
    """In whole numbers: bucket E + k begins where (d / E) ** (R - E) >= (max / E) ** k."""
    exact = num_buckets // 2
    distance, coarse = max(distance, 0), num_buckets - exact
    if distance < exact:
        return distance
    k = 0
    while (
        k + 1 < coarse
        and distance**coarse * exact ** (k + 1) >= max_distance ** (k + 1) * exact**coarse
    ):
        k += 1
    return exact + k


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 1000), (10, 50), (6, 7)])
def test_buckets_hold_single_distances_then_grow_geometrically(num_buckets, max_distance):
    distances = range(-5, 1100)
    expected = [exact_bucket(d, num_buckets, max_distance) for d in distances]
    found = t5_buckets(np.array(distances), num_buckets, max_distance)
    assert found.dtype == np.int32
    assert found.tolist() == expected
    assert set(expected) == set(range(num_buckets))  # every bucket is used


def bias_and_scale(heads):
    bias = RelativeBias(nnx.Rngs(0), heads)
    rng = np.random.default_rng(0)
    bias.table_HR[...] = jnp.asarray(rng.normal(size=(heads, 32)), jnp.float32)
    return bias, jnp.asarray(rng.uniform(0.5, 3, heads), jnp.float32)


def plain_table(bias, scale_H, W):
    table_HR = np.asarray(bias.table_HR[...])
    buckets = [exact_bucket(distance, 32, 128) for distance in range(W + 1)]
    expected = np.full((len(table_HR), W, 2 * W), HIDDEN, np.float32)
    scale_H = np.asarray(scale_H)
    for h, i, j in np.ndindex(expected.shape):
        distance = (W + i) - j  # query i is at W + i among the 2W
        if 1 <= distance <= W:
            expected[h, i, j] = table_HR[h, buckets[distance]] * scale_H[h]
    return expected


@pytest.mark.parametrize(("window", "heads"), [(1, 1), (2, 3), (5, 2), (33, 1), (160, 2)])
def test_a_blocks_table_is_the_bias_of_the_W_tokens_before_each(window, heads):
    bias, scale_H = bias_and_scale(heads)
    found = quick_jit(lambda scale_H: window_table(bias.by_distance(scale_H, window)))(scale_H)
    np.testing.assert_array_equal(found, plain_table(bias, scale_H, window))
    assert ((np.asarray(found) != HIDDEN).sum(axis=-1) == window).all()
    # While decoding a token sees the row of its position in the block.
    fill_B = np.arange(window, dtype=np.int32)
    tokens = quick_jit(lambda fill_B: bias.token_table(scale_H, window, fill_B))(fill_B)
    assert tokens.shape == (window, heads, 1, 2 * window)
    np.testing.assert_array_equal(np.moveaxis(tokens[:, :, 0], 0, 1), found)


@pytest.mark.parametrize("queries", [128, 256])
def test_the_first_queries_table_is_part_of_a_blocks(queries):
    bias, scale_H = bias_and_scale(2)
    bias_HW = bias.by_distance(scale_H, 384)
    found, whole = window_table(bias_HW, queries), window_table(bias_HW)
    np.testing.assert_array_equal(found, whole[:, :queries, : 384 + queries])


def test_the_gradient_of_the_table_counts_every_use_of_a_bucket():
    W, H = 150, 2
    bias, scale_H = bias_and_scale(H)
    weights = np.random.default_rng(1).normal(size=(H, W, 2 * W)).astype(np.float32)

    def loss(table_HR):
        graph, _ = nnx.split(bias)
        changed = nnx.merge(graph, nnx.State({"table_HR": nnx.Param(table_HR)}))
        return jnp.sum(window_table(changed.by_distance(scale_H, W)) * weights)

    found = quick_jit(jax.grad(loss))(bias.table_HR[...])
    expected = np.zeros((H, 32))
    for i in range(W):
        for distance in range(1, W + 1):
            bucket = exact_bucket(distance, 32, 128)
            expected[:, bucket] += weights[:, i, W + i - distance] * np.asarray(scale_H)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert (found[:, 0] == 0).all()  # distance 0, the token itself, is never seen
