"""Memories between the windows of a pretrained backbone. Letters as in `brt.pretrained`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

from brt.models.wrapper import Wrapper
from brt.pretrained.backbone import PretrainedBackbone, Reading
from brt.pretrained.backbone_layer import Extra, Heads, LayerKeys, Reads

Metrics = dict[str, jax.Array]


class Positions(NamedTuple):
    """Which positions of a window hold a token, and which the next window processes again.

    real_BT, again_BT: (B, T) bool.
    """

    real_BT: jax.Array
    again_BT: jax.Array


class Vectors(NamedTuple):
    """Vectors among a layer's inputs for keys and values only; they have no position.

    vectors_BMD: (B, M, D), before the layer's first norm. present_BM: bool, those that are there.
    """

    vectors_BMD: jax.Array
    present_BM: jax.Array


class WindowMemory(nnx.Module):
    """A memory between windows: the base of all memories of pretrained backbones.

    A memory is built as `memory(rngs, body)` and holds parameters only. Its cache is a named tuple
    that changes at the ends of windows. Layers count from 0.

    Class attributes:
        name: of its metric `<name>_grad_norm`; one memory of a name in a model.
    """

    purpose = "recurrence"
    name: str

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        """Returns the cache of `rows` new documents: what "empty" means."""
        raise NotImplementedError

    def view(self, cache: Any, dtype: DTypeLike) -> Any:
        """Returns what the layers of a window read besides the cache, computed once a window."""
        return ()

    def vectors(self, cache: Any, layer: int, dtype: DTypeLike) -> Vectors | None:
        """Returns vectors for the keys and values of a layer."""
        return None

    def read(
        self, cache: Any, view: Any, layer: int, heads: Heads, attended_BTHK: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the result of a layer's attention with what the memory adds to its heads.

        Also returns what is added to the attention's output, (B, T, D), or None.
        """
        return attended_BTHK, None

    def summary(self, outputs: Sequence[jax.Array], positions: Positions) -> Any:
        """Returns what `update` needs of positions, a named tuple or ().

        outputs: of each layer, (B, T, D), the last one after the final norm.
        """
        return ()

    def combined(self, first: Any, second: Any) -> Any:
        """Returns the summary of two parts of a window; the default adds them."""
        return jax.tree.map(jnp.add, first, second)

    def update(
        self, cache: Any, summary: Any, keys: Sequence[LayerKeys]
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the cache after a window, and metrics.

        Args:
            cache: before the window.
            summary: of all its positions.
            keys: of each layer, of the window's new tokens.
        """
        return cache, {}

    def flops_per_window(self, window: int) -> float:
        """Returns operations once a window of so many tokens, besides those of the backbone."""
        return 0.0

    def flops_per_position(self) -> float:
        """Returns operations of each position of a window, besides those of the backbone."""
        return 0.0


class WindowReads(Reads):
    """What the memories of a model add to the layers of one window.

    Args:
        body: with the layers.
        memories, caches, views: in one order.
        extras: of each layer, keys and values of the memories' vectors, where they are known.
    """

    def __init__(
        self,
        body: PretrainedBackbone,
        memories: Sequence[WindowMemory],
        caches: Sequence[Any],
        views: Sequence[Any],
        extras: Sequence[LayerKeys | None] | None = None,
    ):
        self.memories = list(zip(memories, caches, views, strict=True))
        self.views = views
        known = extras or [None] * len(body.layers)
        self.extras = [
            self._extra(i, layer, keys, body.dtype)
            for i, (layer, keys) in enumerate(zip(body.layers, known, strict=True))
        ]

    def _extra(self, i, layer, keys, dtype):
        parts = [memory.vectors(cache, i, dtype) for memory, cache, _ in self.memories]
        parts = [part for part in parts if part is not None]
        if not parts:
            return None
        vectors_BMD, present_BM = (jnp.concatenate(part, axis=1) for part in zip(*parts))
        return Extra(layer.heads(vectors_BMD).keys if keys is None else keys, present_BM)

    @property
    def extra_keys(self) -> tuple[LayerKeys | None, ...]:
        """Keys and values of the memories' vectors in each layer; None without vectors."""
        return tuple(extra and extra.keys for extra in self.extras)

    def extra(self, layer: int) -> Extra | None:
        return self.extras[layer]

    def read(
        self, layer: int, heads: Heads, attended_BTHK: jax.Array
    ) -> tuple[jax.Array, jax.Array | None, Any]:
        added = []
        for memory, cache, view in self.memories:
            attended_BTHK, added_BTD = memory.read(cache, view, layer, heads, attended_BTHK)
            added += [] if added_BTD is None else [added_BTD]
        return attended_BTHK, functools.reduce(jnp.add, added) if added else None, ()


class WithMemories(Wrapper):
    """A model around a backbone with memories between windows."""

    memories: nnx.List

    def build_memories(
        self, rngs: nnx.Rngs, memories: Sequence[Callable[..., WindowMemory]]
    ) -> None:
        """Builds the memories of the backbone `body`; refuses two of one name."""
        self.memories = nnx.List(memory(rngs, self.body) for memory in memories)
        binding = f"{type(self).__name__}.memories"
        if not all(isinstance(memory, WindowMemory) for memory in self.memories):
            raise ValueError(
                f"{binding} must build memories between windows, such as @PooledMemory."
            )
        names = [memory.name for memory in self.memories]
        if len(set(names)) < len(names):
            raise ValueError(f"{binding} has two of one name in {', '.join(names)}.")

    def init_memories(self, rows: int) -> list[Any]:
        """Returns the caches of new documents."""
        return [memory.init_cache(rows, self.dtype) for memory in self.memories]

    @jax.named_scope("memory")
    def reads(self, caches: Sequence[Any]) -> WindowReads:
        """Returns what the memories add to the layers of the next window."""
        pairs = zip(self.memories, caches, strict=True)
        views = [memory.view(cache, self.dtype) for memory, cache in pairs]
        return WindowReads(self.body, self.memories, caches, views)

    @jax.named_scope("memory")
    def summaries(self, reading: Reading, positions: Positions) -> list[Any]:
        """Returns what the memories need of positions."""
        return [memory.summary(reading.outputs, positions) for memory in self.memories]

    @jax.named_scope("memory")
    def updated(
        self, caches: Sequence[Any], summaries: Sequence[Any], keys: Sequence[LayerKeys]
    ) -> tuple[list[Any], Metrics]:
        """Returns the caches after a window, and metrics; arguments as of `WindowMemory.update`."""
        after = []
        metrics: Metrics = {}
        for memory, cache, summary in zip(self.memories, caches, summaries, strict=True):
            cache, reported = memory.update(cache, summary, keys)
            after.append(cache)
            metrics |= reported
        return after, metrics

    def gradient_metrics(self, grads: Mapping) -> Metrics:
        return {
            f"{self.memories[int(i)].name}_grad_norm": optax.tree.norm(part)
            for i, part in grads.get("memories", {}).items()
        }

    def flops_of_window(self, window: int) -> float:
        """Returns operations of the memories in a window of so many positions."""
        return sum(
            memory.flops_per_window(window) + window * memory.flops_per_position()
            for memory in self.memories
        )
