"""Block feedback: its gradients, metrics, tables and dropout; what it computes is a law."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import VOCABULARY, WINDOW, random_model
from flax import nnx
from stores import small_vocabulary
from tiny_models import quick_jit
from tiny_run import one_device

from brt.generation.generator import Generator
from brt.memory import LayerMemory, keep_mask
from brt.models import ops
from brt.models.block_recurrent import feedback
from brt.models.block_recurrent.lact import LactMemory
from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.titans import TitansMemory

B, W, D, A = 2, WINDOW, 12, 8


def tokens(length):
    return np.random.default_rng(0).integers(0, VOCABULARY, (B, length)).astype(np.int32)


def draw(length):
    return np.random.default_rng(length).normal(size=(B, length, D)).astype(np.float32)


@pytest.mark.parametrize("memory", [LactMemory, TitansMemory])
def test_a_text_is_read_at_once_as_by_pieces(memory):
    model = random_model("feedback_fixed_skip", memories=((memory, (0,)),))
    generator, ids_T = Generator(model, small_vocabulary(VOCABULARY), W), tokens(2 * W + 3)[0]
    pieces = generator.begin()
    for piece in np.split(ids_T, [1, W + 2]):
        pieces = generator.read([piece], pieces)
    for a, b in zip(jax.tree.leaves(generator.read([ids_T])), jax.tree.leaves(pieces), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("feedback", [False, True])
def test_a_memory_adds_to_the_loss_and_drops_by_itself(feedback):
    masks = []

    class Adding(LayerMemory):
        name = "adding"

        def __init__(self, rngs, sizes, window):
            pass

        def init_cache(self, rows, dtype):
            return Nothing(jnp.zeros(rows, dtype))

        def prepare(self, dtype, key=None):
            masks.append(keep_mask(key, 0.5, (W, D), dtype))

        def update(self, cache, taken, weights):
            return cache, {"added_nats": jnp.float32(7)}

    memories = ((Adding, (0, 1)),)
    name = "feedback_fixed_skip" if feedback else "rec_fixed_skip"
    model = random_model(name, memories=memories, dropout=0.5)
    stack = quick_jit(model.stack)
    *_, metrics = stack(jnp.zeros((B, W, D)), model.init_caches(B), jax.random.key(3))
    assert metrics["added_nats"] == 14
    prepared = model.layers[0].prepare(jnp.float32, jax.random.key(5), W)
    assert (prepared.normed_PD != masks[-1]).any() and (prepared.mlp_PD != masks[-1]).any()


class Nothing(NamedTuple):
    x_B: jax.Array


def test_gradients_on_one_device_are_those_without_a_mesh():
    """The loop over blocks holds the loops of other layers' cells."""
    graph, params = nnx.split(random_model("feedback_two_cells"), nnx.Param)

    def total(params):
        model = nnx.merge(graph, params)
        x_BTD, *_ = model.stack(draw(2 * W), model.init_caches(B), None)
        return jnp.sum(jnp.sin(x_BTD))

    without_mesh = quick_jit(jax.grad(total))(params)
    with jax.set_mesh(one_device()):
        found = quick_jit(jax.grad(total))(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(without_mesh), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_segment_reports_the_mean_of_its_blocks():
    model = random_model("feedback_fixed_skip")
    stack = quick_jit(model.stack)
    caches, x_BTD = model.init_caches(B), draw(2 * W)
    _, _, whole = stack(x_BTD, caches)
    assert set(whole) == {f"layer{i}/state_share" for i in range(3)} | {
        "layer1/kept",
        "layer1/state_norm",
    }
    _, caches, first = stack(x_BTD[:, :W], caches)
    _, _, second = stack(x_BTD[:, W:], caches)
    for name, value in whole.items():
        if not name.startswith("layer2"):  # above the states, on the whole segment
            np.testing.assert_allclose(value, (first[name] + second[name]) / 2, rtol=1e-5)


def test_the_bias_tables_are_made_once_outside_the_loop(monkeypatch):
    model, made, around = random_model("feedback_fixed_skip"), [], []
    prepare = Layer.prepare

    def count(layer, *inputs):
        made.append(layer)
        return prepare(layer, *inputs)

    def loop(*inputs):
        around.append(len(made))
        found = ops.scan_blocks(*inputs)
        around.append(len(made))
        return found

    monkeypatch.setattr(Layer, "prepare", count)
    monkeypatch.setattr(feedback, "stack_scan", lambda _: loop)
    jax.eval_shape(model, jnp.asarray(tokens(3 * W)), model.init_caches(B))
    assert around == [3, 3] and len(made) == 3


def test_all_blocks_drop_the_same_entries_as_without_feedback():
    """Equal tokens, attention that adds nothing: the masks of the MLP's output remain."""
    model = random_model("feedback_fixed_skip", dropout=0.5, num_layers=1, recurrent_layers=(0,))
    (layer,) = model.layers
    layer.output_CD[...] = jnp.zeros_like(layer.output_CD[...])
    x_BTD = np.repeat(draw(1), 2 * W, axis=1)
    caches = model.init_caches(B)

    @quick_jit
    def run(key):
        prepared = layer.prepare("float32", key, W, layer.num_states)
        y_BTD, _, _ = feedback.run_blocks(model.layers, x_BTD, caches, [key])
        return y_BTD, prepared.mlp_PD

    y_BTD, mask_PD = run(jax.random.key(0))
    kept = np.abs(y_BTD - x_BTD)[0] > 1e-4
    assert 0.1 < kept.mean() < 0.9
    np.testing.assert_array_equal(kept[:W], kept[W:])
    assert not kept[:W][np.asarray(mask_PD) == 0].any()
    assert (kept != (np.abs(run(jax.random.key(1))[0] - x_BTD)[0] > 1e-4)).any()
