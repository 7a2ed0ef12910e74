"""The Pallas kernels of attention against their plain forms, in interpret mode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import (
    check_dropped,
    drawn_by_tpu,
    outputs_and_gradients,
    plain_attend_to_states,
    plain_attend_to_window,
    relative_errors,
)
from marking import slow

from brt.models.fast.kernels import cell as cell_kernel
from brt.models.fast.kernels import relative as relative_kernel
from brt.models.fast.kernels import states as states_kernel
from brt.models.fast.kernels import window as window_kernel
from brt.models.fast.kernels.cell import CellParameters, CellTokens, run_cell
from brt.models.fast.kernels.parts import Heads, tile_dropout, tile_size
from brt.models.fast.kernels.states import attend_to_states
from brt.models.fast.kernels.window import attend_to_window
from brt.models.ops import at_least_float32, attention, rms_normed, scaled_down_heads, unit_heads
from brt.models.relative_attention import Positions, distances, plain_attend_by_distance

BF16, F32 = jnp.bfloat16, jnp.float32


def normal(rng, *sizes, dtype=np.float32):
    return jnp.asarray(rng.standard_normal(sizes), dtype)


def of_window(heads, window, batch, windows, dropout, dtype=np.float32):
    """Returns random arguments."""
    rng = np.random.default_rng(0)
    W, H, K = window, heads.num_heads, heads.head_size
    return {
        **{name: normal(rng, batch, windows * W, H, K, dtype=dtype) for name in "qkv"},
        **{name: normal(rng, batch, W, H, K, dtype=dtype) for name in ("cached_k", "cached_v")},
        "scale": 3 * normal(rng, H),
        "bias": normal(rng, H, W),
        "keep": tile_dropout(jax.random.key(0), dropout, H, W // tile_size(W)),
    }


def of_blocks(heads, queries, keys, batch, blocks, dropout, dtype=np.float32):
    """Random arguments of attention to the keys of each block."""
    rng = np.random.default_rng(0)
    H, K = heads.num_heads, heads.head_size
    return {
        "q": normal(rng, batch, blocks, queries, H, K, dtype=dtype),
        "k": normal(rng, batch, blocks, keys, H, K, dtype=dtype),
        "v": normal(rng, batch, blocks, keys, H, K, dtype=dtype),
        "scale": 3 * normal(rng, H),
        "keep": tile_dropout(jax.random.key(0), dropout, H, queries // tile_size(queries)),
    }


def of_cell(heads, states, window, batch, blocks, products=1, dtype=np.float32):
    """Random arguments of a cell's loop; `keep` is None, as a cell has no dropout."""
    rng = np.random.default_rng(0)
    H, A = heads.num_heads, heads.num_heads * heads.head_size
    D = 32
    k, v = (normal(rng, batch, blocks * window, A, dtype=dtype) for _ in "kv")
    cached_k, cached_v = (normal(rng, batch, window, A, dtype=dtype) for _ in "kv")
    if heads.qk_norm:
        k, cached_k = (
            unit_heads(x.reshape(*x.shape[:2], H, -1)).reshape(x.shape) for x in (k, cached_k)
        )
    return {
        "states": normal(rng, batch, states, D),
        **dict(k=k, v=v, cached_k=cached_k, cached_v=cached_v),
        "norm_scale": normal(rng, D),
        "ids": normal(rng, states, D),
        "matrix": normal(rng, 4, D, A) / 8,
        **{name: 3 * normal(rng, H) for name in ("self_scale", "cross_scale")},
        "gate": normal(rng, 2, A, products * D) / 8,
        "keep_bias": normal(rng, D),
        "keep": None,
    }


DROPPED = 0.25


def of_keys(*sizes, dtype=np.float32):
    """As `of_distances`, without distances and the bias of content."""
    args = of_distances(*sizes, dtype=dtype)
    return args | dict.fromkeys(("content_bias", "position_keys", "position_bias"))


