"""The Pallas kernels of attention for GPUs, in interpret mode, against the plain forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from forms import (
    check_dropped,
    drawn_by_gpu,
    of_two_segments,
    on_mesh,
    outputs_and_gradients,
    plain_attend_to_states,
    relative_errors,
)
from marking import slow
from tiny_models import leaves_close

from brt.models import axis_rules, ops
from brt.models.caches import WindowCache
from brt.models.fast import gpu_forms, table
from brt.models.fast.kernels import gpu_launch
from brt.models.fast.kernels.gpu_attention import attend_to_window
from brt.models.fast.kernels.gpu_launch import Launch, Launches
from brt.models.fast.kernels.parts import Heads, tile_dropout
from brt.models.sizes import Sizes
from brt.training.sharding import make_mesh

BF16, F32 = jnp.bfloat16, jnp.float32


def plain_attention(heads, q, k, v, cached_k, cached_v, scale, bias, dropout):
    """The plain form, with the mask that the kernels draw."""
    keep = None if dropout is None else drawn_by_gpu(dropout, bias.shape[1])
    tables = ops.WindowTables(ops.window_table(bias), keep)
    window, scale = WindowCache(cached_k, cached_v), scale if heads.qk_norm else None
    return ops.window_attention(q, k, v, window, scale, tables).attended_BTHK


def arguments(heads, rows, window, blocks, new_document=None):
    """Random arguments; the cache of a new document is zeros, as of `init_cache`."""
    rng = np.random.default_rng(0)
    H, K, W = heads.num_heads, heads.head_size, window

    def normal(*sizes):
        return jnp.asarray(rng.standard_normal(sizes), F32)

    q, k, v = (normal(rows, blocks * W, H, K) for _ in "qkv")
    cached_k, cached_v = ops.unit_heads(normal(rows, W, H, K)), normal(rows, W, H, K)
    if new_document is not None:
        cached_k, cached_v = (x.at[new_document].set(0) for x in (cached_k, cached_v))
    scale = 3 * normal(H) if heads.qk_norm else jnp.ones(H)
    return q, k, v, cached_k, cached_v, scale, normal(H, W)


def largest_error(attend, plain, *args, exact=None):
    """Of outputs and gradients; exact: arguments of the plain form, if others."""
    found = outputs_and_gradients(attend, *args)
    expected = outputs_and_gradients(plain, *(exact or args))
    return np.max(relative_errors(found, expected))  # NaN if any is


KEYS_FIRST = Launches(Launch(32, 16, 4, 1), Launch(16, 32, 4, 1), Launch(32, 32, 4, 1))
QUERIES_FIRST = Launches(Launch(64, 32, 4, 1), Launch(32, 16, 4, 1), Launch(64, 16, 4, 1))
"""Tiles of keys are as large as a frame's queries, and smaller."""


def of_window(heads, rate, *sizes):
    """The kernel, its plain form, and their arguments."""
    heads = heads._replace(interpret=True)
    dropout = tile_dropout(jax.random.key(0), rate, heads.num_heads, 1)

    def of(form, *args):
        *args, scale, bias = args
        scale = scale if heads.qk_norm else jax.lax.stop_gradient(scale)  # no parameter then
        return form(heads, *args, scale, bias, dropout)

    forms = (functools.partial(of, form) for form in (attend_to_window, plain_attention))
    return forms, arguments(heads, *sizes)


