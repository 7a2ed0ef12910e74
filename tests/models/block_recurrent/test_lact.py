"""LaCT, and the digits of Titans, against their equations in float64."""

import json

import jax
import jax.numpy as jnp
import lact_numpy
import numpy as np
import pytest
import titans_numpy
from flax import nnx
from tiny_models import OneKey, quick_jit, randomised

from brt.models.block_recurrent import lact
from brt.models.block_recurrent.lact import LactMemory
from brt.models.block_recurrent.memory import LayerTokens
from brt.models.block_recurrent.titans import TitansMemory
from brt.models.sizes import Sizes

CASES = {  # tokens, chunk, K, N, V, values of a rate, momentum, muon
    "whole chunks": (12, 4, 4, 6, 4, 1, True, True),
    "fewer hidden units, wide values": (11, 4, 6, 3, 5, 1, False, True),
    "less than a chunk": (3, 8, 4, 4, 4, 1, False, False),
    "a rate of each input": (9, 3, 4, 5, 4, None, True, False),
}
WEIGHTS = "w0", "w2", "w1"  # as the released code names gate, up and down
RATES = "lr0", "lr2", "lr1"


def drawn(case):
    """Inputs of two heads, as recordings have them, in float64."""
    T, _, K, N, V, same, momentum, _ = CASES[case]
    rng = np.random.default_rng(0)
    sizes = {"w0": (N, K), "w1": (V, N), "w2": (N, K), "q": (T, K), "k": (T, K), "v": (T, V)}
    inputs = {name: rng.normal(size=(2, *size)) for name, size in sizes.items()}
    for name, size in zip(RATES, (K, K, N)):
        inputs[name] = rng.uniform(0, 0.1, (2, T, same or size))
    return inputs | ({"momentum": rng.uniform(size=(2, T, 1))} if momentum else {})


def expected(inputs, chunk, muon):
    """Outputs (2, T, V) of the loops in float64."""
    outputs = []
    for b in range(2):
        own = {name: x[b] for name, x in inputs.items()}
        rates = [*zip(*(own[name] for name in RATES))]
        tokens = own["q"], own["k"], own["v"], rates, own.get("momentum")
        outputs.append(lact_numpy.chunks([own[name] for name in WEIGHTS], *tokens, chunk, muon))
    return np.array(outputs)


def recorded(case, **settings):
    """A recording of the loops, without gradients."""
    inputs, (_, chunk, *_, muon) = drawn(case), CASES[case]
    stored = {
        "source": "block_causal_lact_swiglu",
        "chunk_size": chunk,
        "use_muon": muon,
    } | settings
    arrays = {f"in_{name}": x for name, x in inputs.items()}
    return arrays | {"out_o": expected(inputs, chunk, muon), "settings": json.dumps(stored)}


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_the_equations(check, case):
    """With `scripts/check_recording.py`, in float32 and float64."""
    assert check(recorded(case)) == 0


@pytest.mark.parametrize("settings", [dict(chunk_size=4), dict(use_muon=True)], ids=str)
def test_a_recording_of_other_settings_fails(check, settings):
    assert check(recorded("a rate of each input", **settings)) == 1


def test_a_block_descends_along_the_gradient_of_its_loss():
    rng = np.random.default_rng(1)
    sizes = (1, 2, 5, 3), (1, 2, 5, 3), (1, 2, 4, 5)
    weights = lact.FastWeights(*(jnp.asarray(rng.normal(size=size), "float32") for size in sizes))
    k, v = (jnp.asarray(rng.normal(size=(1, 7, 2, size)), "float32") for size in (3, 4))

    def loss(weights):
        return -jnp.sum(v * lact.swiglu(weights, k))

    descent = lact.weighted_sums(lact.swiglu_factors(weights, k, v), [1.0] * 3)
    for ours, theirs in zip(descent, jax.grad(loss)(weights), strict=True):
        np.testing.assert_allclose(ours, -theirs, atol=1e-5)


def test_the_gradient_of_muon_is_that_of_its_singular_values():
    rng = np.random.default_rng(5)
    x, direction, weights = rng.normal(size=(3, 4, 3))

    def loss(x):
        return jnp.sum(weights * lact.orthogonalised([x[None, None]])[0][0, 0])

    with jax.enable_x64(True):
        slope = jnp.sum(direction * quick_jit(jax.grad(loss))(x))
    ends = (np.sum(weights * lact_numpy.muon(x + s * 1e-6 * direction)) for s in (1, -1))
    np.testing.assert_allclose(slope, (next(ends) - next(ends)) / 2e-6, rtol=1e-6)


