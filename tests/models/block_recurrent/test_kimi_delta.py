"""Kimi Delta Attention in chunks against its recurrence, token by token in float64."""

import functools
import json

import jax
import jax.numpy as jnp
import kimi_delta_numpy
import numpy as np
import pytest
from flax import nnx
from tiny_models import OneKey, quick_jit

from brt.models.block_recurrent.gated_delta import CHANNEL_BLOCK, block_length, delta_rule
from brt.models.block_recurrent.kimi_delta import KimiDeltaMemory
from brt.models.sizes import Sizes

B, H, K, V = 2, 2, 6, 5
W = block_length(K, CHANNEL_BLOCK)
DECAYS = {
    "none": (0, 0),
    "weak": (-0.1, 0),
    "strong": (-5, -4.9),
    "mixed": (-5, 0),
    "beyond float32": (-200, 0),
}


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def drawn(T, low=-1.0, high=0.0, seed=0):
    """A state, and the inputs of T tokens, in float64."""
    rng = np.random.default_rng(seed)
    q, k = (unit(rng.normal(size=(B, T, H, K))) for _ in range(2))
    decays = rng.uniform(low, high, (B, T, H, K))
    decays[:, : T // 4] = low  # strong ones before weak ones: where differences lose digits
    inputs = q, k, rng.normal(size=(B, T, H, V)), decays, rng.uniform(size=(B, T, H))
    return rng.normal(size=(B, H, K, V)), inputs


def expected(state, inputs):
    rows = [kimi_delta_numpy.recurrence(*row) for row in zip(state, *inputs, strict=True)]
    read, after = zip(*rows, strict=True)
    return np.array(after), np.array(read)


def recurrence(state, inputs):
    """As `expected`, in JAX, for its gradients."""

    def token(S_BHKV, x):
        q, k, v, log_decay, step = x
        S_BHKV = jnp.exp(log_decay)[..., None] * S_BHKV
        error_BHV = v - jnp.einsum("BHK,BHKV->BHV", k, S_BHKV)
        S_BHKV = S_BHKV + (step[..., None] * k)[..., None] * error_BHV[..., None, :]
        return S_BHKV, jnp.einsum("BHK,BHKV->BHV", q, S_BHKV)

    state, read = jax.lax.scan(token, state, tuple(jnp.moveaxis(x, 1, 0) for x in inputs))
    return state, jnp.moveaxis(read, 0, 1)


@functools.cache  # one compilation for all decays
def compiled(rule):
    def loss(state, inputs):
        outputs = rule(state, inputs)
        return sum(jnp.sum(jnp.sin(x + 1)) for x in outputs), outputs

    return quick_jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))


def with_gradients(rule, state, inputs):
    """Outputs, and gradients of a loss of all of them, to the state first."""
    (_, outputs), gradients = compiled(rule)(state, inputs)
    return jax.tree.map(np.asarray, [*outputs, gradients[0], *gradients[1]])


def close(found, theirs, tolerance):
    for ours, x in zip(found, theirs, strict=True):
        np.testing.assert_allclose(ours, x, rtol=0, atol=tolerance * np.abs(x).max() + 1e-37)


@pytest.mark.parametrize("decays", DECAYS)
def test_outputs_and_gradients_are_those_of_the_recurrence(decays):
    state, inputs = drawn(W + 7, *DECAYS[decays])
    with jax.enable_x64(True):
        theirs = with_gradients(recurrence, state, inputs)
        close(theirs[:2], expected(state, inputs), 1e-12)
        close(with_gradients(delta_rule, state, inputs), theirs, 1e-11)
    single = jax.tree.map(jnp.float32, (state, inputs))
    close(with_gradients(delta_rule, *single), theirs, 5e-6)


def test_4096_tokens_keep_the_digits_of_float32():
    state, inputs = drawn(4096, -5, 0, seed=1)
    inputs[3][:, ::2] /= 100
    state, inputs = state[:1, :1], tuple(x[:1, :, :1] for x in inputs)
    single = jax.tree.map(jnp.float32, (state, inputs))
    close(quick_jit(delta_rule)(*single), expected(state, inputs), 3e-6)


def test_decays_are_float32_for_all_activations():
    memory = KimiDeltaMemory(OneKey(), Sizes(24, 2, 16, 8), W)
    x_BTD = jnp.zeros((1, W, 24), "bfloat16")
    assert jax.eval_shape(memory.log_decays, x_BTD).dtype == "float32"


def test_a_new_memory_keeps_between_one_and_a_thousand_tokens():
    sizes = Sizes(width=24, num_heads=8, head_size=16, feed_forward_size=8)
    memory = KimiDeltaMemory(nnx.Rngs(0), sizes, W)
    decays = -np.asarray(memory.log_decays(jnp.zeros((1, 1, 24))))
    assert 0.001 <= decays.min() < 0.01 and 0.3 < decays.max() <= 1.6


def test_a_recording_with_fewer_heads_of_keys_is_replayed(check):
    state, (q, k, *others) = drawn(W + 3, -3)
    few = q[:, :, ::2], k[:, :, ::2]
    q, k = (np.repeat(x, 2, axis=2) for x in few)
    after, read = expected(state, (0.3 * q, k, *others))
    names = "initial_state", "q", "k", "v", "g", "beta"
    inputs = {f"in_{name}": x for name, x in zip(names, (state, *few, *others), strict=True)}
    settings = json.dumps({"source": "naive_recurrent_kda", "scale": 0.3})
    recording = inputs | {"out_o": read, "out_final_state": after, "settings": settings}
    assert check(recording) == 0
    for name in ("out_o", "out_final_state"):
        assert check(recording | {name: recording[name] + 1e-3}) == 1
