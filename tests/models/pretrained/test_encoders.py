"""Encoders and T5: every layer agrees with plain loops, from folders by their names on disk."""

import functools
import json
from pathlib import Path

import encoders_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from paths import GOLDEN
from tiny_encoder_folders import CONFIGS, T5_GATED, make
from tiny_folders import make_folder
from tiny_models import OneKey

from brt.models.counts import count_parameters
from brt.pretrained.backbone_layer import Extra, Reads
from brt.pretrained.encoders.bert import BERT, RoBERTa
from brt.pretrained.encoders.deberta import DeBERTa
from brt.pretrained.encoders.deberta_layer import distance_buckets
from brt.pretrained.encoders.heads import ClassesHead
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.encoders.t5_layers import two_sided_buckets
from brt.pretrained.folder import HubFolder, write_folder
from brt.pretrained.reader import PretrainedReader, whole_names
from brt.token_ids import PADDING
from brt.training.checkpoints.parameters import merged

BODIES = {"bert": BERT, "roberta": RoBERTa, "deberta": DeBERTa, "t5": T5}
ENCODERS = [name for name in CONFIGS if not name.startswith("t5")]
QUICK = ("bert", "deberta 2", "t5 1.1")
"""Of the kinds those that are compared with every run of the tests."""
IDS = np.array([[5, 7, 2, 9, 16, 3], [11, 4, 8, PADDING, PADDING, PADDING]])


def some(names):
    """Names as parameters of a test, all but `QUICK` marked slow."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def body_class(name):
    return BODIES[name.split()[0]]


def loaded(module, names, folder):
    """The module with the folder's parameters, in float64."""
    graph, state = nnx.split(module, nnx.Param)
    params = merged(nnx.to_pure_dict(state), names.read(HubFolder(str(folder))))
    params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), "float64"), params)
    flat = jax.tree_util.tree_leaves_with_path(params)
    flat = [(tuple(key.key for key in path), leaf) for path, leaf in flat]
    return nnx.merge(graph, nnx.from_flat_state(flat))


def body_of(name, folder):
    body = body_class(name)(nnx.Rngs(0), folder=str(folder))
    body = loaded(body, body.names(), folder)
    body.dtype = jnp.dtype("float64")
    return body


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-9)


def wide(tensors):
    return {name: x.astype(np.float64) for name, x in tensors.items()}


@pytest.mark.parametrize("name", some(CONFIGS))
def test_every_layer_follows_from_the_equations(tmp_path, name):
    config, tensors = make(tmp_path / "m", name)
    tensors = wide(tensors)
    kind = name.split()[0]
    reference = {"deberta": encoders_numpy.deberta, "t5": encoders_numpy.t5_encoder}.get(
        kind, encoders_numpy.bert
    )
    with jax.enable_x64(True):
        body = body_of(name, tmp_path / "m")
        real = IDS != PADDING
        x = body.embed(jnp.asarray(IDS))
        states = [body.enter(x, jnp.asarray(real)), *body.read(x, jnp.asarray(real)).outputs]
        for row in range(2):
            ids = np.where(real[row], IDS[row], config["pad_token_id"])
            expected = reference(ids, real[row].tolist(), tensors, config)
            for i, state in enumerate(states):
                close(state[row][real[row]], expected[i][real[row]])


@pytest.mark.parametrize("name", some(["t5 1.0", "t5 1.1"]))
def test_the_decoder_follows_from_the_equations_and_writes_what_it_finds_likeliest(tmp_path, name):
    config, tensors = make(tmp_path / "m", name)
    tensors = wide(tensors)
    words = np.array([[0, 4, 9], [0, 3, 3]])
    with jax.enable_x64(True):
        body = body_of(name, tmp_path / "m")
        real = IDS != PADDING
        read = body.read(body.embed(jnp.asarray(IDS)), jnp.asarray(real)).outputs[-1]
        logits = body.word_logits(body.decode(jnp.asarray(words), read, jnp.asarray(real))[-1])
        written = np.asarray(body.write(3, read, jnp.asarray(real)))
    for row in range(2):
        mine = np.asarray(read[row])
        expected = encoders_numpy.t5_logits(words[row], mine, real[row], tensors, config)
        close(logits[row], expected)
        so_far = [0]
        for _ in range(3):
            found = encoders_numpy.t5_logits(so_far, mine, real[row], tensors, config)
            so_far.append(int(found[-1].argmax()))
        assert written[row].tolist() == so_far[1:]


