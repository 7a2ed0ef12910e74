"""The Pallas kernels for GPUs in the form of `brt.models.ops`
(tests/models/fast/test_gpu_kernels.py).
"""

import jax
from jax.typing import DTypeLike

from brt.models.axis_rules import on_gpu
from brt.models.caches import WindowCache
from brt.models.fast import kernel_forms
from brt.models.fast.kernels import gpu_attention, gpu_delta, gpu_launch
from brt.models.fast.kernels.parts import Heads, TileDropout, tile_dropout
from brt.models.ops import (
    WindowAttention,
    WindowTables,
    heads_first,
    in_blocks,
    scaled_queries,
    unit_heads,
)

NO_LOOP = "GPUs have kernels of its attention only"
window_misfit, delta = gpu_launch.window_misfit, gpu_delta


def heads_of(num_heads: int, head_size: int, rows: int = 1, qk_norm: bool = True) -> Heads:
    heads = kernel_forms.heads_of(num_heads, head_size, rows, qk_norm)
    return heads._replace(interpret=not on_gpu())


def window_tables(bias_HW: jax.Array, key: jax.Array | None, rate: float) -> WindowTables:
    """Returns the bias of each distance, (H, W), and the seeds of the dropout."""
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
    heads, W = heads_of(H, K, B, scale_H is not None), window.keys_BWHK.shape[1]
    unit_k_BTHK = k_BTHK if scale_H is None else unit_heads(k_BTHK)
    unit_q_BTHK, ones_H = scaled_queries(q_BTHK, scale_H)
    arrays = q_BTHK, k_BTHK, v_BTHK, *window
    y_BTHK = gpu_attention.attend_to_window(heads, *arrays, ones_H, *tables)
    last = WindowCache(unit_k_BTHK[:, -W:], v_BTHK[:, -W:])
    return WindowAttention(y_BTHK, unit_q_BTHK, unit_k_BTHK, last)


def states_misfit(heads: Heads, queries: int, keys: int, dtype: DTypeLike) -> str | None:
    return gpu_launch.block_misfit(heads, queries, keys)


def states_dropout(
    key: jax.Array | None, rate: float, sizes: tuple[int, int, int], dtype: DTypeLike
) -> TileDropout | None:
    return tile_dropout(key, rate, sizes[0], 1)


def attention_to_states(
    q_BTHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array | None,
    keep: TileDropout | None = None,
) -> jax.Array:
    B, T, H, K = q_BTHK.shape
    _, ones_H = scaled_queries(q_BTHK, scale_H)
    q_BGWHK = in_blocks(q_BTHK, T // k_BGSHK.shape[1])
    heads = heads_of(H, K, B, scale_H is not None)
    y_BGWHK = gpu_attention.attend_to_states(heads, q_BGWHK, k_BGSHK, v_BGSHK, ones_H, keep)
    return y_BGWHK.reshape(q_BTHK.shape)


def attention_by_head(
    q_BHQK: jax.Array, k_BHJK: jax.Array, v_BHJK: jax.Array, scale_H: jax.Array | None
) -> jax.Array:
    """For the kernel, keys and values are the states of one block."""
    k_BGJHK, v_BGJHK = (heads_first(x)[:, None] for x in (k_BHJK, v_BHJK))
    return heads_first(attention_to_states(heads_first(q_BHQK), k_BGJHK, v_BGJHK, scale_H))


def cell_misfit(heads: Heads, states: int, window: int, width: int, dtype: DTypeLike) -> str:
    return NO_LOOP
