"""Properties of the layers of all families: dropout in the residual stream, and its keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import OneKey, randomised

from brt.pretrained.backbone_layer import drops
from brt.pretrained.decoders import gpt2, gpt_neox, llama
from brt.pretrained.encoders import bert, t5

SIZES = dict(vocabulary_size=5, num_layers=2, width=8, num_heads=2, feed_forward_size=10)
DECODER = SIZES | dict(num_positions=4)


def neox(**settings):
    settings = gpt_neox.GPTNeoXSettings(**DECODER, rotary_share=0.5, **settings).resolved()
    return gpt_neox.GPTNeoXLayer(OneKey(), settings)


LAYERS = {
    "gpt2": lambda: gpt2.GPT2Layer(OneKey(), gpt2.GPT2Settings(**DECODER).resolved(), 2),
    "neox": neox,
    "neox, serial": lambda: neox(parallel=False, biases=False),
    "llama": lambda: llama.LlamaLayer(
        OneKey(), llama.LlamaSettings(**DECODER, num_key_heads=1, biases="all").resolved()
    ),
    "bert": lambda: bert.BertLayer(OneKey(), bert.BertSettings(**DECODER)),
    "t5": lambda: t5.T5Layer(OneKey(), t5.T5Settings(**SIZES, head_size=4, network="gated-gelu")),
}


@pytest.mark.parametrize("name", LAYERS)
def test_both_parts_of_a_layer_pass_dropout_before_the_residual(name):
    layer = randomised(LAYERS[name](), 4)
    x_BTD = jax.random.normal(jax.random.key(0), (2, 5, 8))
    heads = layer.heads(x_BTD)
    dropped = []

    def drop(y_BTD):
        dropped.append(y_BTD)
        return jnp.zeros_like(y_BTD)

    added_BTD = jnp.ones_like(x_BTD)
    y_BTD = layer.finish(x_BTD, heads.queries_BTHK, added_BTD, drop)
    expected = x_BTD
    if name == "bert":
        expected = layer.feed_forward_norm(layer.attention_norm(x_BTD))
    np.testing.assert_array_equal(y_BTD, expected)
    assert len(dropped) == 2 and all(np.abs(y).min() > 0 for y in dropped)
    plain = layer.finish(x_BTD, heads.queries_BTHK, None, drop)
    np.testing.assert_array_equal(plain, expected)
    np.testing.assert_allclose(dropped[0] - dropped[2], 1, rtol=0, atol=1e-5)


def test_dropout_takes_another_key_each_time_and_keeps_the_mean():
    ones_BTD = jnp.ones((2, 50, 40))
    drop = drops(jax.random.key(0), 0.25)
    first, second = drop(ones_BTD), drop(ones_BTD)
    np.testing.assert_allclose(np.unique(first), [0, 1 / 0.75], rtol=1e-6)
    assert abs(float((first == 0).mean()) - 0.25) < 0.03
    assert abs(float(((first == 0) & (second == 0)).mean()) - 0.0625) < 0.02
    assert drops(None, 0.25)(ones_BTD) is ones_BTD