def test_gradients_of_zeros_are_finite():
    def loss(x):
        return jnp.sum(lact.orthogonalised([x])[0]) + jnp.sum(lact.length(x, -1))

    assert np.all(np.isfinite(quick_jit(jax.grad(loss))(jnp.zeros((1, 2, 3, 4)))))


def test_a_step_of_muon_is_nearly_orthogonal():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(3, 2, 8, 16)), "float32")
    values = np.linalg.svd(lact.orthogonalised([x])[0], compute_uv=False)
    assert np.all(np.abs(values - 1) < 0.3)


# The memory in a layer.


def memory_of(**options):
    sizes = Sizes(width=12, num_heads=2, head_size=4, feed_forward_size=8)
    return randomised(LactMemory(OneKey(), sizes, 4, **options), 3)


def tokens_of(memory, T, dtype="float32"):
    """The tokens of two documents, and what they attended to."""
    D, H, K = memory.sizes.width, memory.sizes.num_heads, memory.sizes.head_size
    rng = np.random.default_rng(4)
    heads = [rng.normal(size=(2, T, H, K)) for _ in range(4)]
    heads[:2] = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in heads[:2])
    inputs = rng.normal(size=(2, T, D)), *heads
    x_BTD, q, k, v, attended = (jnp.asarray(x, dtype) for x in inputs)
    return LayerTokens(x_BTD, q, k, v, jnp.ones(H)), attended


def read_blocks(memory, tokens, attended, W):
    """Results of all blocks, and the last cache, one block after another."""
    graph, params = nnx.split(memory)

    @quick_jit
    def block(params, cache, tokens, attended):
        memory = nnx.merge(graph, params)
        weights = memory.prepare(attended.dtype)
        y, _ = memory.read(cache, tokens, attended, weights)
        return y, memory.update(cache, memory.take(tokens), weights)[0]

    cache, outputs = memory.init_cache(2, attended.dtype), []
    for start in range(0, attended.shape[1], W):
        part = slice(start, start + W)
        own = LayerTokens(*(x[:, part] for x in tokens[:4]), tokens.scale_H)
        y, cache = block(params, cache, own, attended[:, part])
        outputs.append(y)
    return jnp.concatenate(outputs, axis=1), cache


@pytest.mark.parametrize(
    ("kind", "options", "dtype", "blocks", "tolerance"),
    [
        (LactMemory, dict(muon=False), "float32", 64, 1e-4),
        (LactMemory, dict(muon=False), "bfloat16", 16, 0.1),
        (LactMemory, dict(muon=True), "float32", 8, 1e-3),
        (LactMemory, dict(muon=True), "bfloat16", 2, 0.1),
        (TitansMemory, dict(window=16), "float32", 32, 1e-4),
        (TitansMemory, dict(window=16), "bfloat16", 16, 0.1),
    ],
)
def test_blocks_keep_the_digits_of_their_type(kind, options, dtype, blocks, tolerance):
    """Values are up to 3; with Muon an error grows by half in each block."""
    sizes, T, W = Sizes(width=12, num_heads=2, head_size=8, feed_forward_size=8), 16 * blocks, 16
    memory = kind(nnx.Rngs(0), sizes, **{"window": W} | options)
    ours, cache = read_blocks(memory, *tokens_of(memory, T, dtype), W)
    params = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(memory)))
    reference = titans_numpy.Titans if kind is TitansMemory else lact_numpy.Lact
    loops, theirs = reference(params, **options), []
    tokens, attended = tokens_of(memory, T)
    x, q, k, v, attended = map(np.float64, (*tokens[:4], attended))
    heads = loops.begin(2, 8)
    for part in (slice(start, start + W) for start in range(0, T, W)):
        theirs += [*loops.mix(heads, q[0, part], attended[0, part])]
        heads = loops.after(heads, k[0, part], v[0, part], x[0, part])
    assert {x.dtype for x in jax.tree.leaves(cache)} == {jnp.dtype("float32")}
    assert ours.dtype == dtype
    np.testing.assert_allclose(np.float64(ours[0]), theirs, rtol=0, atol=tolerance)


def test_without_momentum_the_cache_is_the_weights_alone():
    with_momentum, without = (
        sum(x.size for x in jax.tree.leaves(memory_of(momentum=m).init_cache(1, "float32")))
        for m in (True, False)
    )
    assert with_momentum == 2 * without == 2 * 3 * 2 * 4 * 4


def test_new_rates_add_up_to_the_published_sum_in_a_block():
    memory = LactMemory(nnx.Rngs(0), memory_of().sizes, 64)
    tokens, _ = tokens_of(memory, 64)
    rates = memory.take(tokens._replace(inputs_BTD=0 * tokens.inputs_BTD)).rates_BTHZ
    np.testing.assert_allclose(rates.sum(axis=1), 2.048, rtol=1e-4)
