"""Hidden keys have no weight, those left keep their proportions, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from marking import slow
from tiny_models import parameters

from brt.models import ops
from brt.models.caches import WindowCache
from brt.models.fast import key_dropout, table
from brt.models.fast.attention import attend
from brt.models.sizes import Sizes

H, W, S, RATE = 2, 16, 12, 0.3


def one_hot_values(*shape):
    """Values that show the weights: entry j of a key's value is 1 for key j alone."""
    return np.broadcast_to(np.eye(shape[-3])[:, None, :], shape)


def window_weights(seed, rate):
    """Weights of the second block's queries for both blocks' keys, (H, W, 2W)."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, 1, W, H, 2 * W))
    values = one_hot_values(1, 2 * W, H, 2 * W)
    window = WindowCache(jnp.asarray(rng.normal(size=(1, W, H, 2 * W))), jnp.asarray(values[:, :W]))
    key = jax.random.key(seed)
    tables = key_dropout.window_tables(jnp.asarray(rng.normal(size=(H, W))), key, rate)
    found = ops.window_attention(q, k, values[:, W:], window, jnp.full(H, 3.0), tables, attend)
    return np.moveaxis(np.asarray(found.attended_BTHK[0]), 1, 0)


def states_weights(seed, rate):
    """Weights of the queries of a block for its states, (H, W, S)."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(1, W, H, S)), rng.normal(size=(1, 1, S, H, S))
    bias = key_dropout.states_dropout(jax.random.key(seed), rate, (H, W, S), jnp.float32)
    values = one_hot_values(1, 1, S, H, S)
    y = key_dropout.attention_to_states(q, k, values, jnp.full(H, 3.0), bias, attend)
    return np.moveaxis(np.asarray(y[0]), 1, 0)


def visible(weights):
    """Where a query may see a key: distances 1 ... W in a window, every state."""
    if weights.shape[-1] == S:
        return np.ones((W, S), bool)
    distance = W + np.arange(W)[:, None] - np.arange(2 * W)
    return (distance >= 1) & (distance <= W)


@pytest.mark.parametrize("weights_of", [window_weights, states_weights])
@pytest.mark.parametrize("seed", range(3))
def test_kept_keys_keep_proportions_and_sum_to_one(weights_of, seed):
    whole, dropped = weights_of(seed, 0.0), weights_of(seed, RATE)
    kept = dropped > 0
    np.testing.assert_allclose(dropped.sum(-1), 1, rtol=1e-5)
    expected = np.where(kept, whole, 0)
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(dropped, expected, atol=1e-5)


@pytest.mark.parametrize("weights_of", [window_weights, states_weights])
def test_keys_are_hidden_at_the_rate(weights_of):
    hidden = np.concatenate(
        [(weights := weights_of(seed, RATE))[:, visible(weights)] == 0 for seed in range(20)]
    )
    # The nearest key of a window, one of W, always stays.
    expected = RATE * (1 - 1 / W) if weights_of is window_weights else RATE
    assert abs(hidden.mean() - expected) < 4 * np.sqrt(RATE * (1 - RATE) / hidden.size)


def test_a_token_always_sees_the_one_before_it_and_some_state():
    nearest = window_weights(0, 0.999)[:, np.arange(W), W - 1 + np.arange(W)]
    assert (nearest > 0.99).mean() > 0.9
    assert (nearest > 0).all()
    whole, dropped = states_weights(0, 0.0), states_weights(0, 0.999)
    np.testing.assert_allclose(dropped.sum(-1), 1, rtol=1e-5)
    none_left = (dropped > 0).all(-1)
    assert none_left.mean() > 0.9
    np.testing.assert_allclose(dropped[none_left], whole[none_left], rtol=1e-5)


@pytest.mark.parametrize(
    "name", [*("slide", "rec_memorizing"), *(slow(x) for x in ("rec_fixed_skip", "rec_lstm_dual"))]
)
def test_a_model_drops_keys_in_training_alone_by_the_binding(name):
    options = dict(dropout=0.5, dtype="float64")
    with jax.enable_x64(True):
        weights, keys = (
            random_model(name, attention_dropout=kind, **options) for kind in ("weights", "keys")
        )
        assert jax.tree.all(jax.tree.map(jnp.array_equal, parameters(weights), parameters(keys)))
        tokens = np.random.default_rng(0).integers(0, 16, (2, 2 * weights.period))
        logits = [
            [model(tokens, model.init_caches(2), key=key)[0] for model in (weights, keys)]
            for key in (None, jax.random.key(0))
        ]
    np.testing.assert_allclose(*logits[0], rtol=1e-12)
    assert np.abs(logits[1][0] - logits[1][1]).max() > 1e-3
    assert np.isfinite(logits[1][1]).all()


def test_no_kernel_drops_keys():
    sizes = Sizes(128, 8, 128, 1, attention_form="kernel", attention_dropout="keys")
    with pytest.raises(ValueError, match="drops keys"):
        table.layer_ops(sizes, 512, 0, jnp.bfloat16)
