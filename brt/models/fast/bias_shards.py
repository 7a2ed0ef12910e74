"""Window attention with a bias for each data shard, whose gradients are summed by distance first.

Plain counterparts: `window_tables` and `attention` of `brt.models.ops`, with one bias (H, Q, J).
There the compiler sums the gradient of the bias of every query and key over devices, 16 MiB a layer
for windows of 512 and 8 heads; with a copy for each shard, that of the distances, 16 KiB
(tests/training/test_collectives.py).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from brt.models.axis_rules import in_one_data_shard
from brt.models.fast.data_shards import divided, joined
from brt.models.mesh_axes import copies, mesh_axes_of, parts
from brt.models.ops import WindowTables


def tables_by_shard(
    window_tables: Callable[..., WindowTables],
    always: bool,
    bias_HW: jax.Array,
    key: Any,
    rate: float,
) -> WindowTables:
    """Returns `window_tables(bias_HW, key, rate)`, with a copy of the bias for each data shard.

    The copies are along a new first axis, (P, H, ...). always: without dropout, too.
    """
    mesh = jax.sharding.get_abstract_mesh()
    is_whole = mesh.empty or in_one_data_shard() or parts("B", mesh.shape) == 1
    if is_whole or not (always or (key is not None and rate > 0)):
        return window_tables(bias_HW, key, rate)
    each_PHW = copies(mesh.shape, (jax.tree_util.GetAttrKey("bias_HW"),), bias_HW)

    def table(bias_HW):
        return window_tables(bias_HW, key, rate).bias_HWJ

    tables = jax.vmap(table, spmd_axis_name=mesh_axes_of("B"))(each_PHW)
    return WindowTables(tables, window_tables(bias_HW, key, rate).keep_HWJ)


def attention_by_shard(
    attention: Callable[..., jax.Array],
    q_BGQHK: jax.Array,
    k_BGJHK: jax.Array,
    v_BGJHK: jax.Array,
    scale_H: jax.Array,
    bias: jax.Array,
    keep_HQJ: jax.Array | None,
) -> jax.Array:
    """Returns attention with a bias (H, Q, J), or one for each data shard, (P, H, Q, J)."""
    arrays = q_BGQHK, k_BGJHK, v_BGJHK
    if bias.ndim == 3:
        return attention(*arrays, scale_H, bias, keep_HQJ)
    P, B = len(bias), len(q_BGQHK)
    if B % P:
        return attention(*arrays, scale_H, bias[0], keep_HQJ)

    def of_shard(arrays, bias_HQJ):
        return attention(*arrays, scale_H, bias_HQJ, keep_HQJ)

    each = jax.vmap(of_shard, spmd_axis_name=mesh_axes_of("B"))
    return joined(B, each(jax.tree.map(functools.partial(divided, P), arrays), bias))