def of_states(heads, rate, rows, blocks, tokens, states):
    rng, H, K = np.random.default_rng(0), heads.num_heads, heads.head_size
    shapes = (rows, blocks * tokens, H, K), *[(rows, blocks, states, H, K)] * 2, (H,)
    q, k, v, scale = (jnp.asarray(rng.standard_normal(shape), F32) for shape in shapes)
    dropout = gpu_forms.states_dropout(jax.random.key(0), rate, (H, tokens, states), F32)

    def plain(q, k, v, scale):
        keep = dropout and drawn_by_gpu(dropout, q.shape[1] // k.shape[1], k.shape[2])
        return ops.attention_to_states(q, k, v, scale, keep)

    kernel = functools.partial(gpu_forms.attention_to_states, gpu_forms.attend_to_states)
    forms = functools.partial(kernel, keep=dropout), plain
    return forms, (q, ops.unit_heads(k), v, 3 * scale)


CASES = {
    "an odd batch and dropout": (of_window, KEYS_FIRST, Heads(2, 32), 0.2, 3, 64, 2),
    "tiles of few keys": (of_window, QUERIES_FIRST, Heads(1, 64), 0.1, 1, 128, 2, 0),
    "queries over sqrt(K)": (of_window, KEYS_FIRST, Heads(3, 32, False), 0.1, 2, 32, 3, 1),
    "a long window": (of_window, QUERIES_FIRST, Heads(1, 32), 0.0, 1, 384, 2),
    "states, an odd batch and dropout": (of_states, KEYS_FIRST, Heads(2, 32), 0.2, 3, 2, 64, 64),
    "fewer states than tokens": (of_states, QUERIES_FIRST, Heads(1, 64), 0.1, 1, 3, 128, 32),
    "more states than tokens": (of_states, KEYS_FIRST, Heads(3, 16), 0.1, 2, 2, 32, 96),
    "states, sizes of tiles by default": (of_states, None, Heads(2, 16), 0.3, 1, 2, 48, 80),
    "states, no dropout": (of_states, KEYS_FIRST, Heads(2, 16), 0.0, 2, 1, 64, 32),
}
"""Tiles, heads and dropout; of windows the batch, window, blocks, and which document is new; of
states the batch, blocks, and tokens and states of a block."""
COVERED = "an odd batch and dropout", "states, no dropout"
"""In bfloat16 below, and combined by others: checked with the slow tests."""


def case(name, monkeypatch):
    make, tiles, *sizes = CASES[name]
    if tiles:
        monkeypatch.setattr(gpu_launch, "launches", lambda *_: tiles)
    return make(*sizes)


@pytest.mark.parametrize("name", [slow(x, when=x in COVERED) for x in CASES])
def test_outputs_and_all_gradients_equal_the_plain_form(name, monkeypatch):
    forms, args = case(name, monkeypatch)
    assert largest_error(*forms, *args) < 2e-5


@pytest.mark.parametrize("name", ["an odd batch and dropout", "states, an odd batch and dropout"])
def test_bfloat16_differs_by_no_more_than_its_rounding(name, monkeypatch):
    forms, args = case(name, monkeypatch)
    rounded = [x.astype(BF16) if x.ndim > 2 else x for x in args]
    exact = [x.astype(F32) for x in rounded]
    assert largest_error(*forms, *rounded, exact=exact) < 0.05


def test_queries_over_sqrt_of_the_head_size_equal_the_plain_form(monkeypatch):
    forms, args = case("more states than tokens", monkeypatch)

    def unscaled(attend):
        return lambda q, k, v: attend(q, k, v, None)

    assert largest_error(*map(unscaled, forms), *args[:3]) < 2e-5


def window_factors(seed, rate):
    return drawn_by_gpu(tile_dropout(jax.random.key(seed), rate, 4, 1), 256)


def state_factors(seed, rate, states):
    dropout = gpu_forms.states_dropout(jax.random.key(seed), rate, (4, 256, states), F32)
    return drawn_by_gpu(dropout, 256, states)


@pytest.mark.parametrize(
    ("factors", "keys"),
    [
        (window_factors, 512),
        (functools.partial(state_factors, states=64), 64),
        (functools.partial(state_factors, states=512), 512),
    ],
    ids=["a window", "64 states", "512 states"],
)
def test_a_kernel_drops_the_rates_share_of_weights(factors, keys):
    assert factors(0, 0.1).shape == (4, 256, keys)
    check_dropped(factors)


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
def test_heads_and_batch_on_a_mesh_equal_the_plain_forms(mesh_shape):
    (attend, plain), args = of_states(Heads(2, 16), 0.3, 4, 2, 48, 80)
    by_head = *(jnp.swapaxes(x[:, 0], 1, 2) for x in args[1:3]), args[0].swapaxes(1, 2)
    by_head = by_head[2], *by_head[:2], args[3]
    pairs = (attend, plain, args), (gpu_forms.attention_by_head, ops.attention_by_head, by_head)
    for attend, plain, arrays in pairs:
        expected = outputs_and_gradients(plain, *arrays)
        mesh = make_mesh(mesh_shape, devices=jax.devices()[: np.prod(mesh_shape)])
        with jax.set_mesh(mesh):
            computed = outputs_and_gradients(attend, *arrays)
        for a, b in zip(computed, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


class GPU:
    platform = "gpu"

    def __init__(self, kind="NVIDIA H100 80GB HBM3"):
        self.device_kind = kind


@pytest.fixture
def on_gpu(monkeypatch):
    """Models choose forms as on a GPU; kernels are interpreted all the same."""
    monkeypatch.setattr(table, "on_gpu", lambda: True)
    table._say_once.cache_clear()


W = 16
SMALL = dict(num_layers=1, window=W, dropout=0.2, attention_form="kernel")


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("name", "mesh_shape", "settings"),
    [
        slow("slide", None, {}),  # on a mesh below
        ("slide", (4, 2), {}),
        slow("slide", (2, 1), dict(qk_norm=False)),
        slow("rec_fixed_skip", (2, 2), dict(num_layers=2, num_states=32)),
        slow("feedback_fixed_skip", (2, 2), dict(num_layers=3, num_states=16)),
    ],
)
def test_a_model_on_a_mesh_or_without_equals_its_plain_form(
    name, mesh_shape, settings, monkeypatch
):
    model = random_model(name, **{**SMALL, **settings})
    computed, params = of_two_segments(model, 2 * W)
    of_kernels = on_mesh(mesh_shape, computed, params)
    monkeypatch.setattr(gpu_forms, "attend_to_window", plain_attention)
    plain_to_states = functools.partial(plain_attend_to_states, drawn=drawn_by_gpu)
    monkeypatch.setattr(gpu_forms, "attend_to_states", plain_to_states)
    # A cell amplifies rounding: with feedback the plain form on a mesh differs by 1.7e-4.
    size = 3e-4 if name.startswith("feedback") else 5e-5
    leaves_close(of_kernels, computed(params), size)


@pytest.mark.usefixtures("on_gpu")
def test_on_a_gpu_a_binding_chooses_the_kernel_not_auto(capsys):
    def ops_of(form, states=0):
        return table.layer_ops(Sizes(1, 8, 128, 1, attention_form=form), 512, states, BF16)

    assert ops_of("kernel").window_attention.args == (gpu_forms.attend_to_window,)
    assert ops_of("kernel").window_tables is gpu_forms.window_tables
    assert ops_of("kernel", 512).attention_to_states.args == (gpu_forms.attend_to_states,)
    assert ops_of("kernel", 512).states_dropout is gpu_forms.states_dropout
    # The loop over blocks has no kernel, which is logged.
    sizes = Sizes(1, 8, 128, 1, attention_form="kernel")
    chosen = table.cell_ops(sizes, 512, 512, BF16, object())
    assert chosen == table.CellOps(gpu_forms.attention_by_head, table.unrolled_blocks)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "GPUs" in line] == [line for line in lines if "cell" in line]
    assert sum("a Pallas kernel" in line for line in lines) == len(lines) - 1 == 3
    assert not any("interpreted" in line for line in lines)


