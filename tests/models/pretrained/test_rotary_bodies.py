"""Llama and GPT-NeoX as bodies: every layer agrees with plain loops; folders and recordings."""

from pathlib import Path

import jax
import jax.numpy as jnp
import llama_numpy
import numpy as np
import pytest
from flax import nnx
from paths import GOLDEN
from test_gpt2 import TwoVectors
from tiny_folders import GPT_NEOX, LLAMA, make_folder
from tiny_models import OneKey, cast, parameters, plain, quick_jit, randomised

from brt.models.counts import count_parameters
from brt.pretrained.backbone_layer import HIDDEN, Seen
from brt.pretrained.decoders.gpt_neox import GPTNeoX
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.folder import HubFolder, write_folder
from brt.token_ids import BEGIN

LLAMA_SIZES = dict(
    vocabulary_size=11,
    num_layers=3,
    width=12,
    num_heads=4,
    num_key_heads=2,
    head_size=6,
    feed_forward_size=10,
    num_positions=9,
)
NEOX_SIZES = dict(
    vocabulary_size=11, num_layers=3, width=12, num_heads=2, num_positions=9, rotary_share=0.67
)
SCALING = (8.0, 1.0, 4.0, 16)
VARIANTS = {
    "llama": (Llama, LLAMA_SIZES, {}),
    "qwen2": (Llama, LLAMA_SIZES, dict(biases="heads", tied=True, rotary_base=100.0)),
    "llama3": (Llama, LLAMA_SIZES, dict(biases="all", rotary_scaling=SCALING, begin_id=3)),
    "one key head": (
        Llama,
        LLAMA_SIZES,
        dict(num_heads=2, num_key_heads=1, head_size=None, epsilon=1e-2),
    ),
    "neox": (GPTNeoX, NEOX_SIZES, dict(parallel=True)),
    "neox, serial": (
        GPTNeoX,
        NEOX_SIZES,
        dict(parallel=False, biases=False, activation="gelu_new", rotary_share=1.0, tied=True),
    ),
}
ROWS, TOKENS = 2, 5


def body_of(variant):
    kind, sizes, settings = VARIANTS[variant]
    return randomised(nnx.eval_shape(lambda: kind(OneKey(), **sizes | settings)), 1)


def settings_of(variant, body):
    kind, sizes, settings = VARIANTS[variant]
    said = {"activation": "gelu", "epsilon": 1e-6 if kind is Llama else 1e-5} | sizes | settings
    known = llama_numpy.Settings.__dataclass_fields__
    told = {name: value for name, value in said.items() if name in known and value is not None}
    return llama_numpy.Settings(**told | {"begin_id": body.settings.begin_id})


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_layer_follows_from_the_equations(variant):
    rng = np.random.default_rng(2)
    tokens_BT = rng.integers(0, 11, (ROWS, TOKENS))
    tokens_BT[:, 0] = BEGIN
    with jax.enable_x64(True):
        body = cast(body_of(variant), "float64")
        vectors_BMD = rng.normal(size=(ROWS, 2, 12))
        graph, params = nnx.split(body, nnx.Param)
        positions_BT = jnp.broadcast_to(jnp.arange(TOKENS), (ROWS, TOKENS))
        table_1TT = jnp.where(np.tri(TOKENS, dtype=bool), 0.0, HIDDEN)[None]

        @quick_jit
        def read(params, tokens_BT):
            body = nnx.merge(graph, params)
            found = body.read(
                body.embed(tokens_BT),
                positions_BT,
                lambda _, keys: Seen(keys, positions_BT, table_1TT),
                TwoVectors(jnp.asarray(vectors_BMD)),
            )
            return found.outputs, body.logits(found.outputs[-1])

        outputs, logits_BTV = read(params, tokens_BT)
    ours = plain(parameters(body))
    settings = settings_of(variant, body)
    for row in range(ROWS):
        words = [llama_numpy.gpt2_numpy.embedded(ours, token, settings) for token in tokens_BT[row]]
        extras = {2: [vectors_BMD[0, 0], vectors_BMD[0, 1]] if row == 0 else [vectors_BMD[1, 1]]}
        expected = llama_numpy.window(ours, words, settings, extras, {3: lambda x: 2 * x})
        for found, layer in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(found[row], layer, rtol=0, atol=1e-9 * np.abs(layer).max())
        logits = llama_numpy.gpt2_numpy.logits(ours, expected[-1])
        np.testing.assert_allclose(
            logits_BTV[row], logits, rtol=0, atol=1e-9 * np.abs(logits).max()
        )


def test_the_published_sizes_have_the_published_numbers_of_parameters():
    smollm2 = dict(
        vocabulary_size=49_152,
        num_layers=30,
        width=576,
        num_heads=9,
        num_key_heads=3,
        feed_forward_size=1536,
        num_positions=8192,
        tied=True,
    )
    assert sum(count_parameters(nnx.eval_shape(lambda: Llama(OneKey(), **smollm2)))) == 134_515_008
    pythia = dict(
        vocabulary_size=50_304, num_layers=12, width=768, num_heads=12, num_positions=2048
    )
    assert sum(count_parameters(nnx.eval_shape(lambda: GPTNeoX(OneKey(), **pythia)))) == 162_322_944


