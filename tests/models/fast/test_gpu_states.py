"""The Pallas kernels for GPUs of attention to states and by head, against the plain forms.

In interpret mode; test_gpu_kernels.py has those of windows, and whole models.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import check_dropped, drawn_by_gpu, outputs_and_gradients
from marking import slow
from test_gpu_kernels import BF16, F32, GPU, KEYS_FIRST, QUERIES_FIRST, largest_error

from brt.models import ops
from brt.models.fast import gpu_forms
from brt.models.fast.kernels import gpu_launch
from brt.models.fast.kernels.parts import Heads
from brt.training.sharding import make_mesh

CASES = {
    "an odd batch and dropout": (KEYS_FIRST, (3, 2, 64, 64, 2, 32), 0.2),
    "fewer states than tokens": (QUERIES_FIRST, (1, 3, 128, 32, 1, 64), 0.1),
    "more states than tokens": (KEYS_FIRST, (2, 2, 32, 96, 3, 16), 0.1),
    "sizes of tiles by default": (None, (1, 2, 48, 80, 2, 16), 0.3),
    "no dropout": (KEYS_FIRST, (2, 1, 64, 32, 2, 16), 0.0),
}
"""Tiles; batch elements, blocks, tokens and states of a block, heads and their size; dropout."""


def case(name, monkeypatch):
    tiles, (B, G, W, S, H, K), rate = CASES[name]
    if tiles:
        monkeypatch.setattr(gpu_launch, "launches", lambda *_: tiles)
    rng = np.random.default_rng(0)
    shapes = (B, G * W, H, K), (B, G, S, H, K), (B, G, S, H, K), (H,)
    q, k, v, scale = (jnp.asarray(rng.standard_normal(shape), F32) for shape in shapes)
    dropout = gpu_forms.states_dropout(jax.random.key(0), rate, (H, W, S), F32)
    return (q, ops.unit_heads(k), v, 3 * scale), dropout


def forms(dropout):
    """The kernel, and the plain form with the mask that the kernel draws."""

    def plain(q, k, v, scale):
        keep = dropout and drawn_by_gpu(dropout, q.shape[1] // k.shape[1], k.shape[2])
        return ops.attention_to_states(q, k, v, scale, keep)

    kernel = functools.partial(gpu_forms.attention_to_states, gpu_forms.attend_to_states)
    return functools.partial(kernel, keep=dropout), plain


@pytest.mark.parametrize("name", [slow(x, when=x == "no dropout") for x in CASES])
def test_outputs_and_all_gradients_equal_the_plain_form(name, monkeypatch):
    args, dropout = case(name, monkeypatch)
    assert largest_error(*forms(dropout), *args) < 2e-5


def test_queries_over_sqrt_of_the_head_size_equal_the_plain_form(monkeypatch):
    args, dropout = case("more states than tokens", monkeypatch)

    def unscaled(attend):
        return lambda q, k, v: attend(q, k, v, None)

    assert largest_error(*map(unscaled, forms(dropout)), *args[:3]) < 2e-5


def test_bfloat16_differs_by_no_more_than_its_rounding(monkeypatch):
    args, dropout = case("an odd batch and dropout", monkeypatch)
    rounded = *(x.astype(BF16) for x in args[:3]), args[3]
    exact = *(x.astype(F32) for x in rounded[:3]), args[3]
    assert largest_error(*forms(dropout), *rounded, exact=exact) < 0.05


@pytest.mark.parametrize(("queries", "keys"), [(32, 32), (32, 128), (96, 16)])
def test_attention_by_head_equals_the_plain_form(queries, keys):
    """The cell's states, of which there may be fewer or more than tokens of two blocks."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((3, 2, n, 16)), F32) for n in (queries, keys, keys))
    plain, scale_H = ops.attention_by_head, jnp.array([3.0, -1.5])
    assert largest_error(gpu_forms.attention_by_head, plain, q, k, v, scale_H) < 2e-5
    forms = (functools.partial(form, scale_H=None) for form in (gpu_forms.attention_by_head, plain))
    assert largest_error(*forms, q, k, v) < 2e-5


@pytest.mark.parametrize("mesh_shape", [(2, 2), *(slow(x) for x in ((4, 1), (1, 2)))])
def test_heads_and_batch_on_a_mesh_equal_the_plain_forms(mesh_shape, monkeypatch):
    _, sizes, rate = CASES["sizes of tiles by default"]
    monkeypatch.setitem(CASES, "four", (None, (4, *sizes[1:]), rate))
    args, dropout = case("four", monkeypatch)
    by_head = *(jnp.swapaxes(x[:, 0], 1, 2) for x in args[1:3]), args[0].swapaxes(1, 2)
    by_head = by_head[2], *by_head[:2], args[3]
    attend, plain = forms(dropout)
    pairs = (attend, plain, args), (gpu_forms.attention_by_head, ops.attention_by_head, by_head)
    for attend, plain, arrays in pairs:
        expected = outputs_and_gradients(plain, *arrays)
        mesh = make_mesh(mesh_shape, devices=jax.devices()[: np.prod(mesh_shape)])
        with jax.set_mesh(mesh):
            computed = outputs_and_gradients(attend, *arrays)
        for a, b in zip(computed, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("states", [64, 512])
def test_states_are_dropped_at_the_rate(states):
    def factors(seed, rate):
        dropout = gpu_forms.states_dropout(jax.random.key(seed), rate, (4, 256, states), F32)
        return drawn_by_gpu(dropout, 256, states)

    assert factors(0, 0.1).shape == (4, 256, states)
    check_dropped(factors)


@pytest.mark.parametrize(
    ("kind", "head_size", "sizes", "part"),
    [
        ("NVIDIA H100 80GB HBM3", 128, (512, 512), None),
        ("NVIDIA A100-SXM4-80GB", 64, (512, 100), "100 keys"),
        ("NVIDIA A100-SXM4-80GB", 64, (8, 512), "8 queries"),
    ],
)
def test_what_does_not_fit_is_named(kind, head_size, sizes, part, monkeypatch):
    monkeypatch.setattr(gpu_launch, "device", lambda: GPU(kind))
    misfit = gpu_launch.block_misfit(Heads(8, head_size), *sizes)
    assert misfit is None if part is None else part in misfit


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("head_size", gpu_launch.SIZES)
@pytest.mark.parametrize(("queries", "keys"), [(512, 512), (512, 48), (32, 1024), (176, 16)])
def test_tiles_divide_the_queries_and_keys_of_a_block(queries, keys, head_size, dtype):
    launches = gpu_launch.launches(queries, keys, head_size, dtype, large=False)
    frame = launches.forward.queries
    assert queries % frame == 0 and launches.of_queries.queries == frame
    for launch in launches:
        assert frame % launch.queries == 0 and keys % launch.keys == 0
        assert min(launch.queries, launch.keys) >= gpu_launch.FEWEST
