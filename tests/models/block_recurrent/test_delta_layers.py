"""Layers without attention: rules over several blocks, carried inputs, padding, refusals.

`recordings/delta_layers.npz` has inputs, outputs and gradients of transformers 5.24.0's
`Qwen3NextGatedDeltaNet` and `KimiLinearDeltaAttention`, float32, parameters by their names here.
"""

import functools
from pathlib import Path

import delta_layers_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import abstract
from flax import nnx
from tiny_models import OneKey, cast, drawn, parameters, plain, quick_jit, randomised, wide_types  # noqa: F401

from brt.models.block_recurrent.associative_memory import AssociativeMemory
from brt.models.block_recurrent.delta_layers import (
    TAPS,
    GatedDeltaLayer,
    KimiDeltaLayer,
    LinearAttentionLayer,
)
from brt.models.block_recurrent.gated_delta import HEAD_BLOCK
from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.memory import LayerTokens
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.block_recurrent.token_layer import TokenLayer
from brt.models.sizes import Sizes

D, H, K = 10, 2, 4
SIZES = Sizes(width=D, num_heads=H, head_size=K, feed_forward_size=8)
KINDS = GatedDeltaLayer, KimiDeltaLayer, LinearAttentionLayer
each_kind = pytest.mark.parametrize("kind", KINDS)
T = HEAD_BLOCK + 27
"""Tokens of two blocks, the second not full."""


@functools.cache
def memory_of(kind):
    with jax.enable_x64(True):
        model = randomised(drawn(lambda: kind(OneKey(), SIZES, 4 * HEAD_BLOCK)), 3)
        return cast(model, "float64")


def called(memory, cache, x_BTD, real_BT):
    tokens = LayerTokens(x_BTD, None, None, None, None)
    return memory.run(cache, tokens, jnp.zeros_like(x_BTD), real_BT)[:2]


@functools.cache
def compiled(kind):
    return quick_jit(functools.partial(called, memory_of(kind)))


def inputs(tokens=T, rows=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, tokens, D))


def run(kind, x_BTD, cache=None, real_BT=None):
    cache = memory_of(kind).init_cache(len(x_BTD), "float64") if cache is None else cache
    real_BT = np.ones(x_BTD.shape[:2], bool) if real_BT is None else real_BT
    return compiled(kind)(cache, x_BTD, real_BT)


def close(found, expected, tolerance=1e-11):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (1 + np.abs(b).max()))


@each_kind
def test_blocks_are_the_equations_token_by_token(kind):
    memory, x_BTD = memory_of(kind), inputs()
    reference = delta_layers_numpy.KINDS[kind.name](plain(parameters(memory)), H)
    y_BTD, cache = run(kind, x_BTD)
    for b, x_TD in enumerate(x_BTD):
        state, outputs = (np.zeros((H, K, K)), [], [], []), []
        for x_D in x_TD:
            y_D, state = reference.token(state, x_D)
            outputs.append(y_D)
        close(y_BTD[b], np.array(outputs))
        carried = [np.array(seen[1 - TAPS :]) for seen in state[1:]]
        close(jax.tree.map(lambda x, b=b: x[b], tuple(cache)), (state[0], *carried))


@pytest.mark.parametrize("kind", [GatedDeltaLayer, KimiDeltaLayer])
def test_outputs_and_gradients_are_those_of_transformers(kind):
    with np.load(Path(__file__).parents[1] / "recordings" / "delta_layers.npz") as archive:
        recording = dict(archive)
    sizes = Sizes(width=12, num_heads=2, head_size=4, feed_forward_size=8)
    graph, _ = nnx.split(nnx.eval_shape(lambda: kind(OneKey(), sizes, HEAD_BLOCK)), nnx.Param)

    def named(part):
        start = f"{kind.name}/{part}/"
        return {n.removeprefix(start): x for n, x in recording.items() if n.startswith(start)}

    def loss(params, x_BTD):
        memory = nnx.merge(graph, nnx.State(params))
        cache = memory.init_cache(2, "float64")
        y_BTD, _ = called(memory, cache, x_BTD, jnp.ones(x_BTD.shape[:2], bool))
        return jnp.sum(y_BTD * recording["weights_BTD"]), y_BTD

    run = quick_jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    # The recording is in float32; its rounding is all that differs.
    ours = jax.tree.map(np.float64, (named("params"), recording["inputs_BTD"]))
    (_, y_BTD), (grads, x_grad) = run(*ours)
    expected = recording[f"{kind.name}/out_BTD"], recording[f"{kind.name}/grad_BTD"]
    close((y_BTD, x_grad), expected, 1e-5)
    for name, theirs in named("grads").items():
        # Of the rates of channels, the recorded gradient has an error of 1.4e-4 against float64.
        close(grads[name], theirs, 1e-4 if name == "decay_rate_H" else 2e-5)


