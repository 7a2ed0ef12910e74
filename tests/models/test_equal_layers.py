"""Layers that are equal are compiled once, and computed as if they were not."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import abstract, random_model, segment_length
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.models.fast import equal_layers
from brt.models.fast.equal_layers import FEWEST, EqualLayers
from brt.models.layers.dropout import dropout


class Affine(nnx.Module):
    """x times a matrix, and a sum that it carries; `kind` is part of its structure."""

    def __init__(self, seed, kind):
        self.kind = kind
        rng = np.random.default_rng(seed)
        self.matrix_DE = nnx.Param(jnp.asarray(rng.normal(size=(3, 3))))


def affine(layer, x_BD, cache_BD):
    x_BD = jnp.tanh(x_BD @ layer.matrix_DE[...]) + (layer.kind == "b")
    return x_BD, (cache_BD + x_BD, x_BD.sum())


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.text("ab", min_size=1, max_size=6), st.sampled_from([(), (2,), (0, 3)]))
def test_equal_layers_compute_what_a_plain_loop_does(kinds, wider):
    """For any order of kinds; caches of another type make a layer unlike its neighbours."""
    with jax.enable_x64(True):
        layers = [Affine(seed, kind) for seed, kind in enumerate(kinds)]
        rng = np.random.default_rng(0)
        caches = [jnp.asarray(rng.normal(size=(2, 3))) for _ in kinds]
        caches = [x.astype(jnp.float32) if i in wider else x for i, x in enumerate(caches)]
        x_BD = expected = jnp.asarray(rng.normal(size=(2, 3)))
        one_by_one = []
        for layer, cache in zip(layers, caches):
            expected, returned = affine(layer, expected, cache)
            one_by_one.append(returned)
        for fewest in (2, math.inf):
            equal = EqualLayers(layers, caches, fewest)
            found, returned = equal.run(affine, x_BD, equal.split(caches))
            assert_close(found, expected)
            jax.tree.map(assert_close, equal.joined(returned), one_by_one)
            named = "".join(str(i in wider) + kind for i, kind in enumerate(kinds))
            changes = [i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]]
            changes += [i for i in range(1, len(kinds)) if (i in wider) != (i - 1 in wider)]
            groups = 1 + len(set(changes)) if fewest == 2 else len(kinds)
            assert len(equal.groups) == groups, named


def equations(jaxpr):
    """The equations of a program, those of its loops and branches too."""
    total = 0
    for equation in jaxpr.eqns:
        inner = jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        )
        bodies = [getattr(x, "jaxpr", x) for x in inner]
        total += 1 + sum(equations(body) for body in bodies if hasattr(body, "eqns"))
    return total


def program_of(name, layers, **overrides):
    """Equations of the gradient of a segment read by a model of so many layers."""
    model = abstract(name, num_layers=layers, **overrides)
    graph, params = nnx.split(model)

    def loss(params):
        model = nnx.merge(graph, params)
        caches = model.init_caches(2)
        x_BTD, after, _ = model.stack(model.embed(jnp.zeros((2, 8), jnp.int32)), caches)
        return x_BTD.sum() + sum(x.sum() for x in jax.tree.leaves(after))

    return equations(jax.make_jaxpr(jax.grad(loss, allow_int=True))(params).jaxpr)


@pytest.mark.parametrize(
    "name",
    [
        *("slide", "lstm"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("rec_fixed_skip", "txl_adaptive")
        ),
    ],
)
def test_more_layers_make_a_program_hardly_longer(name, monkeypatch):
    """What grows is the taking apart of arrays of all layers, not what a layer computes."""
    monkeypatch.setattr(equal_layers, "FEWEST", 7)
    short, longer = program_of(name, 10), program_of(name, 16)
    a_layer = program_of(name, 3) / 3
    assert longer - short < 6 * a_layer / 3, (short, longer, a_layer)


def test_layers_with_memories_stand_apart_from_their_neighbours(monkeypatch):
    monkeypatch.setattr(equal_layers, "FEWEST", 7)
    model = random_model("rec_fixed_skip", num_layers=20, recurrent_layers=(2, 14))
    equal = EqualLayers(model.layers, model.init_caches(2))
    loops = [list(group.indices) for group in equal.groups if len(group.indices) > 1]
    assert loops == [[*range(3, 14)]]


def test_dropout_of_equal_layers_is_that_of_each_layers_own_key():
    model = random_model("slide", num_layers=FEWEST, dropout=0.5)
    x_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 12)), jnp.float32)
    caches, key = model.init_caches(2), jax.random.key(3)
    found, _, _ = model.stack(x_BTD, caches, key)
    keys = jax.random.split(key, len(model.layers) + 1)
    for layer, cache, layer_key in zip(model.layers, caches, keys):
        x_BTD, _, _ = layer(x_BTD, cache, layer.prepare(x_BTD.dtype, layer_key, 8))
    expected = dropout(model.final_norm(x_BTD), 0.5, keys[-1])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["rec_fixed_skip", pytest.param("txl_adaptive", marks=pytest.mark.slow)]
)
def test_a_stack_with_a_loop_is_the_stack_without(name, monkeypatch):
    """Outputs, caches, monitors and gradients; every architecture of the laws is too short."""
    with jax.enable_x64(True):
        model = random_model(name, num_layers=4, dtype="float64")
        length = segment_length(name)
        tokens_BT = np.random.default_rng(0).integers(0, 17, (2, length))
        graph, params = nnx.split(model)

        def both_segments(params):
            model = nnx.merge(graph, params)
            x_BTD, caches, _ = model.stack(model.embed(tokens_BT), model.init_caches(2))
            x_BTD, caches, monitors = model.stack(x_BTD, caches)
            return jnp.sin(x_BTD).sum(), (x_BTD, caches, monitors)

        found = []
        for fewest in (math.inf, 2):
            monkeypatch.setattr(equal_layers, "FEWEST", fewest)
            found.append(jax.value_and_grad(both_segments, has_aux=True)(params))
        jax.tree.map(assert_close, *found)