@pytest.mark.parametrize("name", ENCODERS)
def test_classes_are_scored_from_the_first_position(tmp_path, name):
    config, tensors = make(tmp_path / "m", name)
    tensors = wide(tensors)
    first = np.random.default_rng(1).normal(size=(2, 8))
    with jax.enable_x64(True):
        body = body_class(name)(nnx.Rngs(0), folder=str(tmp_path / "m"))

        class Both(nnx.Module):
            def __init__(self):
                self.body = body
                self.head = ClassesHead(nnx.Rngs(0), body, 3)

        both = loaded(Both(), whole_names(body, ClassesHead), tmp_path / "m")
        scores = both.head(jnp.asarray(first))
    for row in range(2):
        close(scores[row], encoders_numpy.classes(first[row], tensors, config))


class OneVector(Reads):
    """A vector among the inputs of the second layer."""

    def __init__(self, vectors_BMD, present_BM):
        self.extra = Extra(vectors_BMD, present_BM)

    def extras(self, layer):
        return [self.extra] if layer == 1 else []


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_vector_among_the_inputs_of_a_layer_is_a_key_without_a_position(tmp_path, name):
    config, tensors = make(tmp_path / "m", name)
    vectors = np.random.default_rng(3).normal(size=(2, 1, 8))
    with jax.enable_x64(True):
        body = body_of(name, tmp_path / "m")
        real = IDS != PADDING
        reads = OneVector(jnp.asarray(vectors), jnp.array([[True], [False]]))
        found = body.read(body.embed(jnp.asarray(IDS)), jnp.asarray(real), reads).outputs[-1]
        without = body.read(body.embed(jnp.asarray(IDS)), jnp.asarray(real)).outputs[-1]
    ids = np.where(real[0], IDS[0], config["pad_token_id"])
    expected = encoders_numpy.bert(ids, real[0], wide(tensors), config, (1, vectors[0, 0]))
    close(found[0], expected[-1])
    close(found[1][real[1]], np.asarray(without[1])[real[1]])


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_read_is_written(tmp_path, name):
    _, tensors = make(tmp_path / "m", name)
    body = body_class(name)(nnx.Rngs(0), folder=str(tmp_path / "m"))
    head = None if name.startswith("t5") else ClassesHead
    names = whole_names(body, head)
    written = names.write(names.read(HubFolder(str(tmp_path / "m"))))
    assert written.keys() == tensors.keys()
    assert all(np.array_equal(written[key], tensors[key]) for key in tensors)
    write_folder(str(tmp_path / "again"), body.config(), written, str(tmp_path / "m"), {})
    again = body_class(name)(nnx.Rngs(0), folder=str(tmp_path / "again"))
    assert again.config() == body.config()


def test_older_names_and_a_model_without_its_head_are_read(tmp_path):
    config, tensors = make(tmp_path / "m", "bert")
    old = {
        key.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): x
        for key, x in tensors.items()
        if not key.startswith("classifier")
    }
    make_folder(tmp_path / "old", config, old)
    body = BERT(nnx.Rngs(0), folder=str(tmp_path / "old"))
    assert whole_names(body, ClassesHead).missing(body.folder) == [
        "classifier.weight",
        "classifier.bias",
    ]
    found = body.names().read(body.folder)["embedding_norm"]["scale_D"]
    assert np.array_equal(found, tensors["bert.embeddings.LayerNorm.weight"])


