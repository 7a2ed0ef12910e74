"""A scan over layers computes the same as a loop over layers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import abstract, random_model, segment_length
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import quick_jit

from brt.models.fast import layer_scan
from brt.models.fast.layer_scan import run_layers


class Affine(nnx.Module):
    """x times a matrix; `kind` is part of its structure."""

    def __init__(self, seed, kind):
        self.kind = kind
        rng = np.random.default_rng(seed)
        self.matrix_DE = nnx.Param(jnp.asarray(rng.normal(size=(3, 3))))


def affine(layer, x_BD, cache_BD):
    x_BD = jnp.tanh(x_BD @ layer.matrix_DE[...]) + (layer.kind == "b")
    return x_BD, (cache_BD + x_BD, x_BD.sum())


def assert_close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=10)
@given(st.text("ab", min_size=1, max_size=6), st.sampled_from([(), (2,), (0, 3)]))
def test_equal_layers_compute_what_a_plain_loop_does(kinds, narrow):
    """For any order of kinds; an input of another type makes a layer unlike its neighbours."""
    with jax.enable_x64(True):
        layers = [Affine(seed, kind) for seed, kind in enumerate(kinds)]
        rng = np.random.default_rng(0)
        caches = [jnp.asarray(rng.normal(size=(2, 3))) for _ in kinds]
        caches = [x.astype(jnp.float32) if i in narrow else x for i, x in enumerate(caches)]
        x_BD = expected = jnp.asarray(rng.normal(size=(2, 3)))
        expected_outputs = []
        for layer, cache in zip(layers, caches):
            expected, output = affine(layer, expected, cache)
            expected_outputs.append(output)
        for fewest in (2, math.inf):
            y_BD, outputs = run_layers(affine, layers, x_BD, caches, fewest)
            assert_close(y_BD, expected)
            jax.tree.map(assert_close, outputs, expected_outputs)


def test_neighbours_of_one_structure_are_one_scan():
    layers = [Affine(seed, kind) for seed, kind in enumerate("aaabaa")]

    def program(x_BD, fewest):
        return run_layers(affine, layers, x_BD, [x_BD] * 6, fewest)

    for fewest, lengths in ((2, [3, 2]), (3, [3]), (4, [])):
        jaxpr = jax.make_jaxpr(program, static_argnums=1)(jnp.ones((2, 3)), fewest)
        scans = [each for each in jaxpr.eqns if each.primitive.name == "scan"]
        assert [each.params["length"] for each in scans] == lengths


def equations(jaxpr):
    """Number of equations of a program, those of loops and branches included."""
    total = 0
    for equation in jaxpr.eqns:
        inner = jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        )
        bodies = [getattr(x, "jaxpr", x) for x in inner]
        total += 1 + sum(equations(body) for body in bodies if hasattr(body, "eqns"))
    return total


def program_size(name, layers):
    """Equations of the gradient of a segment, for so many layers."""
    graph, params = nnx.split(abstract(name, num_layers=layers))

    def loss(params):
        model = nnx.merge(graph, params)
        x_BTD, after, _ = model.stack(
            model.embed(jnp.zeros((2, 8), jnp.int32)), model.init_caches(2)
        )
        return x_BTD.sum() + sum(x.sum() for x in jax.tree.leaves(after))

    return equations(jax.make_jaxpr(jax.grad(loss, allow_int=True))(params).jaxpr)


@pytest.mark.parametrize("name", ["lstm", pytest.param("txl_adaptive", marks=pytest.mark.slow)])
def test_more_layers_make_a_program_hardly_longer(name, monkeypatch):
    monkeypatch.setattr(layer_scan, "FEWEST", 5)
    short, longer = program_size(name, 7), program_size(name, 11)
    assert longer - short < 4 * program_size(name, 3) / 9, (short, longer)


@pytest.mark.parametrize("name", ["txl_same_length", "lstm"])
def test_a_stack_with_a_scan_is_the_stack_without(name, monkeypatch):
    """Outputs, caches, metrics and gradients, with dropout: each layer has its own key."""
    with jax.enable_x64(True):
        model = random_model(name, num_layers=2, dtype="float64", dropout=0.5)
        tokens_BT = np.random.default_rng(0).integers(0, 17, (2, segment_length(name)))
        graph, params = nnx.split(model)

        def two_segments(params):
            model = nnx.merge(graph, params)
            x_BTD, caches, _ = model.stack(model.embed(tokens_BT), model.init_caches(2))
            x_BTD, caches, metrics = model.stack(x_BTD, caches, jax.random.key(3))
            return jnp.sin(x_BTD).sum(), (x_BTD, caches, metrics)

        results = []
        for fewest in (math.inf, 2):
            monkeypatch.setattr(layer_scan, "FEWEST", fewest)
            # Another function each time: it is traced again.
            again = quick_jit(lambda params: jax.value_and_grad(two_segments, has_aux=True)(params))
            results.append(again(params))
        jax.tree.map(assert_close, *results)