def opened(kind, path):
    return nnx.eval_shape(lambda: kind(nnx.Rngs(0), folder=str(path)))


FOLDERS = {
    "llama": (Llama, LLAMA, {}),
    "untied": (Llama, LLAMA, dict(tie_word_embeddings=False, attention_bias=True)),
    "qwen2": (Llama, LLAMA, dict(model_type="qwen2", use_sliding_window=False)),
    "neox": (GPTNeoX, GPT_NEOX, {}),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_read_is_written_bit_for_bit(name, tmp_path):
    kind, config, changes = FOLDERS[name]
    tensors = make_folder(tmp_path / "a", config, shards=2, **changes)
    body = opened(kind, tmp_path / "a")
    found = body.names().read(body.folder)
    write_folder(tmp_path / "b", body.config(), body.names().write(found))
    again = HubFolder(str(tmp_path / "b"))
    assert again.tensors.keys() == tensors.keys()
    for tensor, array in tensors.items():
        np.testing.assert_array_equal(again.read(tensor), array)
    other = opened(kind, tmp_path / "b")
    np.testing.assert_equal(other.names().read(other.folder), found)


def test_heads_of_neox_hold_query_key_and_value_each(tmp_path):
    tensors = make_folder(tmp_path, GPT_NEOX)
    body = opened(GPTNeoX, tmp_path)
    layer = body.names().read(body.folder)["layers"][1]
    whole = tensors["gpt_neox.layers.1.attention.query_key_value.weight"]  # (3 * 12, 12)
    np.testing.assert_array_equal(layer["keys_DA"][:, :6], whole[6:12].T)  # of the first head
    np.testing.assert_array_equal(layer["values_DA"][:, 6:], whole[30:36].T)  # of the second


@pytest.mark.parametrize(
    ("kind", "config", "changes", "name"),
    [
        (Llama, LLAMA, dict(rope_scaling={"type": "yarn"}), "rope_scaling"),
        (Llama, LLAMA, dict(rope_scaling=[2]), "rope_scaling"),
        (Llama, LLAMA, dict(rope_parameters={"rope_theta": "x"}), "rope_parameters.rope_theta"),
        (Llama, LLAMA, dict(rope_parameters={"rope_type": "llama3"}), "rope_parameters"),
        (Llama, LLAMA, dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
        (Llama, LLAMA, dict(pretraining_tp=2), "pretraining_tp"),
        (Llama, LLAMA, dict(num_key_value_heads=3), "num_key_value_heads"),
        (Llama, LLAMA, dict(head_dim=5), "head_dim"),
        (Llama, LLAMA, dict(layer_types=["sliding_attention"]), "layer_types"),
        (Llama, LLAMA, dict(model_type="mistral", sliding_window=4), "sliding_window"),
        (GPTNeoX, GPT_NEOX, dict(rotary_pct=0.9), "rotary_pct"),
        (GPTNeoX, GPT_NEOX, dict(rope_scaling={"type": "linear"}), "rope_scaling"),
        (GPTNeoX, LLAMA, {}, "model_type"),
    ],
)
def test_what_brt_does_not_compute_is_refused_by_its_key(tmp_path, kind, config, changes, name):
    tensors = make_folder(tmp_path / "right", config)
    make_folder(tmp_path / "wrong", config, tensors, **changes)
    with pytest.raises(ValueError, match=rf"wrong/config\.json: {name}\b"):
        opened(kind, tmp_path / "wrong")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Llama, dict(head_size=3)),
        (Llama, dict(num_key_heads=3)),
        (Llama, dict(biases="some")),
        (Llama, dict(begin_id=11)),
        (GPTNeoX, dict(rotary_share=0.5)),
        (GPTNeoX, dict(width=13)),
    ],
)
def test_sizes_that_do_not_fit_together_are_named(kind, settings):
    ((name, value),) = settings.items()
    sizes = LLAMA_SIZES if kind is Llama else NEOX_SIZES
    with pytest.raises(ValueError, match=rf"^{kind.__name__}\.{name} = {value!r} "):
        nnx.eval_shape(lambda: kind(OneKey(), **sizes | settings))


RECORDINGS = sorted(
    file
    for kind in ("llama", "qwen2", "gpt_neox")
    for file in (GOLDEN / "pretrained").glob(f"{kind}*.npz")
)
ABSENT = pytest.param("none", marks=pytest.mark.skip(reason=f"no recordings under {GOLDEN}"))


@pytest.mark.slow
@pytest.mark.parametrize("file", RECORDINGS or [ABSENT], ids=lambda file: Path(file).stem)
def test_every_recording_is_reproduced(check, file):
    assert check(file) == 0
