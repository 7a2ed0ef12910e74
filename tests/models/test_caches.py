"""Caches: while a block is being filled, and those that are refused."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, WINDOW, abstract
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import quick_jit

from brt.models.caches import LayerCache, WindowCache, select_rows
from brt.models.contract import check_caches
from brt.models.decoding_window import advance, fill_window, write_token

B, W, H, K, D = 3, WINDOW, 2, 4, 12


@quick_jit
def read_token(window, k_BHK, reads_B):
    """Writes a key, and as its value the key times -1, in the rows that read."""
    return select_rows(reads_B, advance(write_token(window, k_BHK, -k_BHK)), window)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=B, max_size=B), max_size=12), st.integers(0, 99))
def test_a_filling_window_is_a_list_that_forgets_blocks(steps, seed):
    """Rows read at their own pace; a row that pauses keeps its window as it is."""
    rng = np.random.default_rng(seed)
    size = 3
    previous = rng.normal(size=(2, B, size, 1, 1)).astype(np.float32)
    window = fill_window(WindowCache(*map(jnp.asarray, previous)))
    lists = [list(previous[0, b, :, 0, 0]) for b in range(B)]
    for reads_B in steps:
        k_BHK = rng.normal(size=(B, 1, 1)).astype(np.float32)
        window = read_token(window, k_BHK, np.array(reads_B))
        for b in range(B):
            if reads_B[b]:
                lists[b].append(k_BHK[b, 0, 0])
            if len(lists[b]) == 2 * size:
                lists[b] = lists[b][size:]
    for b in range(B):
        fill = int(window.fill_B[b])
        assert 0 <= fill < size and size + fill == len(lists[b])
        np.testing.assert_array_equal(window.keys_BJHK[b, : size + fill, 0, 0], lists[b])
        written = window.values_BJHK[b, size : size + fill, 0, 0]
        np.testing.assert_array_equal(written, [-x for x in lists[b][size:]])


ROWS = 7919


class Sums(NamedTuple):
    """A cache as it should be."""

    sum_BD: jax.Array
    count_B: jax.Array


class Unnamed(NamedTuple):
    sum: jax.Array


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_caches_of_every_architecture_can_be_carried(name):
    graph, params = nnx.split(abstract(name))
    check_caches(jax.eval_shape(lambda p: nnx.merge(graph, p).init_caches(ROWS), params), ROWS)


@pytest.mark.parametrize("in_a_layer", [True, False])
@pytest.mark.parametrize(
    ("cache", "error"),
    [
        (Sums(array(ROWS, D), array(ROWS)), None),
        (Sums(array(ROWS, D), array()), r"^Sums\.count_B has shape \(\)"),
        (Sums(array(ROWS, D), array(W)), r"^Sums\.count_B has shape \(4,\)"),
        (Sums(array(D, ROWS), array(ROWS)), r"^Sums\.sum_BD has shape \(12, 7919\)"),
        (Sums(array(ROWS, H, D), array(ROWS)), r"^Sums\.sum_BD has shape \(7919, 2, 12\)"),
        (Unnamed(array(ROWS, D)), r"^Unnamed\.sum has .* such as keys_BWHK or count_B"),
        ((array(ROWS, D),), r"^tuple is carried as a cache: make it a typing\.NamedTuple"),
        (array(ROWS, D), r"^ShapeDtypeStruct is carried as a cache"),
    ],
)
def test_a_cache_that_cannot_be_carried_is_refused_by_its_name(cache, error, in_a_layer):
    window = WindowCache(*[array(ROWS, W, H, K)] * 2)
    caches = (LayerCache(window, (cache,)),) if in_a_layer else (cache,)
    if error is None:
        return check_caches(caches, ROWS)
    with pytest.raises(ValueError, match=error):
        check_caches(caches, ROWS)
