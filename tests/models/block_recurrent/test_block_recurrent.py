"""The whole model: embedding and logits, settings, memory for time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, WINDOW, abstract, build, random_model
from flax import nnx
from tiny_models import OneKey, drawn, parameters, quick_jit, read_segment

from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.external_memory import ExternalMemory
from brt.models.block_recurrent.memory import LayerMemory
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.sizes import Sizes
from brt.models.transformer_xl.hidden_memory import HiddenMemory

B, D, W = 2, 12, WINDOW


def test_first_logits_have_variance_d_over_V_or_one():
    """Over all words but the one just read, which the tied table favours."""
    sizes = dict(vocabulary_size=4096, num_layers=1, width=64)
    model = drawn(lambda: build("slide", **sizes, logits_divisor="width"))
    tokens_BT = np.random.default_rng(1).integers(0, 4096, (4, 8)).astype(np.int32)
    logits_BTV, _ = read_segment(model, tokens_BT, np.zeros(4, bool), model.init_caches(4))
    logits_BTV = np.array(logits_BTV)
    assert (logits_BTV.argmax(axis=-1) == tokens_BT).mean() > 0.9
    np.put_along_axis(logits_BTV, tokens_BT[..., None], np.nan, axis=-1)
    assert abs(np.nanvar(logits_BTV) - 1) < 0.05
    # The other divisor makes them smaller by the root of V / d, no more and no less.
    shapes = abstract("slide", **sizes, logits_divisor="vocabulary")
    assert model.logits_divisor**2 == pytest.approx(64)
    assert shapes.logits_divisor**2 == pytest.approx(4096)


@pytest.mark.parametrize("length", [0, 1, W - 1, W + 1, 2 * W - 1])
def test_a_segment_is_whole_blocks(length):
    x_BTD = np.zeros((B, length, D), np.float32)
    with pytest.raises(
        ValueError, match=rf"{length} tokens.*BlockRecurrentTransformer\.window = {W}"
    ):
        abstract("slide").stack(x_BTD, ())


def test_metrics_are_named_by_their_layer():
    for name, layers in (("slide", ()), ("rec_two_layers", (0, 2))):
        model = random_model(name)
        inputs = jnp.ones((B, W, D)), model.init_caches(B)
        _, _, metrics = jax.eval_shape(model.stack, *inputs)
        assert set(metrics) == {
            f"layer{i}/{metric}" for i in layers for metric in ("kept", "state_norm", "state_share")
        }
        assert all(value.shape == () for value in metrics.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slide", {}),
        ("rec_two_layers", {0: ["cell"], 2: ["cell"]}),
        ("rec_memorizing", {1: ["cell", "memory"], 2: ["memory"]}),
        ("rmt_rec", {1: ["cell"]}),
        ("lstm", {}),
    ],
)
def test_the_gradient_that_reaches_each_memory_is_reported(name, expected):
    rng = np.random.default_rng(4)
    grads = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), parameters(abstract(name))
    )
    found = abstract(name).gradient_metrics(grads)
    assert set(found) == {f"layer{i}/{m}_grad_norm" for i, ms in expected.items() for m in ms}
    layers = grads.get("body", grads)["layers"]
    for i, memories in expected.items():
        for memory in memories:
            squares = [np.square(np.float64(x)).sum() for x in jax.tree.leaves(layers[i][memory])]
            norm = found[f"layer{i}/{memory}_grad_norm"]
            assert norm.shape == () and float(norm) == pytest.approx(np.sqrt(sum(squares)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            dict(recurrent_layers=(3,)),
            r"BlockRecurrentTransformer\.recurrent_layers = \(3,\).*0 \.\.\. 2",
        ),
        (dict(recurrent_layers=(0, -4)), r"BlockRecurrentTransformer\.recurrent_layers.*layer -4"),
        (dict(feedback=True), r"BlockRecurrentTransformer\.feedback = True.*recurrent_layers"),
        (
            dict(
                recurrent_layers=(1,),
                cell=functools.partial(RecurrentCell, order="sequential", arrangement="single"),
            ),
            r"RecurrentCell\.order.*single",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_the_name_of_its_binding(settings, message):
    with pytest.raises(ValueError, match=message):
        BlockRecurrentTransformer(OneKey(), 8, 3, 4, 1, 4, 4, 4, **settings)


def test_each_memory_is_built_for_its_layers_only():
    made = []

    def recording(kind, **settings):
        def make(rngs, sizes, window):
            made.append((kind, sizes, window))
            return kind(rngs, sizes, window, **settings)

        return make

    model = nnx.eval_shape(
        lambda: BlockRecurrentTransformer(
            OneKey(),
            *(8, 3, 4, 2, 5, 6, 7),
            recurrent_layers=(0, 2),
            memorizing_layers=(0,),
            cell=recording(RecurrentCell, num_states=2),
            memory=recording(ExternalMemory, size=7, neighbours=1),
        )
    )
    arguments = Sizes(width=4, num_heads=2, head_size=5, feed_forward_size=6), 7
    cell, memory = (RecurrentCell, *arguments), (ExternalMemory, *arguments)
    assert made == [cell, memory, cell]
    assert [layer.memory_names for layer in model.layers] == [("cell", "memory"), (), ("cell",)]


RECOMPUTED = "prevent_cse=True"
"""In a trace, what `remat` recomputes. Norms have False: they are cheap, and always recomputed."""


def loss_and_gradients(model, tokens_BT, caches):
    graph, params = nnx.split(model)

    def loss(params):
        logits_BTV, after = nnx.merge(graph, params)(tokens_BT, caches)
        total = sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(after))
        return jnp.mean(jax.nn.log_softmax(logits_BTV)[..., 0]) + total

    return jax.value_and_grad(loss), params


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("rec_fixed_skip", dict(recurrent_layers=(-1,)), 2),  # each layer
        ("feedback_fixed_skip", dict(recurrent_layers=(-1,)), 1),  # each block of all layers
        ("linear_attention_layer", {}, 2),
    ],
)
def test_recomputing_changes_nothing_that_is_learned(name, settings, count):
    tokens_BT = np.random.default_rng(0).integers(0, VOCABULARY, (B, SEGMENT)).astype(np.int32)
    results, counts = {}, {}
    for remat in ("layer", "none"):
        model = random_model(name, remat=remat, num_layers=2, **settings)
        function, params = loss_and_gradients(model, tokens_BT, model.init_caches(B))
        traced = quick_jit(function).trace(params)
        counts[remat] = str(traced.jaxpr).count(RECOMPUTED)
        results[remat] = traced.lower().compile()(params)
    assert counts == dict(none=0, layer=count)
    for found, expected in zip(*map(jax.tree.leaves, results.values()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "memories", [(RecurrentCell, (2,)), ((RecurrentCell, (1,), 2),), (3,), ((HiddenMemory, (1,)),)]
)
def test_memories_that_are_no_pairs_are_refused(memories):
    with pytest.raises(ValueError, match=r"memories = .*\(\(@MyMemory, \(3, 7\)\),\)"):
        abstract("slide", memories=memories)


def test_a_memory_without_a_name_is_refused():
    class Nameless(LayerMemory):
        def __init__(self, rngs, sizes, window):
            pass

    with pytest.raises(ValueError, match=r"Nameless\.name"):
        abstract("slide", memories=((Nameless, (1,)),))
