"""Every family's folders and sizes: read and written bit for bit, or refused by key or binding."""

import numpy as np
import pytest
from flax import nnx
from tiny_encoder_folders import CONFIGS as ENCODERS
from tiny_folders import GPT2, GPT_NEOX, LLAMA, make_folder
from tiny_models import OneKey

from brt.models.counts import count_parameters
from brt.pretrained.decoders import gpt2, gpt_neox, llama
from brt.pretrained.encoders import bert, deberta, t5
from brt.pretrained.encoders.heads import ClassesHead
from brt.pretrained.folder import HubFolder, write_folder
from brt.pretrained.reader import whole_names

FAMILIES = {
    "gpt2": gpt2.GPT2,
    "llama": llama.Llama,
    "qwen2": llama.Llama,
    "mistral": llama.Llama,
    "gpt_neox": gpt_neox.GPTNeoX,
    "bert": bert.BERT,
    "roberta": bert.RoBERTa,
    "deberta-v2": deberta.DeBERTa,
    "t5": t5.T5,
}
QWEN2 = LLAMA | dict(model_type="qwen2", use_sliding_window=False)
CONFIGS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "llama, untied": LLAMA | dict(tie_word_embeddings=False, attention_bias=True),
    "qwen2": QWEN2,
    "gpt_neox": GPT_NEOX,
    **ENCODERS,
}


def opened(path, model_type):
    return nnx.eval_shape(lambda: FAMILIES[model_type](nnx.Rngs(0), folder=str(path)))


def names_of(body):
    """Of a body, and of the head for classes in its folder."""
    if isinstance(body, bert.BERT):
        return whole_names(body, ClassesHead)
    return body.names()


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_read_is_written_bit_for_bit(name, tmp_path):
    config = CONFIGS[name]
    tensors = make_folder(tmp_path / "a", config, shards=2)
    body = opened(tmp_path / "a", config["model_type"])
    names = names_of(body)
    found = names.read(body.folder)
    write_folder(str(tmp_path / "b"), body.config(), names.write(found), str(tmp_path / "a"))
    written = HubFolder(str(tmp_path / "b"))
    assert written.tensors.keys() == tensors.keys()
    for tensor, array in tensors.items():
        np.testing.assert_array_equal(written.read(tensor), array)
    again = opened(tmp_path / "b", config["model_type"])
    np.testing.assert_equal(names_of(again).read(written), found)
    assert again.config() == body.config()


def test_heads_of_neox_hold_query_key_and_value_each(tmp_path):
    tensors = make_folder(tmp_path, GPT_NEOX)
    body = opened(tmp_path, "gpt_neox")
    layer = body.names().read(body.folder)["layers"][1]
    whole = tensors["gpt_neox.layers.1.attention.query_key_value.weight"]  # (3 * 12, 12)
    np.testing.assert_array_equal(layer["keys_DA"][:, :6], whole[6:12].T)  # of the first head
    np.testing.assert_array_equal(layer["values_DA"][:, 6:], whole[30:36].T)  # of the second


def test_older_names_and_a_model_without_its_head_are_read(tmp_path):
    tensors = make_folder(tmp_path / "m", ENCODERS["bert"])
    old = {
        key.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): x
        for key, x in tensors.items()
        if not key.startswith("classifier")
    }
    make_folder(tmp_path / "old", ENCODERS["bert"], old)
    body = opened(tmp_path / "old", "bert")
    missing = whole_names(body, ClassesHead).missing(body.folder)
    assert missing == ["classifier.weight", "classifier.bias"]
    found = body.names().read(body.folder)["embedding_norm"]["scale_D"]
    assert np.array_equal(found, tensors["bert.embeddings.LayerNorm.weight"])