def test_auto_on_a_gpu_is_no_kernel(monkeypatch):
    monkeypatch.setattr(axis_rules, "device", GPU)
    chosen = table.layer_ops(Sizes(1, 8, 128, 1), 512, 0, BF16)
    assert chosen.window_attention.args != (gpu_forms.attend_to_window,)


@pytest.mark.parametrize(
    ("kind", "misfit", "head_size", "sizes", "part"),
    [
        ("NVIDIA H100 80GB HBM3", gpu_launch.window_misfit, 128, (512, BF16), None),
        ("Tesla T4", gpu_launch.window_misfit, 128, (512, BF16), "Tesla T4"),
        ("NVIDIA B200", gpu_launch.window_misfit, 128, (192, BF16), "window = 192"),
        ("NVIDIA B200", gpu_launch.window_misfit, 128, (4096, BF16), "window = 4096"),
        ("NVIDIA B200", gpu_launch.window_misfit, 96, (512, BF16), "head_size = 96"),
        ("NVIDIA B200", gpu_launch.window_misfit, 128, (512, jnp.float16), "float16"),
        ("NVIDIA H100 80GB HBM3", gpu_launch.block_misfit, 128, (512, 512), None),
        ("NVIDIA A100-SXM4-80GB", gpu_launch.block_misfit, 64, (512, 100), "100 keys"),
        ("NVIDIA A100-SXM4-80GB", gpu_launch.block_misfit, 64, (8, 512), "8 queries"),
    ],
)
def test_what_does_not_fit_is_named(kind, misfit, head_size, sizes, part, monkeypatch):
    monkeypatch.setattr(gpu_launch, "device", lambda: GPU(kind))
    found = misfit(Heads(8, head_size), *sizes)
    assert found is None if part is None else part in found


@pytest.mark.usefixtures("on_gpu")
def test_a_required_kernel_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(axis_rules, "device", GPU)
    sizes = Sizes(1, 8, 96, 1, attention_form="kernel")
    with pytest.raises(ValueError, match=r"attention_form.*head_size = 96"):
        table.layer_ops(sizes, 512, 0, BF16)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("head_size", gpu_launch.SIZES)
def test_tiles_divide_frames_and_windows(head_size, dtype, large):
    forward, of_keys, of_queries = gpu_launch.launches(128, 128, head_size, dtype, large)
    frame = forward.queries
    assert 128 % frame == 0 and of_queries.queries == frame
    assert all(frame % size == 0 for launch in (of_keys, of_queries) for size in launch[:2])
    assert frame % forward.keys == 0


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
