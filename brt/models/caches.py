"""Caches: values that go in and come out, and hold what a model remembers between segments.

The segment form is carried from segment to segment; segments end at block boundaries, so it holds
whole blocks. The decoding form is carried from token to token; it also holds the block that is
being filled, and how far each batch element has filled it. `init_caches` of a model is the only
definition of "empty". The functions here work on whole trees and know no layer.

Caches are named tuples of arrays, batch first, whose names end in their axes; these decide how
they are divided over devices. Those of the segment form have a method `clear_state(empty)`.
"""

import re
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")
"""Arrays in any nesting of tuples, lists and dictionaries."""


class WindowCache(NamedTuple):
    """Keys and values of the last block: what the next block sees to its left.

    keys_BWHK, values_BWHK: (B, W, H, K) in the activations' type. Empty: zeros, visible.
    """

    keys_BWHK: jax.Array
    values_BWHK: jax.Array


class LayerCache(NamedTuple):
    """The window of a layer and the caches of its memories, in their order."""

    window: WindowCache
    memories: tuple = ()

    @property
    def carries_state(self) -> bool:
        """Whether any memory holds more than a window."""
        return bool(with_state(self.memories))

    def clear_state(self, empty: "LayerCache") -> "LayerCache":
        """Keeps the window and clears every memory in its own way."""
        pairs = zip(self.memories, empty.memories, strict=True)
        return self._replace(memories=tuple(cache.clear_state(fresh) for cache, fresh in pairs))


class DecodingWindow(NamedTuple):
    """The window while a block is being filled.

    keys_BJHK, values_BJHK: (B, 2W, H, K), the previous block and the current one, which the mask
        hides beyond the fill.
    fill_B: (B,) int32, tokens of the current block so far, 0 ... W - 1.
    """

    keys_BJHK: jax.Array
    values_BJHK: jax.Array
    fill_B: jax.Array


class DecodingLayer(NamedTuple):
    """A layer's window while a block is being filled, and the decoding forms of its memories."""

    window: DecodingWindow
    memories: tuple = ()


