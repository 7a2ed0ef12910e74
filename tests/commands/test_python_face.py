"""Wrong arguments from Python: one sentence that names the argument."""

import functools

import jax
import jax.numpy as jnp
import pytest
from architectures import random_model, segment_length
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
    with pytest.raises((TypeError, ValueError), match="rngs"):
        made(rngs)


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
    "load.path": lambda g: g.load("a\0b"),
    "save.path": lambda g: g.save("", g.begin()),
}


@pytest.mark.parametrize("argument", CALLS)
def test_wrong_arguments_of_a_generator_are_named(argument, generator):
    with pytest.raises(ValueError, match=argument) as caught:
        CALLS[argument](generator)
    assert "@" not in str(caught.value)


MODELS = ("rec_fixed_skip", "txl_adaptive", "rmt_txl", "armt", "lstm", "melodi", "gpt2_cell")
WRONG = {
    "tokens": [
        lambda m, t, c, d: m(None, c),
        lambda m, t, c, d: m([[0] * 8] * 2, c),
        lambda m, t, c, d: m(t.astype(float), c),
        lambda m, t, c, d: m(t[0], c),
        lambda m, t, c, d: m(t[:, :0], c),
        lambda m, t, c, d: m.decode(t, d),
        lambda m, t, c, d: m.read_part(t[0], c, t[:, 0]),
    ],
    "caches": [
        lambda m, t, c, d: m(t, c[:-1]),
        lambda m, t, c, d: m(t, c + c),
        lambda m, t, c, d: m(t[:1], c),
        lambda m, t, c, d: m(t, jax.tree.map(lambda x: x[:, :1] if x.ndim > 1 else x, c)),
        lambda m, t, c, d: m(t, jax.tree.map(lambda x: None, c)),
        lambda m, t, c, d: m(t, None),
        lambda m, t, c, d: m.decode(t[:1, 0], d),
        lambda m, t, c, d: m.decode(tokens_B=t[:, 0], caches=d + d),
        lambda m, t, c, d: m.read_part(t, (), t[:, 0]),
    ],
}


@functools.cache
def built(name):
    """A model, tokens of a segment, and caches in both forms."""
    model = random_model(name)
    caches = model.init_caches(2)
    tokens_BT = jnp.zeros((2, segment_length(name)), jnp.int32)
    return model, tokens_BT, caches, model.begin_decoding(caches)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("argument", WRONG)
def test_wrong_arguments_of_every_model_are_named(argument, name):
    for call in WRONG[argument]:
        with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b"):
            call(*built(name))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lstm"])  # it has one form
def test_the_two_forms_of_caches_are_told_apart(name):
    model, tokens_BT, caches, decoding = built(name)
    for call in (lambda: model(tokens_BT, decoding), lambda: model.decode(tokens_BT[:, 0], caches)):
        with pytest.raises(TypeError, match="caches"):
            call()


@pytest.mark.parametrize("targets", [None, [[0] * 4] * 2, TOKENS_BT[:1], TOKENS_BT.astype(float)])
def test_targets_of_another_form_are_named(targets):
    with pytest.raises(TypeError, match="token_losses"):
        brt.token_losses(jnp.zeros((2, 4, 8)), targets)


BUILT = {
    "Sizes.width": lambda rngs, sizes: brt.Sizes("a", 1, 1, 1),
    "Sizes.attention_form": lambda rngs, sizes: brt.Sizes(8, 1, 8, 8, attention_form="fast"),
    "Layer.sizes": lambda rngs, sizes: brt.Layer(rngs, jnp.zeros(3), 4),
    "Layer.window": lambda rngs, sizes: brt.Layer(rngs, sizes, 0),
    "RecurrentCell.sizes": lambda rngs, sizes: brt.RecurrentCell(rngs, 8, 4),
    "RecurrentCell.window": lambda rngs, sizes: brt.RecurrentCell(rngs, sizes, "4"),
    "BlockRecurrentTransformer.cell": lambda rngs, sizes: brt.BlockRecurrentTransformer(
        rngs, num_layers=1, feed_forward_size=8, cell=jnp.zeros(3), **SIZES
    ),
    "Experiment.trainer": lambda rngs, sizes: brt.Experiment(3),
    "load_run.folder": lambda rngs, sizes: brt.load_run(3),
    "load_run.bindings": lambda rngs, sizes: brt.load_run("run", "Trainer.steps = 3"),
    "Generator.from_folder.folder": lambda rngs, sizes: brt.Generator.from_folder(3),
}


@pytest.mark.parametrize("argument", BUILT)
def test_arguments_that_no_binding_gives_are_checked(argument):
    with pytest.raises(ValueError, match=argument) as caught:
        BUILT[argument](nnx.Rngs(0), brt.Sizes(8, 1, 8, 8))
    assert "@" not in str(caught.value)
