"""Block feedback: every layer reads the state of the highest recurrent one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import VOCABULARY, WINDOW, random_model
from flax import nnx
from tiny_models import quick_jit, read_segment
from tiny_run import one_device

from brt.models.block_recurrent.cell import StateCache
from brt.models.block_recurrent.feedback import run_blocks, state_source
from brt.models.block_recurrent.layer import Layer

B, W, D, A = 2, WINDOW, 12, 8


def tokens(blocks=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCABULARY, (B, blocks * W)).astype(np.int32)


def draw(length):
    return np.random.default_rng(length).normal(size=(B, length, D)).astype(np.float32)


def read(model, tokens_BT, caches=None):
    caches = model.init_caches(B) if caches is None else caches
    return read_segment(model, tokens_BT, np.zeros(B, bool), caches)


def moved(before, after):
    return np.abs(np.asarray(before) - np.asarray(after)).max()


def test_the_state_after_a_block_moves_every_layer_of_the_next():
    """A layer's keys tell of all layers below it, so each is looked at through the next."""
    model = random_model("feedback_fixed_skip", recurrent_layers=(2,))
    empty, top = model.init_caches(B), state_source(model.layers)
    _, caches = read(model, tokens(1), empty)
    changed = list(caches)
    changed[top] = with_other_states(caches[top])
    before_BTV, before = read(model, tokens(1, seed=1), caches)
    after_BTV, after = read(model, tokens(1, seed=1), tuple(changed))
    # The lowest layer's keys are made of the embeddings alone.
    assert moved(before[0].window.keys_BWHK, after[0].window.keys_BWHK) == 0
    for i in (1, 2):
        assert moved(before[i].window.keys_BWHK, after[i].window.keys_BWHK) > 1e-3
    assert (np.abs(np.asarray(before_BTV) - after_BTV).max(axis=-1) > 1e-4).all()


def with_other_states(cache):
    """The cache of a layer with a cell, its states moved."""
    states, *others = cache.memories
    moved_states = StateCache(states.states_BSD + 1.0)
    return cache._replace(memories=(moved_states, *others))


def test_a_lower_layer_with_a_cell_of_its_own_reads_its_own():
    model = random_model("feedback_two_cells")
    empty = model.init_caches(B)
    _, before = read(model, tokens(1), empty)
    # Nothing above it but through layer 1: its own block's states do not hear of the top.
    changed = (*empty[:2], with_other_states(empty[2]))
    _, after = read(model, tokens(1), changed)
    jax.tree.map(np.testing.assert_array_equal, after[0].memories, before[0].memories)
    assert moved(after[1].window.keys_BWHK, before[1].window.keys_BWHK) == 0  # of layer 0's output
    assert moved(after[2].window.keys_BWHK, before[2].window.keys_BWHK) > 1e-3  # of layer 1's
    changed = (with_other_states(empty[0]), *empty[1:])
    _, after = read(model, tokens(1), changed)
    assert moved(after[1].window.keys_BWHK, before[1].window.keys_BWHK) > 1e-3


def test_gradients_on_one_device_are_those_without_a_mesh():
    """Traced only: the loop over blocks holds the loops of other layers' cells."""
    graph, params = nnx.split(random_model("feedback_two_cells"), nnx.Param)

    def total(params):
        model = nnx.merge(graph, params)
        x_BTD, caches = jnp.zeros((B, 2 * W, D)), model.init_caches(B)
        x_BTD, *_ = model.stack(x_BTD, caches, None)
        return jnp.sum(x_BTD)

    without_mesh = jax.eval_shape(jax.grad(total), params)
    with jax.set_mesh(one_device()):
        found = jax.eval_shape(jax.grad(total), params)
    jax.tree.map(np.testing.assert_equal, found, without_mesh)


@pytest.mark.parametrize(
    "name",
    [
        *("feedback_two_cells", "feedback_memorizing"),
        pytest.param("feedback_kernel", marks=pytest.mark.slow),
    ],
)
def test_without_the_states_half_feedback_is_recurrence(name):
    """The same layers, not driven block by block."""
    model = random_model(name)
    plain = random_model(name, feedback=False)
    for i, layer in enumerate(model.layers):
        if layer.num_states:
            plain.layers[i] = layer
            continue
        layer.output_CD[...] = layer.output_CD[...].at[A:].set(0.0)
        plain.layers[i].output_AD[...] = layer.output_CD[...][:A]
        for key in ("queries_DA", "keys_DA", "values_DA", "attention_scale_H"):
            getattr(plain.layers[i], key)[...] = getattr(layer, key)[...]
        for key in ("attention_norm", "feed_forward_norm", "feed_forward", "relative_bias"):
            setattr(plain.layers[i], key, getattr(layer, key))
    for key in ("embedding_VD", "begin_D"):
        getattr(plain, key)[...] = getattr(model, key)[...]
    plain.final_norm = model.final_norm
    logits_BTV, caches = read(model, tokens(3))
    expected_BTV, expected = read(plain, tokens(3))
    np.testing.assert_allclose(logits_BTV, expected_BTV, rtol=0, atol=2e-5)
    for found, cache in zip(jax.tree.leaves(caches), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, cache, rtol=0, atol=5e-5)


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
    model, made = random_model("feedback_fixed_skip"), []
    prepare = Layer.prepare

    def count(layer, *inputs):
        made.append(layer)
        return prepare(layer, *inputs)

    monkeypatch.setattr(Layer, "prepare", count)
    trace = str(jax.make_jaxpr(model)(jnp.asarray(tokens(3)), model.init_caches(B)))
    assert len(made) == 3
    assert trace.count("scan[") >= 1


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
        y_BTD, _, _ = run_blocks(model.layers, x_BTD, caches, [key])
        return y_BTD, prepared.mlp_PD

    y_BTD, mask_PD = run(jax.random.key(0))
    kept = np.abs(y_BTD - x_BTD)[0] > 1e-4
    assert 0.1 < kept.mean() < 0.9
    np.testing.assert_array_equal(kept[:W], kept[W:])
    assert not kept[:W][np.asarray(mask_PD) == 0].any()
    assert (kept != (np.abs(run(jax.random.key(1))[0] - x_BTD)[0] > 1e-4)).any()
