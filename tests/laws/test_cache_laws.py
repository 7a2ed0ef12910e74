"""What every architecture's caches promise: names, clearing, resetting, both forms."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, abstract, every, random_model
from flax import nnx

from brt.models.caches import clear_state, reset_rows, select_rows, with_state
from brt.models.transformer_xl.hidden_memory import HiddenCache

every_architecture = pytest.mark.parametrize("name", every())
B = 5


def shapes_of(name):
    """Caches of an architecture in both forms, as shapes."""
    graph, params = nnx.split(abstract(name))

    def both(params):
        model = nnx.merge(graph, params)
        return model.init_caches(B), model.begin_decoding(model.init_caches(B))

    return jax.eval_shape(both, params)


@every_architecture
def test_clearing_touches_the_caches_that_hold_more_than_a_window(name):
    caches, _ = shapes_of(name)
    assert with_state(caches) == list(ARCHITECTURES[name].cleared)


class Decaying(NamedTuple):
    """A cache whose clearing computes with what it holds."""

    window_BD: jax.Array
    count_B: jax.Array

    def clear_state(self, empty):
        return self._replace(count_B=jnp.minimum(self.count_B, 3))


def test_clearing_may_compute():
    window = HiddenCache(jnp.ones((B, 2, 3)), jnp.ones(B, jnp.int32))
    decaying = Decaying(jnp.ones((B, 3)), jnp.full(B, 7))
    assert with_state((window, decaying, window)) == [1]
    cleared = clear_state((window, decaying), (window, decaying))
    np.testing.assert_array_equal(cleared[1].count_B, np.full(B, 3))


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
        jax.tree.map(np.testing.assert_array_equal, found, select_rows(starts_B, fresh, used))


@every_architecture
def test_nothing_read_in_the_decoding_form_is_the_segment_form(name):
    model = random_model(name)
    caches = model.init_caches(B)
    again = model.end_decoding(model.begin_decoding(caches))
    jax.tree.map(np.testing.assert_array_equal, again, caches)
