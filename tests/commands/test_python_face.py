"""Wrong arguments from Python: one sentence that names the argument."""

import jax.numpy as jnp
import pytest
from flax import nnx

import brt
from brt.data.vocabularies.base import ByteVocabulary

SIZES = {"vocabulary_size": 256, "width": 8, "num_heads": 1, "head_size": 8, "window": 4}
TOKENS_BT = jnp.zeros((2, 4), jnp.int32)


def made(rngs=None, layers=1):
    rngs = nnx.Rngs(0) if rngs is None else rngs
    return brt.BlockRecurrentTransformer(rngs, num_layers=layers, feed_forward_size=16, **SIZES)


@pytest.fixture(scope="module")
def generator():
    return brt.Generator(made(), ByteVocabulary())


@pytest.mark.parametrize("rngs", [0, "a", nnx.Rngs()])
def test_rngs_without_keys_of_parameters_are_named(rngs):
    with pytest.raises(TypeError, match="rngs"):
        made(rngs)


@pytest.mark.parametrize("tokens", [[[0] * 4] * 2, TOKENS_BT.astype(float), None, "abc"])
def test_tokens_that_are_no_array_of_integers_are_named(tokens):
    model = made()
    with pytest.raises(TypeError, match="tokens"):
        model(tokens, model.init_caches(2))


@pytest.mark.parametrize("caches", [3, None, (1,), "longer", "decoding"])
def test_caches_of_another_form_are_named(caches):
    model = made()
    own = model.init_caches(2)
    wrong = {"longer": own + own, "decoding": model.begin_decoding(own)}
    with pytest.raises((TypeError, ValueError), match="caches"):
        model(TOKENS_BT, wrong.get(caches, caches))


CALLS = {
    "model": lambda g: brt.Generator(3, ByteVocabulary()),
    "vocabulary": lambda g: brt.Generator(g.model, "bytes"),
    "segment_length": lambda g: brt.Generator(g.model, ByteVocabulary(), "4"),
    "rows": lambda g: g.begin(-1),
    "texts": lambda g: g.read(None),
    "memory": lambda g: g.write(None),
    "max_tokens": lambda g: g.write(g.begin(), 1.5),
    "sampling": lambda g: g.write(g.begin(), 3, {}),
    "seed": lambda g: g.write(g.begin(), 3, seed=1.5),
    "stop": lambda g: g.write(g.begin(), 3, stop=b"x"),
    "path": lambda g: g.load(3),
}


@pytest.mark.parametrize("argument", CALLS)
def test_wrong_arguments_of_a_generator_are_named(argument, generator):
    with pytest.raises(ValueError, match=argument) as caught:
        CALLS[argument](generator)
    assert "@" not in str(caught.value)