PUBLISHED = {
    "bert-base-cased with 2 classes": (
        BERT,
        dict(vocabulary_size=28996, num_positions=512, feed_forward_size=3072),
        108_311_810,
    ),
    "roberta-base with 2 classes": (
        RoBERTa,
        dict(vocabulary_size=50265, num_positions=514, feed_forward_size=3072),
        124_647_170,
    ),
    "deberta-v3-base with 2 classes": (
        DeBERTa,
        dict(
            vocabulary_size=128100,
            feed_forward_size=3072,
            absolute_positions=False,
            buckets=256,
            shared_keys=True,
            norm_relative=True,
        ),
        184_423_682,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_their_published_counts(name):
    body, sizes, count = PUBLISHED[name]
    sizes = dict(num_layers=12, width=768, num_heads=12) | sizes

    def build():
        return PretrainedReader(OneKey(), body=functools.partial(body, **sizes))

    assert sum(count_parameters(nnx.eval_shape(build))) == count


def test_t5_base_has_its_published_count():
    sizes = dict(vocabulary_size=32128, num_layers=12, width=768, num_heads=12, head_size=64)
    body = functools.partial(T5, **sizes, feed_forward_size=3072)
    whole = nnx.eval_shape(lambda: PretrainedReader(OneKey(), body=body, targets="words"))
    assert sum(count_parameters(whole)) == 222_903_552


REFUSED = {
    "bert: relative positions": (
        "bert",
        dict(position_embedding_type="relative_key"),
        "position_embedding_type = 'relative_key'",
    ),
    "bert: a decoder": ("bert", dict(is_decoder=True), "is_decoder = True"),
    "bert: another activation": ("bert", dict(hidden_act="swish2"), "hidden_act = 'swish2'"),
    "bert: pruned": ("bert", dict(pruned_heads={"1": [0]}), "pruned_heads"),
    "bert: heads": ("bert", dict(num_attention_heads=3), "hidden_size = 8 is not divided"),
    "roberta: cross": ("roberta", dict(add_cross_attention=True), "add_cross_attention = True"),
    "deberta: kinds": ("deberta 2", dict(pos_att_type=["p2p"]), "pos_att_type"),
    "deberta: embedding": ("deberta 2", dict(embedding_size=4), "embedding_size = 4"),
    "deberta: groups": ("deberta 2", dict(conv_groups=2), "conv_groups = 2"),
    "deberta: norm": ("deberta 3", dict(norm_rel_ebd="batch"), "norm_rel_ebd = 'batch'"),
    "deberta: head size": ("deberta 3", dict(attention_head_size=2), "attention_head_size = 2"),
    "t5: network": ("t5 1.0", dict(feed_forward_proj="gated-relu"), "feed_forward_proj"),
    "t5: encoder": ("t5 1.0", dict(is_encoder_decoder=False), "is_encoder_decoder = False"),
    "t5: buckets": (
        "t5 1.0",
        dict(relative_attention_num_buckets=6),
        "relative_attention_num_buckets = 6",
    ),
}


@pytest.mark.parametrize("name, changes, sentence", REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_its_key(tmp_path, name, changes, sentence):
    make(tmp_path / "m", name)
    config = {**CONFIGS[name], **changes}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"config\.json.*{sentence}"):
        body_class(name)(nnx.Rngs(0), folder=str(tmp_path / "m"))


def test_buckets_are_those_of_plain_loops():
    distances = np.arange(-70, 71)
    config = dict(position_buckets=8, max_relative_positions=64, max_position_embeddings=64)
    rows = np.clip(distance_buckets(distances, 8, 64) + 8, 0, 15)
    assert rows.tolist() == [encoders_numpy.distance_row(int(d), config) for d in distances]
    config = T5_GATED
    found = two_sided_buckets(distances, 8, 6)
    assert found.tolist() == [encoders_numpy.bucket(int(d), config, True) for d in distances]


@pytest.mark.skipif(not (GOLDEN / "pretrained").exists(), reason="needs recordings")
@pytest.mark.slow
def test_recordings_are_met(check):
    names = [
        *("bert_classify", "bert_mlm", "roberta_classify", "roberta_qa", "deberta_v3"),
        *("deberta_v2_own_keys", "t5_relu", "t5_gated", "rmt_bert", "rmt_roberta_all_losses"),
        *("rmt_t5", "arpt_roberta", "distance_tables"),
    ]
    assert check(*(Path(GOLDEN / "pretrained" / f"{name}.npz") for name in names)) == 0
