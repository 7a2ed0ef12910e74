"""The Pallas kernels for GPUs in the form of `brt.models.ops`
(tests/models/fast/test_gpu_kernels.py).
"""

import jax
from jax.typing import DTypeLike

from brt.models.fast import kernel_forms
from brt.models.fast.kernels import gpu_attention, gpu_delta, gpu_launch
from brt.models.fast.kernels.parts import Heads, TileDropout, tile_dropout
from brt.models.ops import WindowTables, heads_first

NO_LOOP = "GPUs have kernels of its attention only"
heads_of, window_misfit, delta = kernel_forms.heads_of, gpu_launch.window_misfit, gpu_delta
window_attention, attend_to_window = kernel_forms.window_attention, gpu_attention.attend_to_window
attention_to_states = kernel_forms.attention_to_states
attend_to_states = gpu_attention.attend_to_states


def window_tables(bias_HW: jax.Array, key: jax.Array | None, rate: float) -> WindowTables:
    """Returns the bias of each distance, (H, W), and the seeds of the dropout."""
    return WindowTables(bias_HW, tile_dropout(key, rate, len(bias_HW), 1))


def states_misfit(heads: Heads, queries: int, keys: int, dtype: DTypeLike) -> str | None:
    return gpu_launch.block_misfit(heads, queries, keys)


def states_dropout(
    key: jax.Array | None, rate: float, sizes: tuple[int, int, int], dtype: DTypeLike
) -> TileDropout | None:
    return tile_dropout(key, rate, sizes[0], 1)


def attention_by_head(
    q_BHQK: jax.Array, k_BHJK: jax.Array, v_BHJK: jax.Array, scale_H: jax.Array | None
) -> jax.Array:
    """For the kernel, keys and values are the states of one block."""
    k_BGJHK, v_BGJHK = (heads_first(x)[:, None] for x in (k_BHJK, v_BHJK))
    arrays = heads_first(q_BHQK), k_BGJHK, v_BGJHK, scale_H
    return heads_first(attention_to_states(attend_to_states, *arrays))


def cell_misfit(heads: Heads, states: int, window: int, width: int, dtype: DTypeLike) -> str:
    return NO_LOOP
