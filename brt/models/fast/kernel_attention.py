"""Attention of a layer in one of two forms: `attend` of the blocks, or Pallas kernels.

tests/models/test_kernel_attention.py compares them. Axes as in `brt.models`.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from brt.models.axis_rules import in_one_data_shard
from brt.models.block_recurrent.memory import BlockPairs, LayerTokens
from brt.models.caches import WindowCache
from brt.models.fast import attention, states_kernel, window_kernel
from brt.models.fast.kernel_parts import Heads, tile_size, upcast
from brt.models.layers.attention import attend
from brt.models.layers.dropout import LayerMasks
from brt.models.layers.norms import scaled_down_heads, unit_heads
from brt.models.layers.sizes import Sizes
from brt.progress import say

BINDING = "BlockRecurrentTransformer.attention_form"


def _mesh():
    return jax.sharding.get_abstract_mesh()


def on_tpu() -> bool:
    """Returns whether the function that is traced now runs on a TPU."""
    device = None if _mesh().empty else _mesh().abstract_device
    kind = jax.devices()[0].device_kind if device is None else device.device_kind
    return kind.startswith("TPU")


def heads_of(sizes: Sizes, rows: int = 1) -> Heads:
    """Returns the heads of one device, for a batch of `rows`."""
    H, batch_axis, head_axis = sizes.num_heads, None, None
    if not _mesh().empty:
        shape = _mesh().shape
        if H % shape["model"] == 0:
            H, head_axis = H // shape["model"], "model"
        if rows % shape["data"] == 0 and not in_one_data_shard():
            batch_axis = "data"
    axes = batch_axis, head_axis, None
    return Heads(H, sizes.head_size, sizes.qk_norm, not on_tpu(), axes)


def has_window_kernel(sizes: Sizes, window: int, sink_H: jax.Array | None = None) -> bool:
    """Returns whether a layer's self-attention is a kernel, by `sizes.attention_form`.

    Raises:
        ValueError: if the form is "kernel" and no kernel has such sizes.
    """
    misfit = window_kernel.misfit(heads_of(sizes), window)
    if sink_H is not None:
        misfit = "BlockRecurrentTransformer.attention_sinks = True has no kernel"
    return _has_kernel(sizes, f"a window of {window} tokens", misfit)


def has_block_kernel(sizes: Sizes, queries: int, keys: int) -> bool:
    """Returns whether attention of each block's queries to its own keys is a kernel."""
    misfit = states_kernel.misfit(heads_of(sizes), queries, keys)
    return _has_kernel(sizes, f"{queries} queries and {keys} keys of a block", misfit)


def _has_kernel(sizes, what, misfit):
    form = sizes.attention_form
    if form == "kernel" and misfit:
        raise ValueError(f'{BINDING} = "kernel", for {what}: {misfit}. Use "auto" or "plain".')
    if form == "plain" or not (form == "kernel" or on_tpu()):
        return False
    reason = f"plain form, because {misfit}" if misfit else "Pallas kernel"
    _say_once(f"Attention, {what}, {sizes.num_heads} heads of {sizes.head_size}: {reason}")
    return not misfit


@functools.cache
def _say_once(line):
    say(line)


def tables_of_tiles(
    sizes: Sizes, bias_HWJ: jax.Array, masks: LayerMasks, sink_H: jax.Array | None = None
) -> tuple[jax.Array, LayerMasks]:
    """Returns bias and masks of a block and its pair of blocks as `attend_to_window` takes them.

    For a kernel: the bias of the first tile, (H, Q, W + Q), which all tiles share; and of the
    weights' mask the W + Q keys that each tile sees, (H, W, W + Q).
    """
    W = bias_HWJ.shape[1]
    if not has_window_kernel(sizes, W, sink_H):
        return bias_HWJ, masks
    Q = tile_size(W)
    if masks.weights_HWJ is not None:
        tiles = (masks.weights_HWJ[:, at : at + Q, at : at + W + Q] for at in range(0, W, Q))
        masks = masks._replace(weights_HWJ=jnp.concatenate(list(tiles), axis=1))
    return bias_HWJ[:, :Q, : W + Q], masks


