"""The compressive memory: what it equals, what trains it, what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, SEGMENT, VOCABULARY, build, random_model
from flax import nnx
from tiny_models import OneKey, parameters, quick_jit, randomised, read_segment

from brt.models.transformer_xl.compressive_memory import CompressiveMemory
from brt.models.transformer_xl.hidden_memory import HiddenMemory

SEGMENTS, ROWS = 6, 2


def with_memory(memory, length):
    """A Transformer-XL of random parameters, the same for every memory without any."""
    entry = ARCHITECTURES["txl_same_length"]
    plain = dict(memory=memory, memory_length=length, same_length=False, clamp_length=None)
    return randomised(
        nnx.eval_shape(lambda: entry.build(OneKey(), **plain)).for_segments(SEGMENT), 1
    )


def read_all(model):
    """The logits of a document of several segments."""
    rng = np.random.default_rng(0)
    caches, found = model.init_caches(ROWS), []
    for _ in range(SEGMENTS):
        tokens_BT = rng.integers(0, VOCABULARY, (ROWS, SEGMENT)).astype(np.int32)
        logits_BTV, caches = read_segment(model, tokens_BT, np.zeros(ROWS, bool), caches)
        found.append(np.asarray(logits_BTV))
    return np.concatenate(found, axis=1), caches


@pytest.mark.parametrize("compression", ["mean", "max"])
def test_at_rate_1_it_is_a_transformer_xl_with_a_longer_memory(compression):
    memory = functools.partial(CompressiveMemory, compressed=9, rate=1, compression=compression)
    found, _ = read_all(with_memory(memory, 6))
    expected, _ = read_all(with_memory(HiddenMemory, 15))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    shorter, _ = read_all(with_memory(HiddenMemory, 14))
    assert np.abs(found - shorter).max() > 1e-2


def loss_parts(model):
    """The losses of the language model and of the reconstruction after some segments.

    Returns them as a function of the parameters, and the parameters.
    """
    graph, params = nnx.split(model, nnx.Param)
    _, caches = read_all(model)
    tokens_BT = np.random.default_rng(1).integers(0, VOCABULARY, (ROWS, SEGMENT)).astype(np.int32)

    def both(params):
        model = nnx.merge(graph, params)
        x_BTD, _, metrics = model.stack(model.embed(tokens_BT), caches)
        nats_BT, _ = model.token_losses(x_BTD, jnp.asarray(tokens_BT))
        return nats_BT.mean(), metrics["added_nats"]

    return both, params


def test_reconstruction_trains_the_compression_and_nothing_else():
    model = random_model("compressive_convolution")
    losses, params = loss_parts(model)

    @quick_jit
    def gradients(params):
        values, back = jax.vjp(losses, params)
        return values, [back(unit)[0] for unit in ((1.0, 0.0), (0.0, 1.0))]

    (_, error), found = gradients(params)
    assert error > 0
    graph = nnx.graphdef(model)
    of_text, of_reconstruction = (parameters(nnx.merge(graph, grads)) for grads in found)
    for layer in of_text.pop("memories").values():
        assert not np.asarray(layer["kernel_YDI"]).any()
    for layer in of_reconstruction.pop("memories").values():
        assert np.abs(layer["kernel_YDI"]).max() > 1e-6
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_text))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_reconstruction))


def test_a_lossless_compression_has_no_reconstruction_error():
    memory = functools.partial(CompressiveMemory, compressed=12, rate=1, compression="convolution")
    model = with_memory(memory, 4)
    for each in model.memories:
        each.kernel_YDI[...] = jnp.eye(12)[None]
    losses, params = loss_parts(model)
    assert quick_jit(losses)(params)[1] < 1e-12


def test_the_error_is_a_mean_over_elements_with_a_memory():
    model = random_model("compressive_convolution")
    memory, layer = model.memories[1], model.layers[1]
    rng = np.random.default_rng(3)
    x_BTD, old_BOD = (jnp.asarray(rng.normal(size=(2, 8, 12)), jnp.float32) for _ in range(2))
    new_BLD = memory.compress(old_BOD)
    found = memory.reconstruction_error(layer, x_BTD, old_BOD, new_BLD, jnp.array([8, 0]))
    alone = memory.reconstruction_error(layer, x_BTD[:1], old_BOD[:1], new_BLD[:1], jnp.array([8]))
    np.testing.assert_allclose(2 * found, alone, rtol=1e-6)
    none = memory.reconstruction_error(layer, x_BTD, old_BOD, new_BLD, jnp.array([0, 0]))
    assert none == 0


def test_compressed_inputs_are_no_window():
    model, plain = random_model("compressive_mean"), with_memory(HiddenMemory, 6)
    assert model.windows_reach() == plain.windows_reach()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(compressed=0), r"CompressiveMemory\.compressed"),
        (dict(rate=4), r"CompressiveMemory\.rate"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        build("compressive_mean", memory=functools.partial(
            CompressiveMemory, **dict(compressed=5, rate=2) | settings
        ))  # fmt: skip


def test_compressed_vectors_hidden_by_same_length_are_refused():
    memory = functools.partial(CompressiveMemory, compressed=2, rate=2)
    with pytest.raises(ValueError, match=r"TransformerXL\.same_length = True .*CompressiveMemory"):
        ARCHITECTURES["txl_same_length"].build(OneKey(), memory=memory, memory_length=6)
