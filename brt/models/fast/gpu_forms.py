"""The Pallas kernels for GPUs with the arguments and results of `brt.models.ops`.

tests/models/test_gpu_kernels.py compares both, in a model. `fast/table.py` chooses them.
"""

import jax
from jax.typing import DTypeLike

from brt.models.axis_rules import on_gpu
from brt.models.caches import WindowCache
from brt.models.fast import kernel_forms
from brt.models.fast.kernels import gpu_launch
from brt.models.fast.kernels.parts import Heads, tile_dropout
from brt.models.ops import WindowAttention, WindowTables, scaled_queries, unit_heads
from brt.models.sizes import Sizes

ONLY_WINDOWS = "GPUs have one of windows only"


def _heads(*sizes) -> Heads:
    return kernel_forms.heads_of(*sizes)._replace(interpret=not on_gpu())


def window_misfit(sizes: Sizes, window: int, dtype: DTypeLike) -> str | None:
    """Returns why no kernel computes windowed attention, or None."""
    return gpu_launch.misfit(_heads(sizes.num_heads, sizes.head_size), window, dtype)


def states_misfit(sizes: Sizes, queries: int, keys: int) -> str:
    return ONLY_WINDOWS


def cell_misfit(sizes: Sizes, states: int, window: int, dtype: DTypeLike) -> str:
    return ONLY_WINDOWS


def window_tables(bias_HW: jax.Array, key: jax.Array | None, rate: float) -> WindowTables:
    """Returns the bias of each distance, (H, W), and what draws the dropout."""
    return WindowTables(bias_HW, tile_dropout(key, rate, len(bias_HW), 1))


def window_attention(
    with_keys: bool,
    q_BTHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    window: WindowCache,
    scale_H: jax.Array | None,
    tables: WindowTables,
) -> WindowAttention:
    B, _, H, K = q_BTHK.shape
    heads, W = _heads(H, K, B, scale_H is not None), window.keys_BWHK.shape[1]
    unit_k_BTHK = k_BTHK if scale_H is None else unit_heads(k_BTHK)
    unit_q_BTHK, ones_H = scaled_queries(q_BTHK, scale_H)
    arrays = q_BTHK, k_BTHK, v_BTHK, *window
    y_BTHK = gpu_launch.attend_to_window(heads, *arrays, ones_H, *tables)
    last = WindowCache(unit_k_BTHK[:, -W:], v_BTHK[:, -W:])
    return WindowAttention(y_BTHK, unit_q_BTHK, unit_k_BTHK, last)