@each_kind
def test_pieces_of_any_length_are_the_whole(kind):
    lengths = 1, 1, 2, 1, T - 5  # shorter and longer than the carried inputs
    x_BTD, cache, found = inputs(), None, []
    whole = run(kind, x_BTD)
    for piece_BTD in np.split(x_BTD, np.cumsum(lengths)[:-1], axis=1):
        y_BTD, cache = run(kind, piece_BTD, cache)
        found.append(y_BTD)
    close((np.concatenate(found, axis=1), cache), whole)


@each_kind
def test_gradients_go_through_the_carried_cache(kind):
    memory, weights_BTD = memory_of(kind), inputs(8, rows=1, seed=4)[:, 4:]

    def loss(x_BTD, pieces):
        cache = memory.init_cache(1, "float64")
        for piece_BTD in jnp.split(x_BTD, pieces, axis=1):
            y_BTD, cache = called(memory, cache, piece_BTD, jnp.ones((1, piece_BTD.shape[1]), bool))
        return jnp.sum(y_BTD[:, -4:] * weights_BTD)  # of the second half

    grad = quick_jit(jax.grad(loss), static_argnums=1)
    whole, pieces = (grad(inputs(8, rows=1), each) for each in (1, 2))
    assert (np.abs(whole[0]).max(axis=-1) > 0).all()
    close(pieces, whole)


def test_a_layer_carries_a_matrix_three_inputs_and_no_window():
    model = abstract("gated_delta_layer", window=8)
    own, _, window = model.init_caches(1)
    assert sum(x.size for x in own) == 2 * 4 * 4 + 3 * 3 * 8
    assert window.window.keys_BWHK.shape == (1, 8, 2, 4)
    kinds = [type(layer) for layer in model.layers]
    assert kinds == [TokenLayer, TokenLayer, Layer]
    assert model.windows_reach() == 8
    assert stack((LinearAttentionLayer, (0, 1))).windows_reach() == 0


def stack(*memories, **settings):
    sizes = dict(vocabulary_size=11, num_layers=2, width=D, num_heads=H, head_size=K)
    build = functools.partial(BlockRecurrentTransformer, OneKey(), feed_forward_size=8, window=4)
    return nnx.eval_shape(lambda: build(**sizes, memories=memories, **settings))


def test_a_layer_without_attention_has_no_other_memory():
    stack((GatedDeltaLayer, (0,)), (AssociativeMemory, (1,)))
    with pytest.raises(ValueError, match="AssociativeMemory"):
        stack((GatedDeltaLayer, (0,)), (AssociativeMemory, (0, 1)))


def test_layers_without_attention_cannot_read_states_of_another():
    with pytest.raises(ValueError, match="feedback = False"):
        stack((GatedDeltaLayer, (0,)), recurrent_layers=(1,), feedback=True)


class NotOfTokens(AssociativeMemory):
    replaces_attention = True


def test_a_memory_of_blocks_cannot_replace_attention():
    with pytest.raises(TypeError, match=r"NotOfTokens.*needs a TokenMemory"):
        stack((NotOfTokens, (0,)))


class Narrow(LinearAttentionLayer):
    def run(self, cache, tokens, attended_BTHK, real_BT):
        y_BTD, cache, metrics = super().run(cache, tokens, attended_BTHK, real_BT)
        return y_BTD[..., :1], cache, metrics


def test_a_result_of_another_shape_is_refused():
    layer = drawn(lambda: TokenLayer(OneKey(), SIZES, 4, 0.0, Narrow(OneKey(), SIZES, 4)))
    with pytest.raises(ValueError, match=r"Narrow.run returns .*\[1, 4, 1\]"):
        layer(jnp.zeros((1, 4, D)), layer.init_cache(1, "float64"))
