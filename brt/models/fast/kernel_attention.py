"""Attention of a layer in one of three forms: `attend` of the blocks, Pallas kernels, or cuDNN.

tests/models/test_kernel_attention.py compares them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.axis_rules import in_one_data_shard
from brt.models.block_recurrent.memory import BlockPairs, BlockStates, LayerTokens
from brt.models.caches import WindowCache
from brt.models.fast import attention
from brt.models.fast import cudnn_attention as cudnn
from brt.models.fast.kernels import cell as cell_kernel
from brt.models.fast.kernels import states as states_kernel
from brt.models.fast.kernels import window as window_kernel
from brt.models.fast.kernels.parts import Heads, on_tpu, upcast
from brt.models.fast.loop_weights import arrays_uncast
from brt.models.layers.attention import attend
from brt.models.layers.dropout import TileDropout
from brt.models.layers.norms import scaled_down_heads, unit_heads
from brt.models.layers.sizes import TILE, Sizes, tile_size
from brt.progress import say

BINDING = "BlockRecurrentTransformer.attention_form"


def heads_of(sizes: Sizes, rows: int = 1) -> Heads:
    """Returns the heads of one device, for a batch of `rows`."""
    H, batch_axis, head_axis = sizes.num_heads, None, None
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        shape = mesh.shape
        if H % shape["model"] == 0:
            H, head_axis = H // shape["model"], "model"
        if rows % shape["data"] == 0 and not in_one_data_shard():
            batch_axis = "data"
    axes = batch_axis, head_axis, None
    return Heads(H, sizes.head_size, sizes.qk_norm, not on_tpu(), axes)


def has_window_kernel(sizes: Sizes, window: int, dtype: DTypeLike, sinks: bool = False) -> bool:
    """Returns whether a layer's self-attention is a kernel, by `sizes.attention_form`.

    A `ValueError` if the form is "kernel" and no kernel has such sizes.
    """
    misfit = window_kernel.misfit(heads_of(sizes), window, dtype)
    if sinks:
        misfit = "BlockRecurrentTransformer.attention_sinks = True has no kernel"
    return has_kernel(sizes, f"Attention, a window of {window} tokens", misfit)


def has_block_kernel(sizes: Sizes, queries: int, keys: int) -> bool:
    """Returns whether attention of each block's queries to its own keys is a kernel.

    A `ValueError` as of `has_window_kernel`.
    """
    misfit = states_kernel.misfit(heads_of(sizes), queries, keys)
    return has_kernel(sizes, f"Attention, {queries} queries and {keys} keys of a block", misfit)


def draws_states_dropout(sizes: Sizes, queries: int, keys: int) -> bool:
    """Returns whether that kernel draws the dropout of its weights itself."""
    return has_block_kernel(sizes, queries, keys) and not (queries % TILE or keys % TILE)


def has_cell_kernel(
    sizes: Sizes, states: int, window: int, dtype: DTypeLike, misfit: str | None = None
) -> bool:
    """Returns whether a cell's step is one kernel; otherwise its attentions are chosen alone.

    misfit: why it cannot be one, beside its sizes.
    """
    misfit = misfit or cell_kernel.misfit(heads_of(sizes), states, window, sizes.width, dtype)
    what = f"Step of a cell, {states} states and blocks of {window} tokens"
    return has_kernel(sizes, what, misfit, required=False)


def has_kernel(
    sizes: Sizes, what: str, misfit: str | None, binding: str = BINDING, required: bool = True
) -> bool:
    """Returns whether `what` is a kernel, and logs it once.

    misfit: why it cannot be one: a `ValueError` if the form is "kernel" and `required`.
    """
    form = sizes.attention_form
    if form == "kernel" and misfit and required:
        raise ValueError(f'{binding} = "kernel": {what}: {misfit}. Use "auto" or "plain".')
    if form in ("plain", "cudnn") or not (form == "kernel" or on_tpu()):
        return False
    kernel = "a Pallas kernel" if on_tpu() else "a Pallas kernel, interpreted (slow)"
    found = f"no kernel, because {misfit}" if misfit else kernel
    _say_once(f"{what}, {sizes.num_heads} heads of {sizes.head_size}: {found}")
    return not misfit


@functools.cache
def _say_once(line):
    say(line)


def seen_keys(sizes: Sizes, window: int, dtype: DTypeLike, sinks: bool = False) -> int:
    """Returns J, the keys of a query in the tables of `attend_to_window`: 2W, or W + Q for a
    kernel.
    """
    has_tiles = has_window_kernel(sizes, window, dtype, sinks)
    return window + (tile_size(window) if has_tiles else window)


def attend_to_window(
    sizes: Sizes,
    projected: Sequence[jax.Array],
    cache: WindowCache,
    tokens: LayerTokens,
    blocks: BlockPairs,
    bias: jax.Array,
    keep: jax.Array | TileDropout | None,
    sink_H: jax.Array | None = None,
    in_cell: bool = False,
    remat: bool = False,
) -> tuple[jax.Array, WindowCache, LayerTokens]:
    """Returns windowed self-attention, (B, T, H, K), the cache of the last block, and the tokens
    for a cell.

    Args:
        projected: queries, keys and values of `tokens` before normalisation.
        cache: of the block before the segment.
        tokens, blocks: normalised.
        bias: of a block, or for a kernel of a tile, (H, Q, `seen_keys`).
        keep: dropout factors, (H, W, `seen_keys`), or for a kernel what draws them.
        sink_H: as of `attend`; no kernel has one.
        in_cell: whether a cell attends to the tokens as well.
        remat: recompute the plain form in the backward pass; kernels always do.
    """
    W = cache.keys_BWHK.shape[1]
    if not has_window_kernel(sizes, W, cache.keys_BWHK.dtype, sink_H is not None):
        plain = tokens.scale_H, bias, keep, sink_H
        y_BTHK = _attend_in_blocks(sizes, tokens.queries_BTHK, *blocks, *plain, remat)
        return y_BTHK, WindowCache(tokens.keys_BTHK[:, -W:], tokens.values_BTHK[:, -W:]), tokens
    q, k, v, cached_k, cached_v = map(joined_heads, (*projected, *cache))
    heads, tables = heads_of(sizes, len(q)), (tokens.scale_H, bias, keep)
    inputs = heads, q, k, v, cached_k, cached_v, *tables
    if in_cell:
        (y_BTA, *last_BWA), *used = window_kernel.attention_and_tokens(*inputs)
        k_BTHK, v_BTHK = (x_BTA.reshape(projected[0].shape) for x_BTA in used)
        tokens = tokens._replace(projected_keys_BTHK=k_BTHK, values_BTHK=v_BTHK)
    else:
        y_BTA, *last_BWA = window_kernel.window_attention(*inputs)
    last_BWHK = (x_BWA.reshape(cache.keys_BWHK.shape) for x_BWA in last_BWA)
    return y_BTA.reshape(projected[0].shape), WindowCache(*last_BWHK), tokens


def attend_to_states(
    sizes: Sizes,
    q_BTHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array,
    keep: jax.Array | TileDropout | None,
    remat: bool = False,
) -> jax.Array:
    """Returns attention of the tokens of G blocks to each block's states, (B, T, H, K).

    Queries, T = G * W, are not normalised, keys are. scale_H: as of `attend`. keep: dropout
    factors, (H, W, S), or for a kernel what draws them. remat: as of `attend_to_window`.
    """
    T, G, S = q_BTHK.shape[1], *k_BGSHK.shape[1:3]
    if not has_block_kernel(sizes, T // G, S):
        q_BTHK = unit_heads(q_BTHK) if sizes.qk_norm else scaled_down_heads(q_BTHK)
        arrays = q_BTHK, k_BGSHK, v_BGSHK, scale_H, None, keep, None
        return _attend_in_blocks(sizes, *arrays, remat)
    heads = heads_of(sizes, len(q_BTHK))
    k_BGSA, v_BGSA = joined_heads(k_BGSHK), joined_heads(v_BGSHK)
    q_BGWA = q_BTHK.reshape(*k_BGSA.shape[:2], T // G, k_BGSA.shape[-1])
    y_BGWA = states_kernel.block_attention(heads, q_BGWA, k_BGSA, v_BGSA, scale_H, keep)
    return y_BGWA.reshape(q_BTHK.shape)


def _attend_in_blocks(sizes, q_BTHK, k_BGJHK, v_BGJHK, scale_H, bias, keep, sink_H, remat):
    has_cudnn = _has_cudnn(sizes, q_BTHK.dtype, keep, sink_H)

    def in_blocks(*arrays):
        q, k, v, scale_H, bias = arrays
        if has_cudnn:
            return cudnn.cudnn_attention(q, k, v, scale_H, bias)
        return attend(q, k, v, scale_H, bias, keep, sink_H)

    in_blocks = jax.checkpoint(in_blocks) if remat else in_blocks
    q_BGWHK = q_BTHK.reshape(*k_BGJHK.shape[:2], -1, *q_BTHK.shape[2:])
    return in_blocks(q_BGWHK, k_BGJHK, v_BGJHK, scale_H, bias).reshape(q_BTHK.shape)


def _has_cudnn(sizes, dtype, keep=None, sink_H=None):
    if sizes.attention_form != "cudnn":
        return False
    misfit = cudnn.misfit(dtype, keep is not None, sink_H is not None)
    if misfit:
        raise ValueError(f'{BINDING} = "cudnn": {misfit}. Or use "plain".')
    _say_once(f"Attention, {sizes.num_heads} heads of {sizes.head_size}: cuDNN")
    return True


def attend_by_head(
    sizes: Sizes, q_BHQK: jax.Array, k_BHXK: jax.Array, v_BHXK: jax.Array
) -> jax.Array:
    """Returns attention by head of scaled queries, by a kernel, by cuDNN, or in plain form.

    To the kernel each head is a block.
    """
    if _has_cudnn(sizes, q_BHQK.dtype):
        arrays = map(attention.heads_first, (q_BHQK, k_BHXK, v_BHXK))
        return attention.heads_first(cudnn.cudnn_attention(*arrays))
    if not has_block_kernel(sizes, q_BHQK.shape[2], k_BHXK.shape[2]):
        return attention.attend_by_head(q_BHQK, k_BHXK, v_BHXK)
    heads = heads_of(sizes, len(q_BHQK))
    axes = heads.mesh_axes[0], None, heads.mesh_axes[1]
    one = heads._replace(num_heads=1, qk_norm=False, mesh_axes=axes)
    unscaled = jnp.full(1, 1 / one.factor, upcast(q_BHQK.dtype))
    return states_kernel.block_attention(one, q_BHQK, k_BHXK, v_BHXK, unscaled)


def run_cell(
    sizes: Sizes,
    update: Callable[..., tuple[jax.Array, jax.Array]],
    weights: dict[str, Any],
    states_BSD: jax.Array,
    tokens: LayerTokens,
) -> tuple[jax.Array, BlockStates, jax.Array]:
    """Runs the blocks of a segment through a cell, with a kernel for each block.

    update: of the cell's gate. weights: of `RecurrentCell.prepare`. Returns the next states, (B, S,
    D), each block's keys and values of the states, and the mean of keep.
    """
    weights = arrays_uncast(weights)
    ones, gate = jnp.ones(sizes.num_heads), weights["attention_gate"]
    parameters = cell_kernel.CellParameters(
        weights["norm_scale_D"],
        weights.get("ids_SD"),
        joined_heads(weights["heads_XDHK"]),
        weights.get("self_scale_H", ones),
        weights.get("cross_scale_H", ones),
        gate["matrix_XHKND"].reshape(2, sizes.attention_size, -1),
        {name: bias for name, bias in gate.items() if name != "matrix_XHKND"},
    )

    arrays = tokens.projected_keys_BTHK, tokens.values_BTHK, *tokens.window
    inputs = (
        update,
        parameters,
        states_BSD,
        cell_kernel.CellTokens(*map(joined_heads, arrays)),
    )
    after, k, v, kept_G = cell_kernel.run_cell(heads_of(sizes, len(states_BSD)), *inputs)
    k_BGSHK, v_BGSHK = (x.reshape(*x.shape[:3], *arrays[0].shape[2:]) for x in (k, v))
    return after, BlockStates(k_BGSHK, v_BGSHK), jnp.mean(kept_G)


def joined_heads(x_BTHK):
    return x_BTHK.reshape(*x_BTHK.shape[:-2], -1)
