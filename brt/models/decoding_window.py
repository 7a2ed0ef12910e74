"""The decoding form of a window: the last block, and the block that is being filled."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from brt.models.caches import Tree, WindowCache, select_rows, zeros_outside


class DecodingWindow(NamedTuple):
    """The window while a block is being filled.

    keys_BJHK, values_BJHK: (B, 2W, H, K), the previous block and the current one, masked beyond the
    fill.
    fill_B: (B,) int32, tokens of the current block so far, 0 ... W - 1.
    """

    keys_BJHK: jax.Array
    values_BJHK: jax.Array
    fill_B: jax.Array


class DecodingLayer(NamedTuple):
    window: DecodingWindow
    memories: tuple = ()


def fill_window(
    window: WindowCache, block: WindowCache | None = None, fill_B: jax.Array | None = None
) -> DecodingWindow:
    """Returns the decoding form of a window.

    block: the next block, of which the first `fill_B` tokens count; None: no token.
    """
    rows, W = window.keys_BWHK.shape[:2]
    if block is None or fill_B is None:
        block, fill_B = window, jnp.zeros(rows, jnp.int32)
    block = zeros_outside(jnp.arange(W) < fill_B[:, None], block)
    keys_BJHK, values_BJHK = (jnp.concatenate(pair, axis=1) for pair in zip(window, block))
    return DecodingWindow(keys_BJHK, values_BJHK, fill_B)


def update_where(rows_B: jax.Array, update: Callable[[Tree], Tree], caches: Tree) -> Tree:
    """Returns `update(caches)` for the batch elements in `rows_B`; computes nothing if none is."""

    def change(caches):
        return select_rows(rows_B, update(caches), caches)

    return jax.lax.cond(jnp.any(rows_B), change, lambda caches: caches, caches)


def write_slot(
    x_BJ: jax.Array, slot_B: jax.Array, new_B: jax.Array, reads_B: jax.Array | bool = True
) -> jax.Array:
    """Writes (B, ...) into one slot of (B, J, ...), for the batch elements in `reads_B`."""
    rows = jnp.arange(len(slot_B))
    if reads_B is not True:
        new_B = select_rows(jnp.asarray(reads_B), new_B, x_BJ[rows, slot_B])
    return x_BJ.at[rows, slot_B].set(new_B)


def write_token(
    window: DecodingWindow, k_BHK: jax.Array, v_BHK: jax.Array, reads_B: jax.Array | bool = True
) -> DecodingWindow:
    slot_B = window.keys_BJHK.shape[1] // 2 + window.fill_B
    keys_BJHK = write_slot(window.keys_BJHK, slot_B, k_BHK, reads_B)
    values_BJHK = write_slot(window.values_BJHK, slot_B, v_BHK, reads_B)
    return DecodingWindow(keys_BJHK, values_BJHK, window.fill_B)


def completes_block(window: DecodingWindow, reads_B: jax.Array | bool = True) -> jax.Array:
    """Returns whether the token just written completes its block, (B,) bool."""
    return (window.fill_B + 1 == window.keys_BJHK.shape[1] // 2) & reads_B


def advance(window: DecodingWindow, reads_B: jax.Array | bool = True) -> DecodingWindow:
    """Counts the token just written; a full block becomes the previous one."""
    full_B = completes_block(window, reads_B)
    counted = window._replace(fill_B=window.fill_B + jnp.asarray(reads_B, jnp.int32))

    def shift(window):
        W = window.keys_BJHK.shape[1] // 2
        return fill_window(WindowCache(window.keys_BJHK[:, W:], window.values_BJHK[:, W:]))

    return update_where(full_B, shift, counted)


def last_block(window: DecodingWindow) -> WindowCache:
    W = window.keys_BJHK.shape[1] // 2
    return WindowCache(window.keys_BJHK[:, :W], window.values_BJHK[:, :W])