REFUSED = [
    ("gpt2", dict(activation_function="swish"), ""),
    ("gpt2", dict(n_embd="8"), ""),
    ("gpt2", dict(n_layer=10**9), ""),
    ("gpt2", dict(n_head=True), ""),
    ("gpt2", dict(n_positions=-1), ""),
    ("gpt2", dict(vocab_size=10**30), ""),
    ("gpt2", dict(layer_norm_epsilon=float("nan")), ""),
    ("gpt2", dict(scale_attn_weights="yes"), ""),
    ("gpt2", dict(bos_token_id=17), ""),
    ("gpt2", dict(add_cross_attention=True), ""),
    ("gpt2", dict(n_head=3), "n_embd"),
    ("llama", dict(rope_scaling={"type": "yarn"}), ""),
    ("llama", dict(rope_scaling=[2]), ""),
    ("llama", dict(rope_parameters={"rope_theta": "x"}), "rope_parameters.rope_theta"),
    ("llama", dict(rope_parameters={"rope_type": "llama3"}), ""),
    ("llama", dict(partial_rotary_factor=0.5), ""),
    ("llama", dict(pretraining_tp=2), ""),
    ("llama", dict(num_key_value_heads=3), ""),
    ("llama", dict(head_dim=5), ""),
    ("llama", dict(layer_types=["sliding_attention"]), ""),
    ("llama", dict(model_type="mistral", sliding_window=4), "sliding_window"),
    ("gpt_neox", dict(rotary_pct=0.9), ""),
    ("gpt_neox", dict(rope_scaling={"type": "linear"}), ""),
    ("bert", dict(position_embedding_type="relative_key"), ""),
    ("bert", dict(is_decoder=True), ""),
    ("bert", dict(pruned_heads={"1": [0]}), ""),
    ("bert", dict(num_attention_heads=3), "hidden_size"),
    ("roberta", dict(add_cross_attention=True), ""),
    ("deberta 2", dict(pos_att_type=["p2p"]), ""),
    ("deberta 2", dict(embedding_size=4), ""),
    ("deberta 2", dict(conv_groups=2), ""),
    ("deberta 3", dict(norm_rel_ebd="batch"), ""),
    ("deberta 3", dict(attention_head_size=2), ""),
    ("t5 1.0", dict(feed_forward_proj="gated-relu"), ""),
    ("t5 1.0", dict(is_encoder_decoder=False), ""),
    ("t5 1.0", dict(relative_attention_num_buckets=6), ""),
    ("t5 1.0", dict(relative_attention_max_distance=4), ""),
    ("deberta 3", dict(position_buckets=1), ""),
    ("deberta 3", dict(position_buckets=64), ""),
]


@pytest.mark.parametrize("name, changes, key", REFUSED)
def test_what_is_not_computed_is_refused_by_its_key(tmp_path, name, changes, key):
    config = CONFIGS[name]
    tensors = make_folder(tmp_path / "right", config)
    make_folder(tmp_path / "wrong", config, tensors, **changes)
    key = key or next(iter(changes))
    with pytest.raises(ValueError, match=rf"wrong/config\.json: {key}\b"):
        opened(tmp_path / "wrong", changes.get("model_type", config["model_type"]))


SIZES = dict(vocabulary_size=11, num_layers=3, width=12, num_heads=4, num_positions=9)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (llama.Llama, dict(head_size=3)),
        (llama.Llama, dict(num_key_heads=3)),
        (llama.Llama, dict(biases="some")),
        (llama.Llama, dict(begin_id=11)),
        (gpt_neox.GPTNeoX, dict(rotary_share=0.5)),
        (gpt_neox.GPTNeoX, dict(width=13)),
    ],
)
def test_sizes_that_do_not_fit_together_are_named(kind, settings):
    ((name, value),) = settings.items()
    sizes = SIZES | (dict(feed_forward_size=10) if kind is llama.Llama else dict(rotary_share=0.67))
    with pytest.raises(ValueError, match=rf"^{kind.__name__}\.{name} = {value!r} "):
        nnx.eval_shape(lambda: kind(OneKey(), **sizes | settings))


def test_pythia_160m_has_its_published_count():
    """Bodies that a config builds are counted in tests/configs/test_configs.py."""
    sizes = dict(vocabulary_size=50_304, num_positions=2048, num_layers=12, width=768, num_heads=12)
    body = nnx.eval_shape(lambda: gpt_neox.GPTNeoX(OneKey(), **sizes))
    assert sum(count_parameters(body)) == 162_322_944
