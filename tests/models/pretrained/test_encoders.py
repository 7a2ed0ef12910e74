"""Encoders and T5: every layer agrees with plain loops, from folders by their names on disk."""

import encoders_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marking import slow
from recordings.pretrained_errors import bound, split_with, widened
from tiny_encoder_folders import CONFIGS, T5_GATED, make

from brt.pretrained.backbone_layer import Extra, Reads
from brt.pretrained.encoders.bert import BERT, RoBERTa
from brt.pretrained.encoders.deberta import DeBERTa, distance_buckets
from brt.pretrained.encoders.heads import ClassesHead
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.encoders.t5_layers import two_sided_buckets
from brt.pretrained.folder import HubFolder
from brt.pretrained.reader import whole_names
from brt.token_ids import PADDING

BODIES = {"bert": BERT, "roberta": RoBERTa, "deberta": DeBERTa, "t5": T5}
ENCODERS = [name for name in CONFIGS if not name.startswith("t5")]
QUICK = ("bert", "deberta 2", "t5 1.1")
"""Of the kinds those that are compared with every run of the tests."""
IDS = np.array([[5, 7, 2, 9, 16, 3], [11, 4, 8, PADDING, PADDING, PADDING]])


def some(names):
    """Names as parameters of a test, all but `QUICK` marked slow."""
    return [slow(name, when=name not in QUICK) for name in names]


def body_class(name):
    return BODIES[name.split()[0]]


def loaded(module, names, folder):
    """The module with the folder's parameters, in float64."""
    graph, params = split_with(module, names.read(HubFolder(str(folder))))
    return bound(graph, widened(params))


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
def test_the_decoder_follows_the_equations_and_writes_greedily(tmp_path, name):
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

    def __init__(self, body, vectors_BMD, present_BM):
        self.second = Extra(body.layers[1].heads(vectors_BMD).keys, present_BM)

    def extra(self, layer):
        return self.second if layer == 1 else None


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_an_input_vector_is_a_key_without_a_position(tmp_path, name):
    config, tensors = make(tmp_path / "m", name)
    vectors = np.random.default_rng(3).normal(size=(2, 1, 8))
    with jax.enable_x64(True):
        body = body_of(name, tmp_path / "m")
        real = IDS != PADDING
        reads = OneVector(body, jnp.asarray(vectors), jnp.array([[True], [False]]))
        found = body.read(body.embed(jnp.asarray(IDS)), jnp.asarray(real), reads).outputs[-1]
        without = body.read(body.embed(jnp.asarray(IDS)), jnp.asarray(real)).outputs[-1]
    ids = np.where(real[0], IDS[0], config["pad_token_id"])
    expected = encoders_numpy.bert(ids, real[0], wide(tensors), config, (1, vectors[0, 0]))
    close(found[0], expected[-1])
    close(found[1][real[1]], np.asarray(without[1])[real[1]])


def test_buckets_are_those_of_plain_loops():
    distances = np.arange(-70, 71)
    config = dict(position_buckets=8, max_relative_positions=64, max_position_embeddings=64)
    rows = np.clip(distance_buckets(distances, 8, 64) + 8, 0, 15)
    assert rows.tolist() == [encoders_numpy.distance_row(int(d), config) for d in distances]
    config = T5_GATED
    found = two_sided_buckets(distances, 8, 6)
    assert found.tolist() == [encoders_numpy.bucket(int(d), config, True) for d in distances]
