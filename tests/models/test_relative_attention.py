"""Scores that know distances: the shift, its cost, and the four terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import equations_of, quick_jit, wide_types  # noqa: F401

from brt.models.layers.positions_sinusoid import sinusoid
from brt.models.relative_attention import Positions, distances, score_terms, scores, shift

B, T, H, K = 2, 5, 3, 4


def drawn(J, future):
    rng = np.random.default_rng(0)
    C = len(distances(T, J, future))
    shapes = (B, T, H, K), (B, J, H, K), (H, K), (C, H, K), (C, H)
    q, k, u, keys, bias = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    return q, k, u, Positions(keys, bias)


def double_loop(q, k, u, positions, future):
    """Section 3.3, one pair of query and key at a time; nothing where the key is behind."""
    J = k.shape[1]
    q, k, u, *positions = map(np.asarray, (q, k, u, *positions))
    keys_CHK, bias_CH = positions
    found = np.full((B, H, T, J), np.nan)
    at = {int(distance): c for c, distance in enumerate(distances(T, J, future))}
    for b, h, i, j in np.ndindex(found.shape):
        distance = J - T + i - j
        if distance >= 0 or future:
            r, d, key = keys_CHK[at[distance], h], bias_CH[at[distance], h], k[b, j, h]
            found[b, h, i, j] = q[b, i, h] @ (key + r) + u[h] @ key + d
    return found / np.sqrt(K)


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("J", [T, T + 1, 3 * T])
def test_shifted_scores_are_the_loop_over_queries_and_keys(J, future):
    q, k, u, positions = drawn(J, future)
    expected = double_loop(q, k, u, positions, future)
    found = np.where(np.isnan(expected), np.nan, scores(q, k, u, positions))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert future or np.isnan(expected).any() == (T > 1)


def test_keys_behind_a_query_get_the_released_codes_scores():
    J, M = 9, 9 - T
    x_TC = np.random.default_rng(1).normal(size=(T, J))
    found = shift(jnp.asarray(x_TC), J)
    for i, j in np.ndindex(T, J):
        e = j - i - M
        if e <= 0:
            assert found[i, j] == x_TC[i, J - 1 + e]  # distance -e
        elif e == 1:
            assert found[i, j] == 0
        else:
            assert found[i, j] == x_TC[i + 1, e - 2]


@pytest.mark.parametrize("future", [False, True])
def test_the_four_terms_add_up_to_the_scores(future):
    q, k, u, positions = drawn(2 * T, future)
    terms = score_terms(q, k, u, positions)
    np.testing.assert_allclose(sum(terms), scores(q, k, u, positions), rtol=0, atol=1e-12)
    # Of (c) and (d) the query knows nothing: shift it by anything.
    other = score_terms(q + 1.0, k, u, positions)
    np.testing.assert_array_equal(other.content_bias_BHTJ, terms.content_bias_BHTJ)
    np.testing.assert_array_equal(other.position_bias_BHTJ, terms.position_bias_BHTJ)
    # (c) is the same for all queries; (d) for all pairs at one distance.
    assert (np.ptp(terms.content_bias_BHTJ, axis=2) == 0).all()
    for distance in range(T):
        diagonal = np.diagonal(terms.position_bias_BHTJ, offset=T - distance, axis1=2, axis2=3)
        assert np.ptp(diagonal, axis=-1).max() == 0


def test_no_array_is_queries_times_keys_times_width():
    T, J, wide = 31, 37, 41
    rng = np.random.default_rng(2)
    shapes = (B, T, H, wide), (B, J, H, wide), (H, wide), (J, H, wide), (J, H)
    q, k, u, keys, bias = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)

    def total(q, k, u, keys, bias):
        return scores(q, k, u, Positions(keys, bias)).sum()

    traced = jax.make_jaxpr(jax.value_and_grad(total, argnums=range(5)))(q, k, u, keys, bias)
    largest = max(out.aval.size for each in equations_of(traced.jaxpr) for out in each.outvars)
    assert largest <= B * H * max(T * (J + 1), J * wide) < T * J * wide


def test_the_sinusoid_of_distance_0_is_zeros_and_ones():
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6)[0], [0, 0, 0, 1, 1, 1])
    found = sinusoid(jnp.arange(-3, 9), 6, clamp=4, dtype="float64")
    np.testing.assert_array_equal(found[7:], np.broadcast_to(found[7], (5, 6)))
    for position, distance in enumerate(range(-3, 5)):
        angles = distance / 10000.0 ** (np.array([0, 2, 4]) / 6)
        expected = np.concatenate([np.sin(angles), np.cos(angles)])
        np.testing.assert_allclose(found[position], expected, rtol=0, atol=1e-12)


def test_gradients_of_the_shift_return_to_their_scores():
    J = 7
    x_TC = jnp.zeros((T, J))
    causal = np.arange(J) <= np.arange(T)[:, None] + J - T
    grad = quick_jit(jax.grad(lambda x: (shift(x, J) * causal).sum()))(x_TC)
    seen = distances(T, J)[None] <= (np.arange(T) + J - T)[:, None]
    np.testing.assert_array_equal(grad, seen)
