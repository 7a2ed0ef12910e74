"""One layer: how it begins, what it reports of its states, and which memories it takes.

What it computes is a law: of `slide`, `rec_*` and `rec_sequential` (test_references.py).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from flax import nnx
from tiny_models import OneKey, drawn, quick_jit

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


def read(layer, x_BTD):
    return run(nnx.split(layer), x_BTD, layer.init_cache(len(x_BTD), x_BTD.dtype))


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


@pytest.mark.parametrize(("arrangement", "kept"), [("skip", 0.8), ("dual", 0.65)])
def test_metrics_report_the_size_of_states_and_the_share_kept(arrangement, kept):
    layer = random_layer(recurrent=(0,), gate="fixed", arrangement=arrangement)
    layer.cell.attention_gate.keep_bias_D[...] = jnp.full(D, np.log(4.0))  # keeps 4/5
    if arrangement == "dual":
        layer.cell.feed_forward_gate.keep_bias_D[...] = jnp.full(D, 0.0)  # keeps 1/2
    _, cache, metrics = read(layer, draw(B, W, D))
    assert set(metrics) == {"kept", "state_norm", "state_share"}
    np.testing.assert_allclose(metrics["kept"], kept, rtol=1e-6)
    (states,) = cache.memories
    rms = np.sqrt(np.mean(np.square(np.asarray(states.states_BSD, np.float64))))
    np.testing.assert_allclose(metrics["state_norm"], rms, rtol=1e-5)


def test_the_states_share_compares_what_the_two_halves_add():
    layer, x_BTD = random_layer(recurrent=(0,)), draw(1, W, D)
    # Without the MLP and with one half of the output matrix zero, the layer adds the other half.
    layer.feed_forward.output_FD[...] = jnp.zeros((F, D))
    whole_CD, added = layer.output_CD[...], []
    _, _, metrics = read(layer, x_BTD)
    for half in (slice(0, A), slice(A, 2 * A)):
        layer.output_CD[...] = jnp.zeros_like(whole_CD).at[half].set(whole_CD[half])
        added.append(np.sqrt(np.mean(np.square(read(layer, x_BTD)[0] - x_BTD))))
    np.testing.assert_allclose(metrics["state_share"], added[1] / sum(added), rtol=1e-4)


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


def layer_with(kind, *names):
    """A layer with memories of one state each, of that class and those names."""
    memories = tuple(kind(OneKey(), draw(1, H, K), draw(1, H, K), name) for name in names)
    return Layer(OneKey(), Sizes(D, H, K, F), W, memories=memories)


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
    with pytest.raises(ValueError, match=f"Still.name = '{taken}'"):
        layer_with(Still, *names)


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
        ("init_cache", lambda rows: jnp.zeros((rows, 3))),
    ],
)
def test_a_memory_method_that_returns_something_else_is_named(method, result):
    right = {"update": lambda self, cache, *_: (cache, {})}
    wrong = type("Wrong", (Still,), right | {method: lambda self, cache, *_: result(cache)})
    with pytest.raises(ValueError, match=rf"Wrong\.{method} "):
        read(layer_with(wrong, "one"), draw(B, W, D))


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
    with pytest.raises(ValueError, match=rf"Wrong\..*{missing}"):
        layer_with(type("Wrong", (Still,), methods), "one")


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
    right = type("Right", (Still,), methods)
    assert [type(memory) for memory in layer_with(right, "one").memories] == [right]


def test_metrics_of_one_name_get_the_names_of_their_memories():
    class Reporting(Still):
        def update(self, cache, taken, weights):
            return cache, {"kept": jnp.ones(())}

    x_BTD = draw(B, W, D)
    assert read(layer_with(Reporting, "one"), x_BTD)[2].keys() == {"kept", "state_share"}
    found = read(layer_with(Reporting, "one", "two", "three"), x_BTD)[2]
    assert found.keys() == {"kept", "two/kept", "three/kept", "state_share"}


@pytest.mark.parametrize("method", ["read", "update"])
def test_a_metric_that_is_no_scalar_is_refused(method):
    class Reporting(Still):
        def update(self, cache, taken, weights):
            return cache, {"spread": jnp.ones(H)} if method == "update" else {}

        def read(self, cache, tokens, attended_BTHK, weights):
            return attended_BTHK, {"spread": jnp.ones(H)} if method == "read" else {}

    with pytest.raises(ValueError, match=rf"Reporting.{method} .* spread of shape \({H},\)"):
        read(layer_with(Reporting, "one"), draw(B, W, D))
