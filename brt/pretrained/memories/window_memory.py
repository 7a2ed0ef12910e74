"""The interface of a memory between windows of a pretrained body.

A body reads one window; what a memory carries to the next is a cache that goes in and comes out. A
memory may put vectors among a layer's inputs for keys and values, add to what a layer's attention
puts out, and take in what the window was read as. Letters as in `brt.pretrained`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.typing import DTypeLike

from brt.pretrained.backbone_layer import Extra, Heads, LayerKeys, Reads, extra_keys
from brt.pretrained.decoders.decoder import Decoder


class Positions(NamedTuple):
    """Which positions of a window hold a token, and which of them the next window reads again.

    real_BT, again_BT: (B, T) bool.
    """

    real_BT: jax.Array
    again_BT: jax.Array


class ExtraKeys(NamedTuple):
    """Keys and values of a layer's extra vectors, (B, M, G, K), while a window is being filled."""

    keys_BMGK: jax.Array
    values_BMGK: jax.Array


class WindowMemory(nnx.Module):
    """What a window leaves to the next: the base of all memories of pretrained bodies.

    A memory is built as `memory(rngs, body)` and holds parameters only. Methods that it does not
    need keep their defaults: it adds nothing and takes nothing in.

    Class attributes:
        name: names its metrics, `<name>_grad_norm`; one memory of a name in a model.
    """

    purpose = "recurrence"
    name: str

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        """Returns the cache of `rows` documents that have not begun: what "empty" means."""
        raise NotImplementedError

    # What the layers of a window read.

    def view(self, cache: Any, dtype: DTypeLike) -> Any:
        """Returns what the layers read of a cache, computed once a window; a named tuple."""
        return cache

    def extras(self, view: Any, layer: int, dtype: DTypeLike) -> Extra | None:
        """Returns vectors for the keys and values of a layer, counted from 0; None for none."""
        return None

    def attended(self, view: Any, layer: int, heads: Heads, attended_BTHK: jax.Array) -> jax.Array:
        """Returns the result of a layer's attention, (B, T, H, K), with what is added to it."""
        return attended_BTHK

    def added(self, view: Any, layer: int, normed_BTD: jax.Array) -> jax.Array | None:
        """Returns what is added to the output of a layer's attention, (B, T, D); None: nothing."""
        return None

    # What it takes in.

    def summary(self, outputs: Sequence[jax.Array], positions: Positions) -> Any:
        """Returns what is to be kept of positions, a named tuple or ().

        outputs: of each layer, (B, T, D), the last one after the final norm.
        """
        return ()

    def combined(self, first: Any, second: Any) -> Any:
        """Returns the summary of two parts of a window; the default adds them."""
        return jax.tree.map(lambda a, b: a + b, first, second)

    def update(
        self, cache: Any, summary: Any, keys: Sequence[LayerKeys]
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the cache after a window, and a dict of scalar metrics.

        Args:
            cache: before the window.
            summary: of all its positions.
            keys: of each layer, of the tokens that the window has read first: not those that an
                earlier window read already.
        """
        return cache, {}

    def carries(self) -> bool:
        """Returns whether its cache can tell of tokens before the window."""
        return True

    def flops_per_window(self, window: int) -> float:
        """Returns operations once a window of so many tokens, besides those of the body."""
        return 0.0

    def flops_per_position(self) -> float:
        """Returns operations of each position of a window, besides those of the body."""
        return 0.0


class WindowReads(Reads):
    """What the memories of a model add to the layers of one window.

    Args:
        memories: in their order.
        views: of their caches.
        dtype: of activations.
        known: keys and values of the extra vectors of each layer, None where there are none; or
            None: they are computed from the vectors.
    """

    def __init__(
        self,
        memories: Sequence[WindowMemory],
        views: Sequence[Any],
        dtype: DTypeLike,
        known: Sequence[ExtraKeys | None] | None = None,
    ):
        self.pairs = list(zip(memories, views, strict=True))
        self.dtype = dtype
        self.known = known

    def extras(self, layer: int) -> list[Extra]:
        found = (memory.extras(view, layer, self.dtype) for memory, view in self.pairs)
        return [extra for extra in found if extra is not None]

    def extra_keys(self, layer: int) -> LayerKeys | None:
        known = self.known[layer] if self.known else None
        return None if known is None else LayerKeys(*known)

    def attended(self, layer: int, heads: Heads, attended_BTHK: jax.Array) -> jax.Array:
        for memory, view in self.pairs:
            attended_BTHK = memory.attended(view, layer, heads, attended_BTHK)
        return attended_BTHK

    def added(self, layer: int, heads: Heads) -> tuple[jax.Array | None, Any]:
        found = (memory.added(view, layer, heads.normed_BTD) for memory, view in self.pairs)
        parts = [part for part in found if part is not None]
        return functools.reduce(lambda a, b: a + b, parts) if parts else None, ()

    def all_extra_keys(self, body: Decoder) -> tuple[ExtraKeys | None, ...]:
        """Returns keys and values of the extra vectors of each layer; None where are none."""

        def of_layer(number, layer):
            extras = self.extras(number)
            return ExtraKeys(*extra_keys(layer, extras)) if extras else None

        return tuple(of_layer(*pair) for pair in enumerate(body.layers))