def of_distances(heads, queries, keys, batch, future, dropout, dtype=np.float32):
    """Random arguments of relative attention; `keep` has the visible keys and the kept weights.

    future: whether queries see keys behind them, as memory tokens do.
    """
    rng = np.random.default_rng(0)
    H, K, T, J = heads.num_heads, heads.head_size, queries, keys
    C = len(distances(T, J, future))
    visible = rng.random((batch, T, J)) < 0.7
    query, key = np.mgrid[:T, :J]
    if not future:
        visible &= key <= J - T + query
    visible |= key == J - T + query
    kept = jnp.asarray(rng.random((batch, H, T, J)) >= DROPPED) if dropout else None
    return {
        "q": normal(rng, batch, T, H, K, dtype=dtype),
        **{name: normal(rng, batch, J, H, K, dtype=dtype) for name in "kv"},
        "content_bias": normal(rng, H, K),
        "position_keys": normal(rng, C, H, K, dtype=dtype),
        "position_bias": normal(rng, C, H, dtype=dtype),
        "keep": (jnp.asarray(visible), kept),
    }


def relative(heads, q, k, v, u, keys, bias, keep):
    positions = None if keys is None else Positions(keys, bias)
    return relative_kernel.attend_by_distance(heads, q, k, v, u, positions, *keep, DROPPED)


def plain_relative(heads, q, k, v, u, keys, bias, keep):
    positions = None if keys is None else Positions(keys, bias)
    return plain_attend_by_distance(q, k, v, u, positions, *keep, DROPPED)


def gate(states_BSD, products_BSE, biases):
    """A fixed gate of one product, or one that depends on the second."""
    D = states_BSD.shape[-1]
    products = [products_BSE[..., i : i + D] for i in range(0, products_BSE.shape[-1], D)]
    kept = jax.nn.sigmoid(sum(map(at_least_float32, products[1:]), biases["keep_bias"]))
    return kept * states_BSD + (1 - kept) * at_least_float32(products[0]), kept


def cell(heads, states_BSD, k, v, cached_k, cached_v, *parameters):
    *parameters, bias, _ = parameters
    parameters = CellParameters(*parameters, {"keep_bias": bias})
    return run_cell(heads, gate, parameters, states_BSD, CellTokens(k, v, cached_k, cached_v))


def plain_cell(heads, states_BSD, k, v, cached_k, cached_v, norm_scale, ids, matrix, *parameters):
    """The equations of section 3.1, block by block."""
    self_scale, cross_scale, gate_YAE, bias, _ = parameters
    W = cached_k.shape[1]

    def split(x):
        return x.reshape(*x.shape[:-1], heads.num_heads, heads.head_size)

    def unit(x):
        return unit_heads(split(x)) if heads.qk_norm else split(x)

    def queries(x):
        return unit(x) if heads.qk_norm else scaled_down_heads(split(x))

    keys = split(jnp.concatenate([cached_k, k], axis=1))
    values = split(jnp.concatenate([cached_v, v], axis=1))
    seen = []
    for start in range(0, k.shape[1], W):
        x_BSD = rms_normed(states_BSD, norm_scale) + ids
        raw_k, own_v, q, cross_q = jnp.einsum("BSD,XDA->XBSA", x_BSD, matrix)
        own_k, block = unit(raw_k), slice(start, start + 2 * W)
        to_states = attention(queries(q), own_k, split(own_v), self_scale)
        to_tokens = attention(queries(cross_q), keys[:, block], values[:, block], cross_scale)
        h_YBSA = jnp.stack([to_states, to_tokens]).reshape(2, *own_v.shape)
        products_BSE = jnp.einsum("YBSA,YAE->BSE", h_YBSA, gate_YAE)
        states_BSD, kept = gate(states_BSD, products_BSE, {"keep_bias": bias})
        seen.append((own_k.reshape(own_v.shape), own_v, jax.lax.stop_gradient(jnp.mean(kept))))
    keys_values = (jnp.stack(each, axis=1) for each in [*zip(*seen)][:2])
    return states_BSD, *keys_values, jnp.stack([kept for *_, kept in seen])


