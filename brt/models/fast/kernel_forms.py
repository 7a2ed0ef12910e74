"""The Pallas TPU kernels in the form of `brt.models.ops`
(tests/models/fast/test_kernel_attention.py).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.axis_rules import in_one_data_shard, on_gpu, on_tpu
from brt.models.caches import WindowCache
from brt.models.fast.kernels import cell as cell_kernel
from brt.models.fast.kernels import delta as delta_kernel
from brt.models.fast.kernels import states as states_kernel
from brt.models.fast.kernels import window as window_kernel
from brt.models.fast.kernels.parts import Heads, MeshAxes, TileDropout, tile_dropout, upcast
from brt.models.mesh_axes import RULES, parts
from brt.models.ops import (
    WindowAttention,
    WindowTables,
    heads_first,
    in_blocks,
    joined_heads,
    scaled_heads,
    scaled_queries,
    unit_heads,
)
from brt.models.sizes import tile_size

window_misfit, attend_to_window = window_kernel.misfit, window_kernel.attend_to_window
states_misfit, attend_to_states = states_kernel.misfit, states_kernel.attend_to_states
cell_misfit, delta = cell_kernel.misfit, delta_kernel


def heads_of(num_heads: int, head_size: int, rows: int = 1, qk_norm: bool = True) -> Heads:
    """Returns the heads of one device, for a batch of `rows`."""
    H = num_heads
    batch_axis: MeshAxes = None
    head_axis: MeshAxes = None
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        if H % parts("H", mesh.shape) == 0:
            H, head_axis = H // parts("H", mesh.shape), RULES["H"]
        if rows % parts("B", mesh.shape) == 0 and not in_one_data_shard():
            batch_axis = RULES["B"]
    return Heads(H, head_size, qk_norm, not (on_tpu() or on_gpu()), (batch_axis, head_axis, None))


def window_tables(bias_HW: jax.Array, key: jax.Array | None, rate: float) -> WindowTables:
    """Returns the bias of each distance, (H, W), and seeds for each tile of queries."""
    H, W = bias_HW.shape
    return WindowTables(bias_HW, tile_dropout(key, rate, H, W // tile_size(W)))


def window_attention(
    attend_to_window: Callable[..., jax.Array],
    q_BTHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    window: WindowCache,
    scale_H: jax.Array | None,
    tables: WindowTables,
) -> WindowAttention:
    """attend_to_window: the kernel of a kind of device, whose tables these are."""

    def unit(k_BTHK):
        return k_BTHK if scale_H is None else unit_heads(k_BTHK)

    W = window.keys_BWHK.shape[1]
    unit_q_BTHK, ones_H = scaled_queries(q_BTHK, scale_H)
    arrays = q_BTHK, k_BTHK, v_BTHK, *window
    y_BTHK = attend_to_window(_heads(q_BTHK, scale_H), *arrays, ones_H, *tables)
    # Without a memory that reads all keys, those of the last block are computed alone.
    last = WindowCache(unit(k_BTHK[:, -W:]), v_BTHK[:, -W:])
    return WindowAttention(y_BTHK, unit_q_BTHK, unit(k_BTHK), last)


def states_dropout(
    key: jax.Array | None, rate: float, sizes: tuple[int, int, int], dtype: DTypeLike
) -> TileDropout | None:
    H, W, _ = sizes
    return tile_dropout(key, rate, H, W // tile_size(W))


def attention_to_states(
    attend_to_states: Callable[..., jax.Array],
    q_BTHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array | None,
    keep: Any = None,
) -> jax.Array:
    """attend_to_states: the kernel of a kind of device, whose dropout `keep` is."""
    _, ones_H = scaled_queries(q_BTHK, scale_H)
    q_BGWHK = in_blocks(q_BTHK, q_BTHK.shape[1] // k_BGSHK.shape[1])
    arrays = q_BGWHK, k_BGSHK, v_BGSHK
    return attend_to_states(_heads(q_BTHK, scale_H), *arrays, ones_H, keep).reshape(q_BTHK.shape)


def _heads(q_BTHK, scale_H):
    B, _, H, K = q_BTHK.shape
    return heads_of(H, K, B, scale_H is not None)


def attention_by_head(
    q_BHQK: jax.Array, k_BHJK: jax.Array, v_BHJK: jax.Array, scale_H: jax.Array | None
) -> jax.Array:
    """For the kernel, each head is a block."""
    B, H, _, K = q_BHQK.shape
    heads = heads_of(H, K, B, qk_norm=False)
    axes = heads.mesh_axes[0], None, heads.mesh_axes[1]
    one = heads._replace(num_heads=1, mesh_axes=axes)
    unscaled = jnp.full(1, 1 / one.factor, upcast(q_BHQK.dtype))
    q_BHQK = scaled_heads(q_BHQK, scale_H)
    return states_kernel.block_attention(one, q_BHQK, k_BHJK, v_BHJK, unscaled)


def scan_cell(
    gate: Any, step: Callable[..., Any], weights: Any, carry: Any, blocks: Any
) -> tuple[Any, Any, Any]:
    """Returns `scan_blocks` of the step of a cell whose only gate follows both attentions."""
    del step  # `table` chooses this form for one step
    (B, _, H, _, K), (name,) = blocks.keys_BHJK.shape, weights.gates
    has_scale = weights.self_scale_H is not None
    biases = dict(weights.gates[name])
    matrix_XHKE = biases.pop(gate.source.matrix).array

    def update(states_BSD, products_BSE, biases):
        return gate(states_BSD, (), {**biases, gate.source.matrix: lambda _: products_BSE})

    ones_H = jnp.ones(H)
    matrices = weights.keys_values_XDHK.array, weights.queries_XDHK.array
    parameters = cell_kernel.CellParameters(
        weights.norm_scale_D,
        weights.ids_SD,
        joined_heads(jnp.concatenate(matrices)),
        weights.self_scale_H if has_scale else ones_H,
        weights.cross_scale_H if has_scale else ones_H,
        matrix_XHKE.reshape(2, H * K, -1),
        biases,
    )

    def joined(x_BGHWK):
        return joined_heads(heads_first(x_BGHWK)).reshape(B, -1, H * K)

    before = (joined_heads(heads_first(x_BHWK)) for x_BHWK in carry.before)
    tokens = cell_kernel.CellTokens(*map(joined, blocks), *before)
    heads = heads_of(H, K, B, has_scale)
    states_BSD, *of_states, kept_G = cell_kernel.run_cell(
        heads, update, parameters, carry.states_BSD, tokens
    )
    last = type(carry.before)(*(x_BGHWK[:, -1] for x_BGHWK in blocks))
    keys_values = (heads_first(x_BGSA.reshape(*x_BGSA.shape[:3], H, K)) for x_BGSA in of_states)
    after = carry._replace(states_BSD=states_BSD, before=last)
    return after, type(blocks)(*keys_values), {"kept": jnp.mean(kept_G)}
