"""Choosing a token: against plain loops, by counts, and by what can never happen."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import quick_jit

from brt.generation.sampling import GREEDY, Sampling, checked, choose, row_keys

V, DRAWS = 7, 20_000
LOGITS = np.array([0.5, 2.0, -1.0, 1.0, 1.5, -3.0, 0.0])
draw = quick_jit(choose)


def many(sampling, logits_V=LOGITS, recent=(-1,), draws=DRAWS):
    """Share of each token among many draws, (V,)."""
    logits_BV = jnp.asarray(np.tile(logits_V, (draws, 1)), jnp.float32)
    recent_BR = jnp.asarray(np.tile(recent, (draws, 1)), jnp.int32)
    keys_B = row_keys(jnp.arange(draws, dtype=jnp.uint32), jnp.zeros(draws, jnp.int32))
    tokens_B = draw(checked(sampling, V), logits_BV, recent_BR, keys_B)
    return np.bincount(tokens_B, minlength=V) / draws


def by_hand(logits_V, recent, temperature=1.0, top_k=V, top_p=1.0, repetition_penalty=1.0):
    """The distribution, from the definitions, one token at a time."""
    weights = {}
    for token, logit in enumerate(logits_V):
        if token in recent:
            logit *= 1 / repetition_penalty if logit > 0 else repetition_penalty
        weights[token] = math.exp(logit / temperature)
    ranked = sorted(weights, key=weights.get, reverse=True)[:top_k]
    total, mass, kept = sum(weights[token] for token in ranked), 0.0, []
    for token in ranked:
        kept.append(token)
        mass += weights[token] / total
        if mass >= top_p:
            break
    total = sum(weights[token] for token in kept)
    return np.array([weights[t] / total if t in kept else 0.0 for t in range(len(logits_V))])


@pytest.mark.parametrize("seed", range(12))
def test_draws_follow_a_distribution_drawn_with_its_settings(seed):
    rng = np.random.default_rng(seed)
    settings = {
        "temperature": rng.uniform(0.3, 3),
        "top_k": int(rng.integers(1, V + 1)),
        "top_p": rng.uniform(0.05, 1),
        "repetition_penalty": rng.uniform(0.5, 3),
    }
    settings = {name: value for name, value in settings.items() if rng.random() < 0.6}
    logits_V, recent = rng.uniform(0.3, 4) * rng.normal(size=V), rng.integers(-1, V, 4)
    expected = by_hand(logits_V, recent, **settings)
    found = many(Sampling(**settings), logits_V, recent)
    deviation = np.sqrt(expected * (1 - expected) / DRAWS)
    assert (np.abs(found - expected) <= 4.5 * deviation).all(), (found, expected)
    assert not found[expected == 0].any()


def test_temperature_zero_is_the_most_likely_token():
    assert checked(Sampling(0), V) == checked(Sampling(0.0, 3, 0.5), V) == GREEDY
    assert many(Sampling(0.0, 3, 0.5), draws=3)[1] == 1
    for tiny in (1e-300, 1e-40, 1e-37):  # nothing, less than float32 divides by, and just more
        assert many(Sampling(tiny), logits_V=100 * LOGITS, draws=3)[1] == 1


def test_a_draw_depends_on_its_own_seed_and_position_only():
    seeds_B, position_B = jnp.array([3, 4, 3], jnp.uint32), jnp.array([7, 7, 8])
    together = jax.random.key_data(row_keys(seeds_B, position_B))
    for row in range(3):
        alone = jax.random.key_data(row_keys(seeds_B[row : row + 1], position_B[row : row + 1]))
        np.testing.assert_array_equal(together[row], alone[0])
    assert len(set(map(tuple, np.asarray(together).tolist()))) == 3
