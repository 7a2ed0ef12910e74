"""What every architecture's caches promise: names, clearing, resetting, both forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, QUICK_PRETRAINED, abstract, kinds, random_model
from flax import nnx

from brt.models.caches import clear_state, reset_rows, with_state

every_architecture = pytest.mark.parametrize("name", kinds(QUICK_PRETRAINED))
B = 5


def shapes_of(name):
    """Caches of an architecture in both forms, as shapes."""
    graph, params = nnx.split(abstract(name))

    def both(params):
        model = nnx.merge(graph, params)
        return model.init_caches(B), model.begin_decoding(model.init_caches(B))

    return jax.eval_shape(both, params)


def changed_by_clearing(cache):
    """Whether clearing returns anything but the arrays that it was called on."""
    shapes = jax.eval_shape(lambda: cache)
    traced = jax.make_jaxpr(lambda old, new: old.clear_state(new))(shapes, shapes).jaxpr
    return any(x is not y for x, y in zip(traced.outvars, traced.invars))


@every_architecture
def test_clearing_changes_the_caches_that_declare_a_state(name):
    caches, _ = shapes_of(name)
    assert with_state(caches) == list(ARCHITECTURES[name].cleared)
    assert with_state(caches) == [i for i, cache in enumerate(caches) if changed_by_clearing(cache)]


@every_architecture
def test_clearing_twice_is_clearing_once(name):
    model = random_model(name)
    empty = model.init_caches(B)
    rng = np.random.default_rng(0)
    used = jax.tree.map(lambda x: jnp.asarray(rng.integers(1, 3, x.shape), x.dtype), empty)
    once = clear_state(used, empty)
    jax.tree.map(np.testing.assert_array_equal, clear_state(once, empty), once)


@every_architecture
def test_rows_that_start_take_the_empty_cache_in_either_form(name):
    model = random_model(name)
    starts_B = jnp.arange(B) % 2 == 0
    empty = model.init_caches(B)
    for fresh in (empty, model.begin_decoding(empty)):
        used = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), fresh)
        found = reset_rows(used, fresh, starts_B)
        for leaves in zip(*map(jax.tree.leaves, (found, used, fresh)), strict=True):
            for row, (new, old, empty_row) in enumerate(zip(*map(np.asarray, leaves))):
                np.testing.assert_array_equal(new, empty_row if starts_B[row] else old)


@every_architecture
def test_nothing_read_in_the_decoding_form_is_the_segment_form(name):
    model = random_model(name)
    caches = model.init_caches(B)
    again = model.end_decoding(model.begin_decoding(caches))
    jax.tree.map(np.testing.assert_array_equal, again, caches)
