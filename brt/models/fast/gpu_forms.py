"""The Pallas kernels for GPUs in the form of `brt.models.ops`
(tests/models/fast/test_gpu_kernels.py).
"""

import jax
from jax.typing import DTypeLike

from brt.models.fast import kernel_forms
from brt.models.fast.kernels import gpu_attention, gpu_delta, gpu_launch
from brt.models.fast.kernels.parts import Heads
from brt.models.ops import heads_first

NO_LOOP = "GPUs have kernels of its attention only"
heads_of, window_misfit, delta = kernel_forms.heads_of, gpu_launch.window_misfit, gpu_delta
window_attention, attend_to_window = kernel_forms.window_attention, gpu_attention.attend_to_window
attention_to_states = kernel_forms.attention_to_states
attend_to_states = gpu_attention.attend_to_states
window_tables, states_dropout = kernel_forms.window_tables, kernel_forms.states_dropout


def states_misfit(heads: Heads, queries: int, keys: int, dtype: DTypeLike) -> str | None:
    return gpu_launch.block_misfit(heads, queries, keys)


def attention_by_head(
    q_BHQK: jax.Array, k_BHJK: jax.Array, v_BHJK: jax.Array, scale_H: jax.Array | None
) -> jax.Array:
    """For the kernel, keys and values are the states of one block."""
    k_BGJHK, v_BGJHK = (heads_first(x)[:, None] for x in (k_BHJK, v_BHJK))
    arrays = heads_first(q_BHQK), k_BGJHK, v_BGJHK, scale_H
    return heads_first(attention_to_states(attend_to_states, *arrays))


def cell_misfit(heads: Heads, states: int, window: int, width: int, dtype: DTypeLike) -> str:
    return NO_LOOP
