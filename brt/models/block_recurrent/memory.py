"""The interface of a layer's memory in the Block-Recurrent stack.

A layer carries a window, which it manages itself, and any number of memories, which it knows
through this interface only. docs/extending.md shows how to write one. Letters as in
`brt.models`.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.caches import select_rows


class BlockStates(NamedTuple):
    """Vectors that the tokens of each block attend to, with queries of their own.

    keys_BGSHK, values_BGSHK: (B, G, S, H, K), in the activations' type.
    """

    keys_BGSHK: jax.Array
    values_BGSHK: jax.Array


class LayerTokens(NamedTuple):
    """Queries, keys and values of a layer's self-attention, shown to its memories.

    queries_BTHK, keys_BTHK: (B, T, H, K), of unit length. values_BTHK: (B, T, H, K). Of a
        segment, whole blocks; while decoding of one token (T = 1).
    scale_H: (H,), the layer's attention scale, used through its absolute value.
    """

    queries_BTHK: jax.Array
    keys_BTHK: jax.Array
    values_BTHK: jax.Array
    scale_H: jax.Array


class BlockPairs(NamedTuple):
    """Keys and values of each block of a segment and of the block before it.

    keys_BGJHK, values_BGJHK: (B, G, 2W, H, K): W tokens of the previous block, then W of this one.
    """

    keys_BGJHK: jax.Array
    values_BGJHK: jax.Array

    @property
    def tokens(self) -> tuple[jax.Array, jax.Array]:
        """Keys and values of the segment's own tokens, (B, T, H, K) each."""
        W = self.keys_BGJHK.shape[2] // 2

        def own(x_BGJHK):
            x_BGWHK = x_BGJHK[:, :, W:]
            return x_BGWHK.reshape(x_BGWHK.shape[0], -1, *x_BGWHK.shape[3:])

        return own(self.keys_BGJHK), own(self.values_BGJHK)


def joined_states(states: Iterable[BlockStates | None]) -> BlockStates | None:
    """Returns the states of several memories as one; None where none has any."""
    present = [each for each in states if each is not None]
    if len(present) < 2:
        return present[0] if present else None
    return BlockStates(*(jnp.concatenate(parts, axis=2) for parts in zip(*present)))


class LayerMemory(nnx.Module):
    """Remembers what a layer's window does not hold: the base of all memories.

    A memory is built as `memory(rngs, sizes, window)`, with the `Sizes` and W of its layer, and
    holds parameters only. What it remembers is a named tuple that goes in and comes out: its cache,
    with rows first, shape letters at the end of each field's name, and a method
    `clear_state(empty)` that returns the cache after forgetting. `empty` is the cache of a fresh
    document; the method may compute.

    Methods that a memory does not need keep their defaults: it changes nothing that is read, takes
    nothing in, and its decoding form is its segment form.

    Class attributes:
        name: names its monitors, `layer3/<name>_grad_norm`; one memory of a name in a layer.
        num_states: S, vectors that tokens attend to with queries of their own; 0 for none.
        position_bias: whether the layer's self-attention keeps its relative position bias.
        reads_after_tokens: whether tokens attend to the states after their self-attention, from
            its result, instead of beside it.
        reach: tokens before a block that the block's tokens may be influenced by through it; may
            be infinite.
    """

    purpose = "recurrence"
    name: ClassVar[str]
    num_states: int = 0
    position_bias: bool = True
    reads_after_tokens: bool = False
    reach: float = float("inf")

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        """Returns the cache of `rows` documents that have not begun: what "empty" means.

        dtype: of the activations.
        """
        raise NotImplementedError

    # What the tokens of a block read.

    def read(
        self, cache: Any, tokens: LayerTokens, attended_BTHK: jax.Array, remat: bool = False
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns what self-attention read, with what this memory adds to it, and monitors.

        A block must not find in it what lies in the block or behind it. What earlier blocks of the
        segment add is not in the cache yet: it is replayed from the tokens' keys and values.

        Args:
            cache: the memory before the segment; while decoding, its decoding form.
            tokens: of the segment, or the token that is decoded.
            attended_BTHK: (B, T, H, K), what self-attention and the memories before this one read.
            remat: recompute what can be, in the backward pass.

        Returns:
            (B, T, H, K), and a dict of scalars. `memory_share`, the memory's part of what is read,
            is drawn by reports, and alerts watch it. A name that a memory before this one reports
            too becomes `<name of the memory>/<name>`.
        """
        return attended_BTHK, {}

    def prepare(self, dtype: DTypeLike) -> Any:
        """Returns what `states` and `update` compute of the parameters alone, once per segment.

        Such as matrices in `dtype`, the activations' type. Both are given it as `weights`.
        """
        return None

    def states(self, cache: Any, dtype: DTypeLike, weights: Any) -> BlockStates | None:
        """Returns the states that the next block attends to (G = 1), or None without states.

        cache: segment form. dtype: of the activations. weights: `prepare(dtype)`.
        """
        return None

    # How it changes.

    def update(
        self,
        cache: Any,
        blocks: BlockPairs,
        weights: Any,
        states: BlockStates | None = None,
        remat: bool = False,
    ) -> tuple[Any, BlockStates | None, dict[str, jax.Array]]:
        """Updates the memory with the blocks of a segment, one after the other.

        Args:
            cache: segment form, before the segment.
            blocks: their keys and values.
            weights: `prepare(dtype)`.
            states: `states(cache)` where it is computed already (one block).
            remat: recompute each block's part in the backward pass.

        Returns:
            The cache after the segment; the `BlockStates` that the tokens of each block attend to,
            those from before the block, or None without states; and scalar metrics.
        """
        return cache, None, {}

    # The decoding form: one token at a time.

    def begin_decoding(self, cache: Any, dtype: DTypeLike) -> Any:
        """Returns the decoding form of a segment-form cache; dtype: of the activations."""
        return cache

    def end_decoding(self, cache: Any) -> Any:
        """Returns the segment form of a decoding-form cache."""
        return cache

    def decoding_states(self, cache: Any, dtype: DTypeLike) -> BlockStates | None:
        """Returns `states` of a decoding-form cache."""
        return self.states(self.end_decoding(cache), dtype, self.prepare(dtype))

    def update_after_block(self, cache: Any, blocks: BlockPairs, full_B: jax.Array) -> Any:
        """Returns the decoding form after the rows in `full_B` have completed a block.

        Args:
            cache: decoding form.
            blocks: keys and values of the block just filled and of the one before it (G = 1).
            full_B: (B,) bool; the caches of the other rows stay as they are.
        """
        dtype = blocks.keys_BGJHK.dtype
        states = self.decoding_states(cache, dtype)
        after, _, _ = self.update(self.end_decoding(cache), blocks, self.prepare(dtype), states)
        # Values computed again from the same cache need not be the same to the last bit.
        return select_rows(full_B, self.begin_decoding(after, dtype), cache)

    # What it costs.

    def flops_per_token(self, window: int) -> float:
        """Returns operations of one token's forward pass that the memory adds to its layer's.

        The tokens' attention to `num_states` states is counted by the layer.
        """
        return 0.0
