"""What every architecture's caches promise: names, clearing, resetting, both forms."""

import functools

import jax
import numpy as np
import pytest
from architectures import ARCHITECTURES, QUICK_PRETRAINED, abstract, kinds, random_model
from flax import nnx
from tiny_models import quick_jit

from brt.models.caches import clear_state, cleared, select_rows, with_state

every_architecture = pytest.mark.parametrize("name", kinds(QUICK_PRETRAINED))
B = 5


def both_forms(graph, params):
    """Empty caches of segments and of decoding."""
    model = nnx.merge(graph, params)
    caches = model.init_caches(B)
    return caches, model.begin_decoding(caches)


@functools.cache
def empty_caches(name):
    return quick_jit(both_forms, static_argnums=0)(*nnx.split(random_model(name)))


def changed_by_clearing(cache):
    """Whether clearing returns anything but the arrays that it was called on."""
    shapes = jax.eval_shape(lambda: cache)
    traced = jax.make_jaxpr(cleared)(shapes, shapes).jaxpr
    return any(x is not y for x, y in zip(traced.outvars, traced.invars))


@every_architecture
def test_clearing_changes_the_caches_that_declare_a_state(name):
    graph, params = nnx.split(abstract(name))
    caches, _ = jax.eval_shape(functools.partial(both_forms, graph), params)
    assert with_state(caches) == list(ARCHITECTURES[name].cleared)
    assert with_state(caches) == [i for i, cache in enumerate(caches) if changed_by_clearing(cache)]


@every_architecture
def test_clearing_spares_empty_caches_and_those_cleared_before(name):
    empty, _ = empty_caches(name)
    jax.tree.map(np.testing.assert_array_equal, clear_state(empty, empty), empty)
    rng = np.random.default_rng(0)
    used = jax.tree.map(lambda x: rng.integers(1, 3, x.shape).astype(x.dtype), empty)
    once = clear_state(used, empty)
    jax.tree.map(np.testing.assert_array_equal, clear_state(once, empty), once)


@every_architecture
def test_rows_that_start_take_the_empty_cache_in_either_form(name):
    starts_B = np.arange(B) % 2 == 0
    for fresh in empty_caches(name):
        used = jax.tree.map(lambda x: np.asarray(x) + np.ones((), x.dtype), fresh)
        found = quick_jit(select_rows)(starts_B, fresh, used)
        for leaves in zip(*map(jax.tree.leaves, (found, used, fresh)), strict=True):
            for row, (new, old, empty_row) in enumerate(zip(*map(np.asarray, leaves))):
                np.testing.assert_array_equal(new, empty_row if starts_B[row] else old)


@every_architecture
def test_nothing_read_in_the_decoding_form_is_the_segment_form(name):
    caches, decoding = empty_caches(name)
    again = quick_jit(random_model(name).end_decoding)(decoding)
    jax.tree.map(np.testing.assert_array_equal, again, caches)