def attend_to_window(
    sizes: Sizes,
    projected: Sequence[jax.Array],
    cache: WindowCache,
    tokens: LayerTokens,
    blocks: BlockPairs,
    bias: jax.Array,
    keep: jax.Array | None,
    sink_H: jax.Array | None = None,
    remat: bool = False,
) -> jax.Array:
    """Returns windowed self-attention, (B, T, H, K).

    Args:
        projected: queries, keys and values of `tokens` before normalisation.
        cache: of the block before the segment.
        tokens, blocks: normalised.
        bias, keep: from `tables_of_tiles`.
        sink_H: as of `attend`; no kernel has one.
        remat: recompute the plain form in the backward pass; kernels always do.
    """
    W = cache.keys_BWHK.shape[1]
    if not has_window_kernel(sizes, W, sink_H):
        plain = tokens.scale_H, bias, keep, sink_H
        return _attend_in_blocks(tokens.queries_BTHK, *blocks, *plain, remat)
    q, k, v, cached_k, cached_v = map(_joined_heads, (*projected, *cache))
    heads, tables = heads_of(sizes, len(q)), (tokens.scale_H, bias, keep)
    y_BTA = window_kernel.window_attention(heads, q, k, v, cached_k, cached_v, *tables)
    return y_BTA.reshape(projected[0].shape)


def attend_to_states(
    sizes: Sizes,
    q_BTHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array,
    keep_HWS: jax.Array | None,
    remat: bool = False,
) -> jax.Array:
    """Returns attention of the tokens of G blocks to each block's states, (B, T, H, K).

    Args:
        q_BTHK: not normalised, T = G * W.
        k_BGSHK, v_BGSHK: keys, normalised, and values.
        scale_H, keep_HWS: as of `attend`.
        remat: as of `attend_to_window`.
    """
    T, G, S = q_BTHK.shape[1], *k_BGSHK.shape[1:3]
    if not has_block_kernel(sizes, T // G, S):
        q_BTHK = unit_heads(q_BTHK) if sizes.qk_norm else scaled_down_heads(q_BTHK)
        return _attend_in_blocks(q_BTHK, k_BGSHK, v_BGSHK, scale_H, None, keep_HWS, None, remat)
    heads = heads_of(sizes, len(q_BTHK))
    k_BGSA, v_BGSA = _joined_heads(k_BGSHK), _joined_heads(v_BGSHK)
    q_BGWA = q_BTHK.reshape(*k_BGSA.shape[:2], T // G, k_BGSA.shape[-1])
    y_BGWA = states_kernel.block_attention(heads, q_BGWA, k_BGSA, v_BGSA, scale_H, keep_HWS)
    return y_BGWA.reshape(q_BTHK.shape)


def _attend_in_blocks(q_BTHK, k_BGJHK, v_BGJHK, scale_H, bias, keep, sink_H, remat):
    attention = jax.checkpoint(attend) if remat else attend
    q_BGWHK = q_BTHK.reshape(*k_BGJHK.shape[:2], -1, *q_BTHK.shape[2:])
    return attention(q_BGWHK, k_BGJHK, v_BGJHK, scale_H, bias, keep, sink_H).reshape(q_BTHK.shape)


def attend_by_head(
    sizes: Sizes, q_BHQK: jax.Array, k_BHXK: jax.Array, v_BHXK: jax.Array
) -> jax.Array:
    """Returns `brt.models.fast.attention.attend_by_head`, of scaled queries, by a kernel if it can.

    To the kernel each head is a block of its own.
    """
    if not has_block_kernel(sizes, q_BHQK.shape[2], k_BHXK.shape[2]):
        return attention.attend_by_head(q_BHQK, k_BHXK, v_BHXK)
    heads = heads_of(sizes, len(q_BHQK))
    axes = heads.mesh_axes[0], None, heads.mesh_axes[1]
    one = heads._replace(num_heads=1, qk_norm=False, mesh_axes=axes)
    unscaled = jnp.full(1, 1 / one.factor, upcast(q_BHQK.dtype))
    return states_kernel.block_attention(one, q_BHQK, k_BHXK, v_BHXK, unscaled)


def _joined_heads(x_BTHK):
    return x_BTHK.reshape(*x_BTHK.shape[:-2], -1)
