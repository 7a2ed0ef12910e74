"""Dropout: its masks, where the layers drop, and where nothing is ever dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from flax import nnx
from tiny_models import OneKey, parameters, quick_jit, randomised

import brt.models.fast.attention
from brt.models.block_recurrent.layer import Layer
from brt.models.fast.attention import attend
from brt.models.layers.dropout import dropout
from brt.models.sizes import Sizes

KEY = jax.random.key(7)
PERIOD = 128


@pytest.mark.parametrize("T", [1, PERIOD, PERIOD + 1, 3 * PERIOD + 5])
def test_one_mask_serves_all_rows_and_repeats_every_128_tokens(T):
    found = np.asarray(dropout(jnp.ones((3, T, 6)), 0.5, KEY))
    assert found.shape == (3, T, 6)
    assert set(np.unique(found)) <= {0.0, 2.0}
    np.testing.assert_array_equal(found[1:], found[:1].repeat(2, axis=0))
    for t in range(PERIOD, T):
        np.testing.assert_array_equal(found[0, t], found[0, t - PERIOD])
    for shift in range(1, min(T, PERIOD)):  # and not sooner
        assert (found[0, shift:PERIOD] != found[0, : min(T, PERIOD) - shift]).any()


# Where a layer drops. H * K = D, so that projections can be the identity.

B, T, W, D, F, H = 2, 8, 4, 8, 6, 2


def layer(**parameters):
    """Returns a plain layer with its output matrices and biases zero, except for `parameters`."""
    module = nnx.eval_shape(lambda: Layer(OneKey(), Sizes(D, H, D // H, F), W, dropout=0.5))
    module = randomised(module, seed=3)
    module.output_AD[...] = jnp.zeros((D, D))
    module.feed_forward.output_FD[...] = jnp.zeros((F, D))
    module.relative_bias.table_HR[...] = jnp.zeros((H, 32))
    for name, value in parameters.items():
        getattr(module, name)[...] = value
    return module


@quick_jit
def _run(graph_and_params, x_BTD, cache, key):
    layer = nnx.merge(*graph_and_params)
    return layer(x_BTD, cache, layer.prepare(x_BTD.dtype, key, T))


def run(module, x_BTD, cache=None, key=None):
    cache = module.init_cache(B, x_BTD.dtype) if cache is None else cache
    return _run(nnx.split(module), x_BTD, cache, key)


def activations():
    return np.random.default_rng(1).normal(size=(B, T, D)).astype(np.float32)


def is_dropped(found, whole):
    """Every entry is zero or twice what it was; returns which, and that both occur."""
    kept = np.asarray(found) != 0
    np.testing.assert_allclose(found, np.where(kept, 2 * np.asarray(whole), 0), rtol=1e-5)
    assert 0.2 < kept.mean() < 0.8
    return kept


def test_attentions_normalised_input_is_dropped_alike_in_rows():
    module = layer(values_DA=jnp.eye(D))
    x_BTD = activations()
    _, cache, _ = run(module, x_BTD, key=KEY)
    _, whole, _ = run(module, x_BTD)
    kept = is_dropped(cache.window.values_BWHK, whole.window.values_BWHK)
    assert (kept[0] == kept[1]).all()


def test_the_mlps_output_is_dropped_before_its_residual():
    module = layer()
    module.feed_forward.output_FD[...] = jnp.ones((F, D))
    x_BTD = activations()
    found, whole = (run(module, x_BTD, key=key)[0] - x_BTD for key in (KEY, None))
    positive = np.asarray(whole) > 1e-3  # the MLP's ReLUs may all be shut
    assert positive.mean() > 0.7
    ratio = np.where(positive, np.asarray(found) / np.where(positive, whole, 1), np.nan)
    assert set(np.round(ratio[positive], 2)) == {0.0, 2.0}
    both = positive[0] & positive[1]
    np.testing.assert_allclose(ratio[0][both], ratio[1][both], atol=0.01)


def test_attention_weights_are_dropped_alike_in_all_rows():
    """With no scores and values of one, a token counts the kept weights of its window."""
    module = layer(output_AD=jnp.eye(D), queries_DA=jnp.zeros((D, D)))
    module.values_DA[...] = jnp.zeros((D, D))
    x_BTD = activations()
    cache = module.init_cache(B, x_BTD.dtype)
    ones = cache.window._replace(values_BWHK=jnp.ones_like(cache.window.values_BWHK))
    attended = run(module, x_BTD, cache._replace(window=ones), KEY)[0] - x_BTD
    counts = np.asarray(attended).reshape(B, 2, W, H, D // H) / (2 / W)
    # Block 0 reads the ones of the cache: W - i of them at token i; block 1 reads zeros.
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)
    counts = np.round(counts)
    assert (counts[:, 1] == 0).all()
    assert (counts[..., :1] == counts).all()  # a weight belongs to a head, not a channel
    assert (counts[0] == counts[1]).all()
    most = np.arange(W, 0, -1)[:, None]
    assert (counts[0, 0, :, :, 0] <= most).all()
    assert 0 < counts[0, 0, :, :, 0].sum() < H * most.sum()


def test_rows_and_blocks_share_one_mask_of_the_weights(monkeypatch):
    masks = []

    def spy(q, k, v, scale_H, table=None, keep=None):
        if keep is not None:  # the cell drops nothing
            masks.append((q.shape[:-3], keep.shape))
        return attend(q, k, v, scale_H, table, keep)

    monkeypatch.setattr(brt.models.fast.attention, "attend", spy)
    model = random_model("rec_fixed_skip", dropout=0.5, num_layers=1, recurrent_layers=(0,))
    jax.eval_shape(model, jnp.arange(16).reshape(2, 8), model.init_caches(2), KEY)
    # Leading axes of rows and blocks, which neither mask has: tokens to tokens, to states.
    assert masks == [((2, 2), (2, 4, 8)), ((2, 2), (2, 4, 3))]


def test_the_input_of_the_logits_is_dropped():
    model = random_model("slide", num_layers=1, dropout=0.5)
    only = model.layers[0]
    only.output_AD[...] = jnp.zeros_like(only.output_AD[...])
    only.feed_forward.output_FD[...] = jnp.zeros_like(only.feed_forward.output_FD[...])
    x_BTD, caches = np.random.default_rng(2).normal(size=(2, 8, 12)), model.init_caches(2)
    stack = quick_jit(model.stack)
    found, whole = (stack(np.float32(x_BTD), caches, key)[0] for key in (KEY, None))
    kept = is_dropped(found, whole)
    assert (kept[0] == kept[1]).all()


@pytest.mark.parametrize("name", ["rec_lstm_skip", "feedback_two_cells", "lstm", "qrnn"])
def test_rate_and_key_do_nothing_without_each_other(name):
    stack = {} if name in ("lstm", "qrnn") else dict(num_layers=2, recurrent_layers=(1,))
    with_rate, without = (random_model(name, dropout=rate, **stack) for rate in (0.5, 0.0))
    jax.tree.map(np.testing.assert_array_equal, parameters(with_rate), parameters(without))
    tokens_BT, caches = jnp.arange(16).reshape(2, 8), without.init_caches(2)
    traces = [
        str(jax.make_jaxpr(model)(tokens_BT, caches, key))
        for model, key in ((with_rate, None), (without, KEY), (without, None))
    ]
    for trace in traces:
        assert "random_bits" not in trace
    assert traces[0] == traces[2]
    read = quick_jit(with_rate.__call__)
    one, other = (read(tokens_BT, caches, jax.random.key(n))[0] for n in range(2))
    assert not np.array_equal(one, other)