def errors(forms, heads, args, interpret="races"):
    """Of each output and gradient, by the name of its argument; the plain form is in float64."""

    def results(form, heads, args):
        *varied, keep = args.values()
        form = functools.partial(form, heads)
        return outputs_and_gradients(lambda *varied: form(*varied, keep), *varied)

    def exactly(x):
        return np.float64(x) if jnp.issubdtype(x.dtype, jnp.floating) else x

    plain, kernel = forms
    found = results(kernel, heads._replace(interpret=interpret), args)
    with jax.enable_x64(True):
        exact = {name: jax.tree.map(exactly, x) for name, x in args.items()}
        expected = results(plain, heads, exact)
    names = [name for name, x in args.items() if x is not None and name != "keep"]
    outputs = range(len(expected) - len(names))
    expected = map(np.asarray, expected)
    return dict(zip([*outputs, *names], relative_errors(found, expected), strict=True))


WINDOW = plain_attend_to_window, attend_to_window
BLOCKS = plain_attend_to_states, attend_to_states
CELL = plain_cell, cell
DISTANCES = plain_relative, relative
CASES = {
    "a window": (WINDOW, Heads(2, 128), of_window, (128, 2, 1, 0.0)),
    "a window with dropout": (WINDOW, Heads(2, 128), of_window, (128, 3, 2, 0.2)),
    "a window, two heads in the lanes": (WINDOW, Heads(4, 64), of_window, (128, 1, 3, 0.1)),
    "a window without unit lengths": (WINDOW, Heads(4, 32, False), of_window, (128, 1, 1, 0.1)),
    "a window of wide heads": (WINDOW, Heads(2, 256), of_window, (128, 2, 2, 0.0)),
    "a window of several chunks": (WINDOW, Heads(1, 128), of_window, (1024, 1, 1, 0.1)),
    "two windows of several chunks": (WINDOW, Heads(1, 128), of_window, (1024, 1, 2, 0.1)),
    "tiles without unit lengths": (WINDOW, Heads(4, 32, False), of_window, (256, 1, 1, 0.1)),
    "a short window": (WINDOW, Heads(2, 64), of_window, (32, 2, 2, 0.1)),
    "states": (BLOCKS, Heads(2, 128), of_blocks, (256, 128, 3, 2, 0.0)),
    "states with dropout": (BLOCKS, Heads(4, 64), of_blocks, (256, 256, 2, 2, 0.2)),
    "few states": (BLOCKS, Heads(4, 64), of_blocks, (32, 20, 2, 2, 0.1)),
    "states without unit lengths": (BLOCKS, Heads(2, 256, False), of_blocks, (128, 128, 1, 2, 0)),
    "a cell": (CELL, Heads(2, 128), of_cell, (256, 128, 2, 2)),
    "a cell, two heads in the lanes": (CELL, Heads(4, 64), of_cell, (20, 32, 1, 2, 2)),
    "a cell of three blocks": (CELL, Heads(4, 64), of_cell, (20, 32, 1, 3, 2)),
    "a cell without unit lengths": (CELL, Heads(4, 64, False), of_cell, (128, 256, 1, 2)),
    "distances": (DISTANCES, Heads(4, 64, False), of_distances, (40, 77, 3, False, True)),
    "distances of keys behind": (
        *(DISTANCES, Heads(2, 128, False), of_distances),
        (168, 200, 1, True, False),
    ),
    "distances, several tiles": (
        *(DISTANCES, Heads(1, 128, False), of_distances),
        (150, 300, 2, False, True),
    ),
    "distances without a memory": (
        *(DISTANCES, Heads(4, 32, False), of_distances),
        (64, 64, 1, False, False),
    ),
    "no distances": (DISTANCES, Heads(4, 64, False), of_keys, (40, 77, 3, True, True)),
    "no distances, several tiles": (
        *(DISTANCES, Heads(1, 128, False), of_keys),
        (150, 300, 2, False, False),
    ),
    "distances of wide heads": (
        *(DISTANCES, Heads(1, 256, False), of_distances),
        (128, 256, 2, True, True),
    ),
}


COVERED = {
    *("a window", "a window with dropout", "a window of wide heads"),
    *("a window, two heads in the lanes", "no distances, several tiles"),
    *("states", "states without unit lengths", "a cell", "a cell without unit lengths"),
    *("distances without a memory", "distances of wide heads"),
    *("two windows of several chunks", "tiles without unit lengths", "a cell of three blocks"),
    *("states with dropout", "distances"),  # in bfloat16 below
}
"""Cases of features that others combine: checked with the slow tests."""


