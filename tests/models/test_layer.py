"""One layer: what it weighs, what its tokens see, and what it says of its states."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import paper_numpy as paper
import pytest
from architectures import random_model
from flax import nnx
from tiny_models import OneKey, drawn, parameters, quick_jit

from brt.models.block_recurrent.decoding import begin_decoding, decode
from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.memory import BlockStates, LayerMemory, MemoryResult
from brt.models.layers.initializers import parameter
from brt.models.sizes import Sizes

D, H, K, F, W, S, B = 12, 2, 4, 10, 4, 3, 2
A = H * K


def random_layer(**settings):
    recurrent = settings.pop("recurrent", ())
    return random_model("slide", num_layers=1, recurrent_layers=recurrent, **settings).layers[0]


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float32)


@quick_jit
def run(graph_and_params, x_BTD, cache):
    layer = nnx.merge(*graph_and_params)
    return layer(x_BTD, cache, layer.prepare(x_BTD.dtype))


def read(layer, x_BTD, cache=None):
    cache = layer.init_cache(len(x_BTD), x_BTD.dtype) if cache is None else cache
    return run(nnx.split(layer), x_BTD, cache)


def weights(layer):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters(layer))


# What it weighs


def test_matrices_begin_with_variance_one_over_their_input():
    layer = drawn(lambda: Layer(nnx.Rngs(0), Sizes(320, 4, 100, 500), W, reads_states=True))
    for matrix, fan_in in (
        (layer.queries_DA, 320),
        (layer.keys_DA, 320),
        (layer.values_DA, 320),
        (layer.cross_queries_DA, 320),
        (layer.output_CD, 800),
        (layer.feed_forward.hidden_DF, 320),
        (layer.feed_forward.output_FD, 500),
    ):
        assert matrix.shape[0] == fan_in
        assert abs(float(matrix[...].std()) * fan_in**0.5 - 1) < 0.02
    for scale in (layer.attention_scale_H, layer.cross_scale_H):
        assert (scale[...] == 1).all()


# What its tokens see


def mlp(layer, x_TD):
    p = weights(layer)
    h_TF = paper.rms_norm(x_TD, p["feed_forward_norm"]) @ p["feed_forward"]["hidden_DF"]
    return x_TD + np.maximum(h_TF, 0) @ p["feed_forward"]["output_FD"]


def test_the_first_token_of_a_document_attends_to_nothing():
    """Not even to itself: what attention adds to it is zero."""
    layer, x_BTD = random_layer(), draw(B, 2 * W, D)
    y_BTD, _, metrics = read(layer, x_BTD)
    for b in range(B):
        alone_TD = mlp(layer, np.asarray(x_BTD[b], np.float64))
        np.testing.assert_allclose(y_BTD[b, 0], alone_TD[0], rtol=1e-4, atol=1e-4)
        assert (np.abs(y_BTD[b, 1:] - alone_TD[1:]).max(axis=-1) > 1e-2).all()
    assert metrics == {}


def test_a_token_reaches_itself_and_the_next_W_tokens_only():
    layer, x_BTD = random_layer(), draw(1, 4 * W, D)
    before, _, _ = read(layer, x_BTD)
    for j in range(4 * W):
        after, _, _ = read(layer, x_BTD.at[0, j].add(1.0))
        moved = np.flatnonzero((np.asarray(before) != after).any(axis=(0, 2)))
        assert moved.tolist() == list(range(j, min(j + W + 1, 4 * W)))


def test_the_cache_is_the_keys_and_values_of_the_last_block():
    layer, x_BTD = random_layer(), draw(B, 3 * W, D)
    _, cache, _ = read(layer, x_BTD)
    p = weights(layer)
    for b in range(B):
        y_WD = paper.rms_norm(np.asarray(x_BTD[b, 2 * W :], np.float64), p["attention_norm"])
        k_WHK = paper.unit_length((y_WD @ p["keys_DA"]).reshape(W, H, K))
        np.testing.assert_allclose(cache.window.keys_BWHK[b], k_WHK, atol=1e-5)
        v_WHK = (y_WD @ p["values_DA"]).reshape(W, H, K)
        np.testing.assert_allclose(cache.window.values_BWHK[b], v_WHK, atol=1e-5)


# What it says of its states


@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_without_the_states_half_a_recurrent_layer_is_plain(order):
    recurrent, x_BTD = random_layer(recurrent=(0,), order=order), draw(B, 2 * W, D)
    y_BTD, _, metrics = read(recurrent, x_BTD)
    assert 0.01 < metrics["state_share"] < 0.99
    plain = random_layer()
    plain.output_AD[...] = recurrent.output_CD[...][:A]
    for name in ("queries_DA", "keys_DA", "values_DA", "attention_scale_H"):
        getattr(plain, name)[...] = getattr(recurrent, name)[...]
    for name in ("attention_norm", "feed_forward_norm", "feed_forward", "relative_bias"):
        setattr(plain, name, getattr(recurrent, name))
    expected, _, _ = read(plain, x_BTD)
    assert np.abs(y_BTD - expected).max() > 0.1
    recurrent.output_CD[...] = recurrent.output_CD[...].at[A:].set(0.0)
    y_BTD, _, metrics = read(recurrent, x_BTD)
    np.testing.assert_allclose(y_BTD, expected, rtol=1e-5, atol=1e-5)
    assert metrics["state_share"] == 0


def test_metrics_report_the_size_of_states_and_the_share_kept():
    layer, x_BTD = random_layer(recurrent=(0,), gate="fixed", arrangement="skip"), draw(B, W, D)
    layer.cell.attention_gate.keep_bias_D[...] = jnp.full(D, np.log(4.0))
    _, cache, metrics = read(layer, x_BTD)
    assert set(metrics) == {"kept", "state_norm", "state_share"}
    np.testing.assert_allclose(metrics["kept"], 0.8, rtol=1e-6)
    (states,) = cache.memories
    rms = np.sqrt(np.mean(np.square(np.asarray(states.states_BSD, np.float64))))
    np.testing.assert_allclose(metrics["state_norm"], rms, rtol=1e-5)


def test_the_states_share_compares_what_the_two_halves_add():
    layer, x_BTD = random_layer(recurrent=(0,)), draw(1, W, D)
    # With no MLP and one half at a time, what is added is what that half gives.
    layer.feed_forward.output_FD[...] = jnp.zeros((F, D))
    whole_CD, added = layer.output_CD[...], []
    _, _, metrics = read(layer, x_BTD)
    for half in (slice(0, A), slice(A, 2 * A)):
        layer.output_CD[...] = jnp.zeros_like(whole_CD).at[half].set(whole_CD[half])
        added.append(np.sqrt(np.mean(np.square(read(layer, x_BTD)[0] - x_BTD))))
    np.testing.assert_allclose(metrics["state_share"], added[1] / sum(added), rtol=1e-4)


# Several memories


class Still(LayerMemory):
    """Offers the same states to every block, whatever it reads."""

    def __init__(self, rngs, keys_SHK, values_SHK, name):
        self.name = name
        self.num_states = len(keys_SHK)
        self.keys_SHK = parameter(rngs, lambda *_: keys_SHK, *keys_SHK.shape)
        self.values_SHK = parameter(rngs, lambda *_: values_SHK, *values_SHK.shape)

    def init_cache(self, rows, dtype):
        return StillCache(jnp.zeros((rows, 1)))

    def states(self, cache, dtype, weights):
        def repeated(x_SHK):
            return jnp.broadcast_to(x_SHK[...], (len(cache.unused_BN), 1, *x_SHK.shape))

        return BlockStates(repeated(self.keys_SHK), repeated(self.values_SHK))


class StillCache(NamedTuple):
    unused_BN: jax.Array

    def clear_state(self, empty):
        return empty


def test_the_states_of_several_memories_are_read_as_those_of_one():
    keys_SHK, values_SHK = draw(5, H, K), draw(5, H, K, seed=1)

    def with_states(*cuts):
        parts = zip(cuts, np.split(keys_SHK, cuts[:-1]), np.split(values_SHK, cuts[:-1]))
        memories = tuple(Still(OneKey(), k, v, f"until{cut}") for cut, k, v in parts)
        return Layer(nnx.Rngs(0), Sizes(D, H, K, F), W, memories=memories)

    x_BTD, found = draw(B, 2 * W, D), []
    for cuts in ((5,), (2, 5), (2, 3, 5)):
        layer = with_states(*cuts)
        assert len(layer.memories) == len(cuts) and layer.num_states == 5
        y_BTD, cache, _ = read(layer, x_BTD)
        decoded_BD, _ = quick_jit(functools.partial(decode, layer))(
            x_BTD[:, 0], begin_decoding(layer, cache)
        )
        found.append((y_BTD, decoded_BD))
    for others in found[1:]:
        for one, several in zip(found[0], others):
            np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-5)
    silent, _, _ = read(Layer(nnx.Rngs(0), Sizes(D, H, K, F), W), x_BTD)
    assert np.abs(silent - found[0][0]).max() > 1e-2


@pytest.mark.parametrize(
    ("names", "taken"),
    [(("one", "two", "one"), "one"), (("feed_forward",), "feed_forward"), (("window",), "window")],
)
def test_a_name_that_is_taken_in_its_layer_is_refused(names, taken):
    memories = tuple(Still(OneKey(), draw(1, H, K), draw(1, H, K), name) for name in names)
    with pytest.raises(ValueError, match=f"Still.name = '{taken}'"):
        Layer(OneKey(), Sizes(D, H, K, F), W, memories=memories)


def test_a_memory_with_states_needs_their_number():
    memory = Still(OneKey(), draw(1, H, K), draw(1, H, K), "still")
    memory.num_states = 0
    layer = Layer(OneKey(), Sizes(D, H, K, F), W, memories=(memory,))
    with pytest.raises(ValueError, match=r"Still\.states .*num_states"):
        read(layer, draw(B, W, D))


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("update", lambda cache: cache),
        ("update", lambda cache: (StillCache(cache.unused_BN[:, 0]), {})),
        ("update", lambda cache: (cache.unused_BN, {})),
        ("update", lambda cache: (cache, jnp.ones(3))),
        ("read", lambda cache: (jnp.zeros((B, W)), {})),
        (
            "__call__",
            lambda cache: MemoryResult(jnp.zeros((B, W, H, K)), cache.unused_BN, None, {}),
        ),
        ("__call__", lambda cache: (jnp.zeros((B, W, H, K)), cache)),
        ("__call__", lambda cache: cache.unused_BN),
    ],
)
def test_a_memory_method_that_returns_something_else_is_named(method, result):
    right = {"update": lambda self, cache, *_: (cache, {})}
    wrong = type("Wrong", (Still,), right | {method: lambda self, cache, *_: result(cache)})
    memory = wrong(OneKey(), draw(1, H, K), draw(1, H, K), "one")
    layer = Layer(OneKey(), Sizes(D, H, K, F), W, memories=(memory,))
    with pytest.raises(ValueError, match=rf"Wrong\.{method} "):
        read(layer, draw(B, W, D))


def test_a_result_of_init_cache_that_is_an_array_is_named():
    class Wrong(Still):
        def init_cache(self, rows, dtype):
            return jnp.zeros((rows, 3))

    memory = Wrong(OneKey(), draw(1, H, K), draw(1, H, K), "one")
    layer = Layer(OneKey(), Sizes(D, H, K, F), W, memories=(memory,))
    with pytest.raises(ValueError, match=r"Wrong\.init_cache"):
        layer.init_cache(B, "float32")


def method(*args):
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        (dict(decode=method), "decode.*update_after_block"),
        (dict(decode=method, update=method), "decode.*update_after_block"),
        (dict(__call__=method), "__call__.*update"),
    ],
)
def test_a_memory_that_decodes_differently_is_refused(methods, missing):
    memory = type("Wrong", (Still,), methods)(OneKey(), draw(1, H, K), draw(1, H, K), "one")
    with pytest.raises(ValueError, match=rf"Wrong\..*{missing}"):
        Layer(OneKey(), Sizes(D, H, K, F), W, memories=(memory,))


@pytest.mark.parametrize(
    "methods",
    [
        dict(update=method),
        dict(__call__=method, update=method),
        dict(__call__=method, update_after_block=method),
        dict(decode=method, update_after_block=method),
    ],
)
def test_a_memory_with_one_meaning_is_accepted(methods):
    memory = type("Right", (Still,), methods)(OneKey(), draw(1, H, K), draw(1, H, K), "one")
    assert Layer(OneKey(), Sizes(D, H, K, F), W, memories=(memory,)).memories == (memory,)


def test_metrics_of_one_name_get_the_names_of_their_memories():
    class Reporting(Still):
        def update(self, cache, taken, weights):
            return cache, {"kept": jnp.ones(())}

    def layer(*names):
        memories = tuple(Reporting(OneKey(), draw(1, H, K), draw(1, H, K), n) for n in names)
        return Layer(OneKey(), Sizes(D, H, K, F), W, memories=memories)

    x_BTD = draw(B, W, D)
    assert read(layer("one"), x_BTD)[2].keys() == {"kept", "state_share"}
    found = read(layer("one", "two", "three"), x_BTD)[2]
    assert found.keys() == {"kept", "two/kept", "three/kept", "state_share"}


@pytest.mark.parametrize("place", ["read", "update"])
def test_a_metric_that_is_no_scalar_is_refused(place):
    class Reporting(Still):
        def update(self, cache, taken, weights):
            return cache, {"spread": jnp.ones(H)} if place == "update" else {}

        def read(self, cache, tokens, attended_BTHK, weights):
            return attended_BTHK, {"spread": jnp.ones(H)} if place == "read" else {}

    memory = Reporting(OneKey(), draw(1, H, K), draw(1, H, K), "one")
    layer = Layer(OneKey(), Sizes(D, H, K, F), W, memories=(memory,))
    with pytest.raises(ValueError, match=rf"Reporting.{place} .* spread of shape \({H},\)"):
        read(layer, draw(B, W, D))


# Variants


def test_sequential_tokens_query_states_after_their_attention():
    """Section 3.1 gives no equations: two attentions, each with its projection and residual."""
    layer, x_BTD = (
        random_layer(recurrent=(0,), order="sequential", arrangement="dual"),
        draw(B, W, D),
    )
    y_BTD, _, _ = read(layer, x_BTD)
    p, told = weights(layer), paper.Settings(H, K, W)
    read_states = paper.state_keys_and_values(p["cell"], told, p["cell"]["initial_states_SD"])
    for b in range(B):
        x_WD = np.asarray(x_BTD[b], np.float64)
        y_WD = paper.rms_norm(x_WD, p["attention_norm"])
        zeros = np.zeros((W, H, K))
        q_WHK = paper.unit_length(paper.heads(y_WD, p["queries_DA"], told))
        k_WHK = paper.unit_length(paper.heads(y_WD, p["keys_DA"], told))
        k_XHK = np.concatenate([zeros, k_WHK])
        v_XHK = np.concatenate([zeros, paper.heads(y_WD, p["values_DA"], told)])
        self_WA = paper.windowed_attention(p, told, q_WHK, k_XHK, v_XHK)
        x_WD = x_WD + self_WA @ p["output_CD"][:A]
        y_WD = paper.rms_norm(x_WD, p["cross_norm"])
        q_WHK = paper.unit_length(paper.heads(y_WD, p["cross_queries_DA"], told))
        x_WD = (
            x_WD
            + paper.full_attention(q_WHK, *read_states, p["cross_scale_H"]) @ (p["output_CD"][A:])
        )
        np.testing.assert_allclose(y_BTD[b], mlp(layer, x_WD), rtol=1e-4, atol=1e-4)
