"""Scores that know distances: their cost and four terms; the values are laws of `txl_*`, `rmt*`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import equations_of, quick_jit, wide_types  # noqa: F401

from brt.models.relative_attention import Positions, distances, score_terms, scores, shift

B, T, H, K = 2, 5, 3, 4


def drawn(J, future):
    rng = np.random.default_rng(0)
    C = len(distances(T, J, future))
    shapes = (B, T, H, K), (B, J, H, K), (H, K), (C, H, K), (C, H)
    q, k, u, keys, bias = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    return q, k, u, Positions(keys, bias)


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


def test_gradients_of_the_shift_return_to_their_scores():
    J = 7
    x_TC = jnp.zeros((T, J))
    causal = np.arange(J) <= np.arange(T)[:, None] + J - T
    grad = quick_jit(jax.grad(lambda x: (shift(x, J) * causal).sum()))(x_TC)
    seen = distances(T, J)[None] <= (np.arange(T) + J - T)[:, None]
    np.testing.assert_array_equal(grad, seen)