@pytest.mark.parametrize("name", [slow(n, when=n in COVERED) for n in CASES])
def test_outputs_and_all_gradients_equal_the_plain_form(name, capfd):
    forms, heads, make, sizes = CASES[name]
    found = errors(forms, heads, make(heads, *sizes))
    assert max(found.values()) < 3e-5, found
    assert "race" not in "".join(capfd.readouterr()).lower()


@pytest.mark.parametrize(
    "name", ["a window, two heads in the lanes", "states with dropout", "a cell", "distances"]
)
def test_bfloat16_differs_by_no_more_than_its_rounding(name):
    forms, heads, make, sizes = CASES[name]
    args = make(heads, *sizes, dtype=jnp.bfloat16)
    found = errors(forms, heads, args, interpret=True)  # as in models
    assert max(found.values()) < 0.03, found


def test_a_kernel_drops_the_rates_share_of_weights():
    def factors(seed, rate):
        drawn = drawn_by_tpu(tile_dropout(jax.random.key(seed), rate, 4, 4), (128, 640))
        return drawn.reshape(4, 512, 640)

    check_dropped(factors)
    assert tile_dropout(jax.random.key(0), 0.0, 4, 4) is None


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        (window_kernel.misfit(Heads(2, 128), 192, BF16), "window = 192"),
        (window_kernel.misfit(Heads(2, 96), 128, BF16), "head_size = 96"),
        (window_kernel.misfit(Heads(2, 32), 128, BF16), "2 heads of 32"),
        (window_kernel.misfit(Heads(8, 128), 4096, F32), "VMEM"),
        (window_kernel.misfit(Heads(2, 512), 128, BF16), "head_size = 512"),
        (states_kernel.misfit(Heads(3, 64), 128, 128, BF16), "num_heads = 3"),
        (states_kernel.misfit(Heads(2, 64), 128, 200, BF16), "200 keys"),
        (states_kernel.misfit(Heads(2, 64), 128, 1, BF16), "one key"),
        (states_kernel.misfit(Heads(2, 64), 1024, 1024, F32), "VMEM"),
        (states_kernel.misfit(Heads(2, 64), 2048, 128, BF16), "2048 queries"),
        (relative_kernel.misfit(Heads(16, 64), 1025), "1025 keys"),
        (cell_kernel.misfit(Heads(8, 128), 512, 512, 1024, F32), "512 states"),
        (cell_kernel.misfit(Heads(8, 128), 512, 100, 1024, BF16), "100 tokens"),
        (cell_kernel.misfit(Heads(8, 128), 512, 512, 2048, BF16), "1024 features"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(reason, part):
    assert part in reason


def test_the_published_sizes_fit():
    heads, S, W, D = Heads(8, 128), 512, 512, 1024
    misfits = [
        *(window_kernel.misfit(heads, size, BF16) for size in (128, 512, 2048)),
        window_kernel.misfit(Heads(8, 64), W, F32),
        states_kernel.misfit(heads, W, S, F32),
        states_kernel.misfit(Heads(2, 64), 1024, 1024, BF16),
        cell_kernel.misfit(heads, S, W, D, BF16),
        relative_kernel.misfit(Heads(16, 64), 768),
    ]
    assert not any(misfits), misfits


def test_the_order_of_a_cells_biases_does_not_matter():
    heads = Heads(2, 4, interpret=True)
    *arrays, keep_bias, _ = of_cell(heads, 3, 4, 1, 2).values()
    states, k, v, cached_k, cached_v, norm, ids, matrix, own, cross, product = arrays
    biases = {"zero": jnp.zeros_like(keep_bias), "keep_bias": keep_bias}

    def update(states_BSD, products, biases):
        states_BSD, kept = gate(states_BSD, products, {"keep_bias": biases["keep_bias"]})
        return states_BSD + biases["zero"], kept

    def run(biases):
        parameters = CellParameters(norm, ids, matrix, own, cross, product, biases)
        return run_cell(heads, update, parameters, states, CellTokens(k, v, cached_k, cached_v))

    for x, y in zip(run(biases), run(dict(reversed(biases.items())))):
        np.testing.assert_array_equal(x, y)
