"""Decoders: every layer agrees with plain loops."""

import decoders_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from golden import needs_recordings
from paths import GOLDEN
from tiny_models import OneKey, cast, parameters, plain, quick_jit, randomised

from brt.pretrained.backbone_layer import HIDDEN, Extra, Reads, Seen
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.decoders.gpt_neox import GPTNeoX
from brt.pretrained.decoders.llama import Llama
from brt.token_ids import BEGIN

GPT2_SIZES = dict(
    vocabulary_size=11, num_layers=3, width=12, num_heads=3, feed_forward_size=10, num_positions=9
)
LLAMA_SIZES = GPT2_SIZES | dict(num_heads=4, num_key_heads=2, head_size=6)
NEOX_SIZES = GPT2_SIZES | dict(num_heads=2, feed_forward_size=None, rotary_share=0.67)
SCALING = (8.0, 1.0, 4.0, 16)
VARIANTS = {
    "gpt2": (GPT2, GPT2_SIZES),
    "gpt2, inverse layers": (GPT2, GPT2_SIZES | dict(inverse_layer_scale=True, epsilon=1e-2)),
    "gpt2, not scaled": (GPT2, GPT2_SIZES | dict(scale_scores=False)),
    "gpt2, relu, untied": (GPT2, GPT2_SIZES | dict(activation="relu", tied=False, begin_id=3)),
    "gpt2, exact gelu": (GPT2, GPT2_SIZES | dict(activation="gelu", feed_forward_size=None)),
    "llama": (Llama, LLAMA_SIZES),
    "qwen2": (Llama, LLAMA_SIZES | dict(biases="heads", tied=True, rotary_base=100.0)),
    "llama3": (Llama, LLAMA_SIZES | dict(biases="all", rotary_scaling=SCALING, begin_id=3)),
    "one key head": (
        Llama,
        LLAMA_SIZES | dict(num_heads=2, num_key_heads=1, head_size=None, epsilon=1e-2),
    ),
    "neox": (GPTNeoX, NEOX_SIZES | dict(parallel=True)),
    "neox, serial": (
        GPTNeoX,
        NEOX_SIZES
        | dict(parallel=False, biases=False, activation="gelu_new", rotary_share=1.0, tied=True),
    ),
}
DEFAULTS = {
    GPT2: {},
    Llama: {"epsilon": 1e-6, "rotary_share": 1.0},
    GPTNeoX: {"activation": "gelu"},
}
ROWS, TOKENS = 2, 5


class TwoVectors(Reads):
    """Two vectors among the inputs of the second layer, of which the second row has one."""

    def __init__(self, body, vectors_BMD):
        self.keys = body.layers[1].heads(vectors_BMD).keys

    def extra(self, layer):
        present_BM = jnp.array([[True, True], [False, True]])
        return Extra(self.keys, present_BM) if layer == 1 else None

    def read(self, layer, heads, attended_BTHK):
        return attended_BTHK, 2 * heads.normed_BTD if layer == 2 else None, ()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_layer_follows_from_the_equations(variant):
    kind, sizes = VARIANTS[variant]
    rng = np.random.default_rng(2)
    tokens_BT = rng.integers(0, 11, (ROWS, TOKENS))
    tokens_BT[:, 0] = BEGIN
    with jax.enable_x64(True):
        body = cast(randomised(nnx.eval_shape(lambda: kind(OneKey(), **sizes)), 1), "float64")
        vectors_BMD = rng.normal(size=(ROWS, 2, 12))
        graph, params = nnx.split(body, nnx.Param)
        positions_BT = jnp.broadcast_to(jnp.arange(TOKENS), (ROWS, TOKENS))
        bias_1TT = jnp.where(np.tri(TOKENS, dtype=bool), 0.0, HIDDEN)[None]

        def seen(_, keys):
            return Seen(keys, positions_BT, bias_1TT)

        @quick_jit
        def read(params, tokens_BT):
            body = nnx.merge(graph, params)
            reads = TwoVectors(body, jnp.asarray(vectors_BMD))
            found = body.read(body.embed(tokens_BT), positions_BT, seen, reads)
            return found.outputs, body.logits(found.outputs[-1])

        outputs, logits_BTV = read(params, tokens_BT)
    ours = plain(parameters(body))
    settings = DEFAULTS[kind] | sizes | {"begin_id": body.settings.begin_id}
    known = decoders_numpy.Settings.__dataclass_fields__
    settings = {n: x for n, x in settings.items() if n in known and x is not None}
    settings = decoders_numpy.Settings(**settings)
    for row in range(ROWS):
        words = [decoders_numpy.embedded(ours, token, settings) for token in tokens_BT[row]]
        extras = {2: [vectors_BMD[0, 0], vectors_BMD[0, 1]] if row == 0 else [vectors_BMD[1, 1]]}
        expected = decoders_numpy.window(ours, words, settings, extras, {3: lambda x: 2 * x})
        logits = decoders_numpy.logits(ours, expected[-1])
        for found, layer in zip((*outputs, logits_BTV), (*expected, logits), strict=True):
            np.testing.assert_allclose(found[row], layer, rtol=0, atol=1e-9 * np.abs(layer).max())


@pytest.mark.slow
@needs_recordings
def test_a_wrong_number_in_a_recording_fails(check, tmp_path, capsys):
    with np.load(GOLDEN / "pretrained" / "gpt2.npz", allow_pickle=False) as archive:
        recorded = dict(archive)
    (tmp_path / "models").symlink_to(GOLDEN / "pretrained" / "models")
    recorded["hidden_states/2"][0, 3, 1] += 1e-3
    assert check(recorded) == 1 and "hidden_states 1.0e-03" in capsys.readouterr().out
