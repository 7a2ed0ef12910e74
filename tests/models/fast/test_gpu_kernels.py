"""The Pallas kernels of windowed attention for GPUs, in interpret mode, against the plain form."""

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
CASES = {
    "an odd batch and dropout": (KEYS_FIRST, Heads(2, 32), (3, 64, 2), 0.2),
    "tiles of few keys": (QUERIES_FIRST, Heads(1, 64), (1, 128, 2, 0), 0.1),
    "queries over sqrt(K)": (KEYS_FIRST, Heads(3, 32, False), (2, 32, 3, 1), 0.1),
    "a long window": (QUERIES_FIRST, Heads(1, 32), (1, 384, 2), 0.0),
}
"""Tiles, heads, sizes of the arguments (batch, window, blocks, which document is new), dropout."""


def case(name, monkeypatch):
    """The kernel, its plain form, and their arguments."""
    tiles, heads, sizes, rate = CASES[name]
    monkeypatch.setattr(gpu_launch, "launches", lambda *_: tiles)
    heads = heads._replace(interpret=True)
    dropout = tile_dropout(jax.random.key(0), rate, heads.num_heads, 1)

    def of(form, *args):
        *args, scale, bias = args
        scale = scale if heads.qk_norm else jax.lax.stop_gradient(scale)  # no parameter then
        return form(heads, *args, scale, bias, dropout)

    forms = (functools.partial(of, form) for form in (attend_to_window, plain_attention))
    return forms, arguments(heads, *sizes)


# In bfloat16 below.
ROUNDED = "an odd batch and dropout"


@pytest.mark.parametrize("name", [slow(x, when=x == ROUNDED) for x in CASES])
def test_outputs_and_all_gradients_equal_the_plain_form(name, monkeypatch):
    forms, args = case(name, monkeypatch)
    assert largest_error(*forms, *args) < 2e-5


def test_bfloat16_differs_by_no_more_than_its_rounding(monkeypatch):
    forms, args = case(ROUNDED, monkeypatch)
    rounded = *(x.astype(BF16) for x in args[:5]), *args[5:]
    exact = *(x.astype(F32) for x in rounded[:5]), *args[5:]
    assert largest_error(*forms, *rounded, exact=exact) < 0.05


def test_a_kernel_drops_the_rates_share_of_weights():
    def factors(seed, rate):
        return drawn_by_gpu(tile_dropout(jax.random.key(seed), rate, 4, 1), 256)

    assert factors(0, 0.1).shape == (4, 256, 512)
    check_dropped(factors)


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
    ("kind", "sizes", "part"),
    [
        ("NVIDIA H100 80GB HBM3", (512, 128, BF16), None),
        ("Tesla T4", (512, 128, BF16), "Tesla T4"),
        ("NVIDIA B200", (192, 128, BF16), "window = 192"),
        ("NVIDIA B200", (4096, 128, BF16), "window = 4096"),
        ("NVIDIA B200", (512, 96, BF16), "head_size = 96"),
        ("NVIDIA B200", (512, 128, jnp.float16), "float16"),
    ],
)
def test_what_does_not_fit_is_named(kind, sizes, part, monkeypatch):
    monkeypatch.setattr(gpu_launch, "device", lambda: GPU(kind))
    window, head_size, dtype = sizes
    misfit = gpu_launch.window_misfit(Heads(8, head_size), window, dtype)
    assert misfit is None if part is None else part in misfit


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
