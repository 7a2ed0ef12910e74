"""The recurrent cell: its states, its steps and their order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from flax import nnx
from tiny_models import OneKey, quick_jit

from brt.models.block_recurrent.cell import (
    ARRANGEMENTS,
    ByHead,
    CellCarry,
    RecurrentCell,
    StateCache,
)
from brt.models.block_recurrent.gates import KINDS
from brt.models.block_recurrent.memory import LayerTokens
from brt.models.caches import WindowCache
from brt.models.ops import heads_first, unit_heads
from brt.models.sizes import Sizes

D, H, K, F, S, W, B = 12, 2, 4, 10, 3, 4, 2
A = H * K
ALL = [
    dict(gate=gate, arrangement=arrangement, order="parallel")
    for gate, arrangement in itertools.product(KINDS, ARRANGEMENTS)
] + [
    dict(gate="fixed", arrangement="dual", order="sequential"),
    dict(gate="lstm", arrangement="skip", order="sequential"),
]
every_cell = pytest.mark.parametrize("settings", ALL, ids=lambda s: "-".join(s.values()))


def random_cell(**settings):
    """A cell with random parameters, out of a random model."""
    model = random_model("slide", num_layers=1, recurrent_layers=(0,), **settings)
    return model.layers[0].cell


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float32)


def tokens(blocks=2):
    """Keys, of unit length, and values of blocks of tokens."""
    return unit_heads(draw(B, blocks * W, H, K, seed=1)), draw(B, blocks * W, H, K, seed=2)


def by_block(k_BJHK, v_BJHK):
    """Keys and values of each block of W tokens, with heads first."""
    parts = (jnp.split(heads_first(x), x.shape[1] // W, axis=2) for x in (k_BJHK, v_BJHK))
    return [ByHead(*block) for block in zip(*parts, strict=True)]


@quick_jit
def step(graph_and_params, states_BSD, k_BJHK, v_BJHK):
    cell = nnx.merge(*graph_and_params)
    before, block = by_block(k_BJHK, v_BJHK)
    carry = CellCarry(states_BSD, before)
    return cell.step(cell.prepare(jnp.float32), carry, block)[0].states_BSD


def next_states(cell, states_BSD, k_BJHK, v_BJHK):
    return step(nnx.split(cell), states_BSD, k_BJHK, v_BJHK)


# What it computes


@pytest.mark.parametrize(
    ("settings", "num_states"), [*((settings, 7) for settings in ALL), (ALL[0], 1)], ids=str
)
def test_states_and_window_are_independent(settings, num_states):
    cell = random_cell(num_states=num_states, **settings)
    (states_BSD,) = cell.init_cache(B, jnp.bfloat16)
    assert states_BSD.shape == (B, num_states, D) and states_BSD.dtype == jnp.float32
    np.testing.assert_array_equal(states_BSD, [cell.initial_states_SD[...]] * B)
    found = next_states(cell, states_BSD, *tokens())
    assert found.shape == states_BSD.shape and found.dtype == states_BSD.dtype
    assert (found[0] != found[1]).all()  # rows that read other tokens


# Over blocks


def on_segment(cell, blocks, known=None):
    """The cell on a segment of so many blocks after one, and its inputs."""
    k_BTHK, v_BTHK = tokens(blocks + 1)
    window = WindowCache(k_BTHK[:, :W], v_BTHK[:, :W])
    read = LayerTokens(None, None, k_BTHK[:, W:], v_BTHK[:, W:], None)
    cache, weights = StateCache(draw(B, S, D)), cell.prepare(jnp.float32)
    states = cell.states(cache, jnp.float32, weights) if known else None
    return quick_jit(cell)(cache, read, window, None, weights, states)


@pytest.mark.parametrize("settings", [ALL[0], ALL[5], ALL[6]], ids=lambda s: "-".join(s.values()))
def test_the_loop_over_blocks_is_one_step_after_another(settings):
    cell = random_cell(**settings)
    _, last, seen, metrics = on_segment(cell, 3)
    weights, shares, one_step = cell.prepare(jnp.float32), [], quick_jit(cell.step)
    before, *blocks = by_block(*tokens(4))
    carry = CellCarry(draw(B, S, D), before)
    for g, block in enumerate(blocks):
        # Tokens see the states from before their block.
        expected = cell.states(StateCache(carry.states_BSD), jnp.float32, weights)
        for x_BGSHK, y_B1SHK in zip(seen, expected, strict=True):
            np.testing.assert_allclose(x_BGSHK[:, g], y_B1SHK[:, 0], atol=1e-5)
        carry, _, reported = one_step(weights, carry, block)
        shares.append(reported["kept"])
    np.testing.assert_allclose(last.states_BSD, carry.states_BSD, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(metrics["kept"], np.mean(shares), rtol=1e-5)


def test_one_block_of_known_states_gives_what_the_loop_gives():
    cell = random_cell(gate="lstm")
    found, loop = on_segment(cell, 1, known=True), on_segment(cell, 1)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(loop), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_the_share_kept_is_that_of_the_gates():
    cell = random_cell(gate="fixed", arrangement="dual")
    cell.attention_gate.keep_bias_D[...] = jnp.full(D, np.log(3.0))  # keeps 3/4
    cell.feed_forward_gate.keep_bias_D[...] = jnp.full(D, 0.0)  # keeps 1/2
    before, block = by_block(*tokens())
    carry = CellCarry(draw(B, S, D), before)
    metrics = cell.step(cell.prepare(jnp.float32), carry, block)[2]
    np.testing.assert_allclose(metrics["kept"], 5 / 8, rtol=1e-6)


# What it refuses


def test_sequential_states_need_a_gate_of_their_own():
    settings = dict(num_states=S, order="sequential", arrangement="single")
    with pytest.raises(ValueError, match=r"RecurrentCell\.order.*single"):
        RecurrentCell(OneKey(), Sizes(D, H, K, F), W, **settings)
