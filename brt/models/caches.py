"""Caches: a model's memory between segments, passed in and returned.

The segment form is carried from segment to segment and holds whole blocks; the decoding form
(`decoding_window.py`) from token to token. `init_caches` of a model defines "empty". Caches are
named tuples of arrays, batch first, whose names end in their axes.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


class WindowCache(NamedTuple):
    """Keys and values of the last block, (B, W, H, K), activations' type. Empty: visible zeros."""

    keys_BWHK: jax.Array
    values_BWHK: jax.Array


class LayerCache(NamedTuple):
    window: WindowCache
    memories: tuple = ()

    @property
    def carries_state(self) -> bool:
        return bool(with_state(self.memories))

    def clear_state(self, empty: "LayerCache") -> "LayerCache":
        return self._replace(memories=clear_state(self.memories, empty.memories))


def select_rows(rows_B: jax.Array, chosen: Tree, others: Tree) -> Tree:
    """Returns `chosen` for the batch elements in `rows_B`, (B,) bool, and `others` elsewhere.

    (B, T) bool selects positions.
    """

    def pick(new, old):
        return jnp.where(rows_B.reshape(rows_B.shape + (1,) * (old.ndim - rows_B.ndim)), new, old)

    return jax.tree.map(pick, chosen, others)


def zeros_outside(real_BT: jax.Array, tree: Tree) -> Tree:
    """Returns arrays (B, T, ...), zero where `real_BT` is false; (B,): of whole batch elements."""
    return select_rows(real_BT, tree, jax.tree.map(jnp.zeros_like, tree))


def clear_state(caches: tuple, empty: tuple) -> tuple:
    """Clears every long-term state and keeps the windows (Block-Recurrent, appendix G.1)."""
    return tuple(cleared(cache, fresh) for cache, fresh in zip(caches, empty, strict=True))


def cleared(cache: Any, empty: Any) -> Any:
    """Returns a cache without its state: `empty`, or by its method `clear_state(empty)`."""
    if not getattr(cache, "carries_state", True):
        return cache
    return cache.clear_state(empty) if hasattr(cache, "clear_state") else empty


def with_state(caches: tuple) -> list[int]:
    """Returns the indices of caches that hold more than a window.

    A cache without a state, which clearing does not change, declares `carries_state = False`.
    """
    return [i for i, cache in enumerate(caches) if getattr(cache, "carries_state", True)]