def select_rows(rows_B: jax.Array, chosen: Tree, others: Tree) -> Tree:
    """Returns the batch elements of `chosen` where `rows_B` is true, those of `others` elsewhere.

    rows_B: (B,) bool. The two trees have the same structure, and the batch first.
    """

    def pick(new, old):
        return jnp.where(rows_B.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(pick, chosen, others)


def reset_rows(caches: Tree, empty: Tree, starts_B: jax.Array) -> Tree:
    """Returns `empty` for batch elements that begin a document, and the caches of the others.

    `empty` may hold learned values, so this belongs inside the differentiated function.

    Args:
        caches: in either form.
        empty: from `init_caches`, in the same form.
        starts_B: (B,) bool.
    """
    return select_rows(starts_B, empty, caches)


def clear_state(caches: tuple, empty: tuple) -> tuple:
    """Clears every long-term state and keeps the windows (Block-Recurrent, appendix G.1)."""
    return tuple(cache.clear_state(fresh) for cache, fresh in zip(caches, empty, strict=True))


def with_state(caches: tuple) -> list[int]:
    """Returns the indices of segment-form caches that hold more than a window.

    A cache that clearing does not change declares it: `carries_state = False`.
    """
    return [i for i, cache in enumerate(caches) if getattr(cache, "carries_state", True)]


def check_caches(shapes: tuple, rows: int) -> None:
    """Refuses caches that cannot be carried from segment to segment.

    Args:
        shapes: what `init_caches(rows)` of a model returns, as shapes.
        rows: a number that no other axis has.
    """
    for cache in shapes:
        for part in (*getattr(cache, "memories", ()), cache):
            name = type(part).__name__
            if not hasattr(part, "_fields"):
                raise ValueError(f"{name} is carried as a cache: make it a typing.NamedTuple.")
            if not hasattr(part, "clear_state"):
                raise ValueError(
                    f"{name} has no method clear_state(empty): return `empty` to forget all where "
                    "the state is cleared, or `self` to forget nothing."
                )
            for path, field in jax.tree_util.tree_flatten_with_path(part)[0]:
                axes = re.search(r"_(B[A-Z]*)$", getattr(path[-1], "name", ""))
                if field.shape[:1] != (rows,) or not axes or len(axes[1]) != field.ndim:
                    raise ValueError(
                        f"{name}{jax.tree_util.keystr(path)} has shape {field.shape} for {rows} "
                        "rows: every field has its rows first, counts too, and a name that ends in "
                        "the names of its axes, such as keys_BWHK or count_B."
                    )


def fill_window(
    window: WindowCache, block: WindowCache | None = None, fill_B: jax.Array | None = None
) -> DecodingWindow:
    """Returns the decoding form: the last block and the part of the next one so far.

    Args:
        window: the last whole block.
        block: the block after it, of which the first `fill_B` tokens count and the rest is
            padding. None: no token of it.
        fill_B: (B,) int32, 0 ... W - 1.
    """
    rows, W = window.keys_BWHK.shape[:2]
    if block is None or fill_B is None:
        fill_B = jnp.zeros(rows, jnp.int32)
    read_BW = jnp.arange(W) < fill_B[:, None]

    def buffer(x_BWHK, current_BWHK):
        current_BWHK = jnp.where(read_BW[..., None, None], current_BWHK, 0)
        return jnp.concatenate([x_BWHK, current_BWHK], axis=1)

    current = window if block is None else block
    return DecodingWindow(
        buffer(window.keys_BWHK, current.keys_BWHK),
        buffer(window.values_BWHK, current.values_BWHK),
        fill_B,
    )


def write_token(
    window: DecodingWindow, k_BHK: jax.Array, v_BHK: jax.Array, reads_B: jax.Array | bool = True
) -> DecodingWindow:
    """Writes one token's key and value at the fill of each batch element that has a token.

    `advance` then counts the token. reads_B: (B,) bool.
    """
    rows = jnp.arange(window.fill_B.shape[0])
    slot_B = window.keys_BJHK.shape[1] // 2 + window.fill_B

    def put(x_BJHK, token_BHK):
        if reads_B is not True:
            token_BHK = select_rows(jnp.asarray(reads_B), token_BHK, x_BJHK[rows, slot_B])
        return x_BJHK.at[rows, slot_B].set(token_BHK)

    return window._replace(
        keys_BJHK=put(window.keys_BJHK, k_BHK), values_BJHK=put(window.values_BJHK, v_BHK)
    )


def completes_block(window: DecodingWindow, reads_B: jax.Array | bool = True) -> jax.Array:
    """Returns whether the token just written is the last of its block, (B,) bool."""
    return (window.fill_B + 1 == window.keys_BJHK.shape[1] // 2) & reads_B


def advance(window: DecodingWindow, reads_B: jax.Array | bool = True) -> DecodingWindow:
    """Counts the token just written; a full block becomes the previous one."""
    W = window.keys_BJHK.shape[1] // 2
    full_B = completes_block(window, reads_B)
    counted = window._replace(fill_B=window.fill_B + jnp.asarray(reads_B, jnp.int32))

    def shift(window):
        def roll(x_BJHK):
            return jnp.concatenate([x_BJHK[:, W:], jnp.zeros_like(x_BJHK[:, W:])], axis=1)

        shifted = DecodingWindow(
            roll(window.keys_BJHK), roll(window.values_BJHK), jnp.zeros_like(window.fill_B)
        )
        return select_rows(full_B, shifted, window)

    return jax.lax.cond(jnp.any(full_B), shift, lambda window: window, counted)


def last_block(window: DecodingWindow) -> WindowCache:
    """Returns the segment form of a window at a block boundary (fill 0)."""
    W = window.keys_BJHK.shape[1] // 2
    return WindowCache(window.keys_BJHK[:, :W], window.values_BJHK[:, :W])
