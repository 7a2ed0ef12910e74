"""Memories between the windows of a pretrained backbone."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

from brt.models.contract import joined_metrics
from brt.models.model import Metrics
from brt.models.segment_memory import MemoryVectors, SegmentMemory
from brt.models.wrapper import Wrapper
from brt.pretrained.backbone import PretrainedBackbone, Reading
from brt.pretrained.backbone_layer import Added, Extra, Heads, LayerKeys, Reads


class Positions(NamedTuple):
    """Positions of a window that have a token, and those that the next window repeats."""

    real_BT: jax.Array
    again_BT: jax.Array


class Window(NamedTuple):
    """A processed window.

    summary: of all its positions. keys: of each layer, of the new tokens. taken: of `Added`, of the
    new tokens.
    """

    summary: Any
    keys: Sequence[LayerKeys]
    taken: Any = ()


class WindowMemory(SegmentMemory[Window]):
    """A memory between windows, built as `memory(rngs, body)`; layers count from 0.

    every_token: whether it changes with every token, so that `taken` is its next cache.
    """

    every_token: bool = False

    def for_windows(self, length: int) -> None:
        """Sets the number of positions of a window, before the first is read."""

    def read(self, cache: Any, dtype: DTypeLike) -> Any:
        """Returns the memory's further inputs of the layers, computed once a window."""
        return ()

    def vectors(self, read: Any, layer: int) -> MemoryVectors | None:
        """Returns vectors without a position for the keys and values of a layer."""
        return None

    def attend(
        self,
        cache: Any,
        read: Any,
        layer: int,
        heads: Heads,
        attended_BTHK: jax.Array,
        real_BT: jax.Array,
    ) -> Added:
        return Added(attended_BTHK)

    def summary(self, outputs: Sequence[jax.Array], positions: Positions) -> Any:
        """Returns the input of `update` from positions, a named tuple or ().

        outputs: of each layer, (B, T, D), the last one after the final norm.
        """
        return ()

    def combined(self, first: Any, second: Any) -> Any:
        """Joins the summaries of two parts of a window; the default adds them."""
        return jax.tree.map(jnp.add, first, second)

    def flops_per_position(self) -> float:
        return 0.0


class WindowReads(Reads):
    """The additions of a model's memories to the layers of one window.

    extras: keys and values of the memories' vectors. read, extras: if None, computed here. real_BT:
    which positions have a token; None: all.
    """

    def __init__(
        self,
        body: PretrainedBackbone,
        memories: Sequence[WindowMemory],
        caches: Sequence[Any],
        read: Sequence[Any] | None = None,
        extras: Sequence[LayerKeys | None] | None = None,
        real_BT: jax.Array | None = None,
    ):
        self.real_BT = real_BT
        pairs = zip(memories, caches, strict=True)
        self.read_once = read or [memory.read(cache, body.dtype) for memory, cache in pairs]
        self.memories = list(zip(memories, caches, self.read_once, strict=True))
        known = extras or [None] * len(body.layers)
        self.extras = [self._extra(i, *pair) for i, pair in enumerate(zip(body.layers, known))]

    def _extra(self, i, layer, keys):
        parts = [memory.vectors(read, i) for memory, _, read in self.memories]
        parts = [part for part in parts if part is not None]
        if not parts:
            return None
        x_BMD, filled_BM = (jnp.concatenate(part, axis=1) for part in zip(*parts))
        return Extra(layer.heads(x_BMD).keys if keys is None else keys, filled_BM)

    @property
    def extra_keys(self) -> tuple[LayerKeys | None, ...]:
        return tuple(extra and extra.keys for extra in self.extras)

    def extra(self, layer: int) -> Extra | None:
        return self.extras[layer]

    def read(
        self, layer: int, heads: Heads, attended_BTHK: jax.Array
    ) -> tuple[jax.Array, jax.Array | None, Any]:
        """Returns the results of `Reads.read`; the third is metrics and taken values, by name."""
        added, kept = [], {}
        real_BT = self.real_BT
        if real_BT is None:
            real_BT = jnp.ones(heads.normed_BTD.shape[:2], bool)
        for memory, cache, read in self.memories:
            attended_BTHK, added_BTD, *kept[memory.name] = memory.attend(
                *(cache, read, layer, heads, attended_BTHK, real_BT)
            )
            added += [] if added_BTD is None else [added_BTD]
        return attended_BTHK, functools.reduce(jnp.add, added) if added else None, kept


class WithMemories(Wrapper):
    memories: nnx.List

    def build_memories(
        self, rngs: nnx.Rngs, memories: Sequence[Callable[..., WindowMemory]]
    ) -> None:
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
        return [memory.init_cache(rows, self.dtype) for memory in self.memories]

    @jax.named_scope("memory")
    def reads(self, caches: Sequence[Any], real_BT: jax.Array | None = None) -> WindowReads:
        return WindowReads(self.body, self.memories, caches, real_BT=real_BT)

    def taken(self, reading: Reading) -> list[Any]:
        by_memory = (
            [taken for _, taken in (kept[memory.name] for kept in reading.kept) if taken != ()]
            for memory in self.memories
        )
        return [taken[0] if taken else () for taken in by_memory]

    @jax.named_scope("memory")
    def summaries(self, reading: Reading, positions: Positions) -> list[Any]:
        return [memory.summary(reading.outputs, positions) for memory in self.memories]

    @jax.named_scope("memory")
    def updated(
        self,
        caches: Sequence[Any],
        summaries: Sequence[Any],
        keys: Sequence[LayerKeys],
        taken: Sequence[Any],
        kept: Sequence[dict[str, Any]] = (),
    ) -> tuple[list[Any], Metrics]:
        """Returns the caches after a window, and all metrics; kept: of the window's `Reading`."""
        after = []
        metrics: Metrics = {}
        parts = zip(self.memories, caches, summaries, taken, strict=True)
        for memory, cache, summary, own in parts:
            cache, reported = memory.update(cache, Window(summary, keys, own))
            after.append(cache)
            for of_layer in (*(each[memory.name][0] for each in kept), reported):
                metrics = joined_metrics(metrics, memory.name, of_layer)
        return after, metrics

    def gradient_metrics(self, grads: dict) -> Metrics:
        return {
            f"{self.memories[int(i)].name}_grad_norm": optax.tree.norm(part)
            for i, part in grads.get("memories", {}).items()
        }

    def flops_of_window(self, window: int) -> float:
        return sum(
            memory.flops_per_segment(window) + window * memory.flops_per_position()
            for memory in self.memories
        )
