"""A pretrained decoder with rotary positions over a sliding window, with or without states.

Every token sees the W tokens up to itself, in this segment or the one before: keys are cached
before they are rotated, and rotated by their position in their block, since attention depends on
differences only. So a cut of the document changes nothing. Letters as in `brt.pretrained`; W tokens
of a block.

Source: Block-Recurrent, section 3 (Slide and Rec), on a pretrained backbone. There a token does not
see itself; here it does.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import Count, configurable
from brt.models.block_recurrent.memory import BlockPairs
from brt.models.caches import (
    DecodingWindow,
    WindowCache,
    advance,
    completes_block,
    fill_window,
    last_block,
    write_token,
)
from brt.pretrained.backbone_layer import NOTHING, Heads, LayerKeys, Reads, Seen
from brt.pretrained.decoder_model import DecoderModel
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.memories.backbone_memory import StateKeys
from brt.pretrained.memories.cell_memory import CellMemory
from brt.pretrained.windows import table


class BlocksCache(NamedTuple):
    """Whether there is a block before the next one.

    count_B: int32, 0 for a new document, else 1.
    """

    count_B: jax.Array

    @property
    def carries_state(self) -> bool:
        return False

    def clear_state(self, empty: "BlocksCache") -> "BlocksCache":
        """Keeps the window."""
        return self


class KeysCache(NamedTuple):
    """A layer's keys, not rotated, and values of the last block. Empty: zeros, hidden."""

    window: WindowCache

    @property
    def carries_state(self) -> bool:
        return False

    def clear_state(self, empty: "KeysCache") -> "KeysCache":
        """Keeps the window."""
        return self


class CellReads(Reads):
    """What a cell adds to its layer over the blocks of a segment.

    Args:
        memory: with the cell.
        cache: its states before the segment.
        pairs: from a layer and its keys to the keys of each block and the one before it,
            `LayerKeys` of B * blocks batch elements.
        blocks: in a segment.
    """

    def __init__(
        self,
        memory: CellMemory,
        cache: Any,
        pairs: Callable[[int, LayerKeys], LayerKeys],
        blocks: int,
    ):
        self.memory = memory
        self.cache = cache
        self.pairs = pairs
        self.blocks = blocks

    def added(self, layer: int, heads: Heads) -> tuple[jax.Array | None, Any]:
        if layer != self.memory.index:
            return None, ()
        n = self.blocks
        k_XJHK, v_XJHK = self.memory.token_keys(self.pairs(layer, heads.keys))
        pairs = (x.reshape(-1, n, *x.shape[1:]) for x in (k_XJHK, v_XJHK))
        blocks, cell = BlockPairs(*pairs), self.memory.cell
        weights = cell.prepare(blocks.keys_BGJHK.dtype)
        _, cache, seen, metrics = cell(self.cache, None, blocks, None, weights)
        assert seen is not None  # a cell has states
        states = StateKeys(*(x.reshape(-1, *x.shape[2:]) for x in seen))
        rows, T, D = heads.normed_BTD.shape
        read_XWD = self.memory.read_states(heads.normed_BTD.reshape(rows * n, T // n, D), states)
        metrics = metrics | self.memory.output_norm()
        return read_XWD.reshape(rows, T, D), (cache, jax.lax.stop_gradient(metrics))


class StatesRead(Reads):
    """What states add to their layer, while a block is being filled."""

    def __init__(self, memory: CellMemory, states: StateKeys):
        self.memory = memory
        self.states = states

    def added(self, layer: int, heads: Heads) -> tuple[jax.Array | None, Any]:
        return self.memory.added(self.states, layer, heads.normed_BTD), ()


@configurable(denylist=["rngs", "special_tokens"])
class SlidingLanguageModel(DecoderModel):
    """A pretrained decoder, every token of which sees the W tokens up to itself.

    Args:
        window: W in tokens; segments are any multiple of it.
        body: builds the `Decoder`, one with rotary positions.
        cell: builds a `CellMemory`; None: nothing but the window is carried.
        special_tokens: further entries of the vocabulary; a pretrained one has none.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        window: Count = gin.REQUIRED,
        body: Callable[..., Decoder] = Llama,
        cell: Callable[..., CellMemory] | None = None,
        special_tokens: int = 0,
    ):
        super().__init__(rngs, body, special_tokens)
        if not self.body.relative:
            raise ValueError(
                "SlidingLanguageModel.body must build a decoder with rotary positions, such as "
                f"@Llama, and {type(self.body).__name__} is none: positions that are learned end "
                "with the window; bind Trainer.model = @PretrainedLanguageModel for it."
            )
        if not 1 <= window <= self.body.num_positions // 2:
            raise ValueError(
                f"SlidingLanguageModel.window = {window} must lie between 1 and "
                f"{self.body.num_positions // 2}: a block and the one before it are read in the "
                f"{self.body.num_positions} positions of {type(self.body).__name__}."
            )
        self.has_cell = cell is not None
        if cell is not None:
            self.cell = cell(rngs, self.body)
        self.window = window

    @property
    def period(self) -> int:
        """W: whole blocks are cached."""
        return self.window

    # Segments.

    def init_caches(self, rows: int) -> tuple:
        """Returns a `BlocksCache`, a `KeysCache` of each layer, and the cell's states."""
        body = self.body
        shape = rows, self.window, body.num_key_heads, body.sizes.head_size
        empty = KeysCache(WindowCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)))
        states = (self.cell.init_cache(rows, self.dtype),) if self.has_cell else ()
        return (BlocksCache(jnp.zeros(rows, jnp.int32)), *[empty] * len(body.layers), *states)

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        layers = len(self.body.layers)
        begun, windows, states = caches[0], caches[1 : 1 + layers], caches[1 + layers :]
        rows, T, _ = x_BTD.shape
        W = self.window
        n = T // W

        def pairs(i, own):
            return LayerKeys(*(blocks_of(*pair) for pair in zip(windows[i].window, own)))

        before_BG = jnp.concatenate(
            [begun.count_B[:, None] > 0, jnp.ones((rows, n - 1), bool)], axis=1
        )
        table_XWJ = self._table(jnp.arange(W), before_BG.reshape(-1))
        positions_XJ = jnp.broadcast_to(jnp.arange(2 * W), (rows * n, 2 * W))

        def seen(i, own):
            return Seen(pairs(i, own), positions_XJ, table_XWJ)

        reads = CellReads(self.cell, states[0], pairs, n) if self.has_cell else NOTHING
        positions_BT = jnp.broadcast_to(W + jnp.arange(T) % W, (rows, T))
        reading = self.body.read(x_BTD, positions_BT, seen, reads, key)
        after = [
            KeysCache(WindowCache(keys.keys_BJGK[:, -W:], keys.values_BJGK[:, -W:]))
            for keys in reading.keys
        ]
        metrics: dict[str, jax.Array] = {}
        if self.has_cell:
            cache, metrics = reading.kept[self.cell.index]
            states = (cache,)
        y_BTD = reading.outputs[-1]
        return y_BTD, (BlocksCache(jnp.ones_like(begun.count_B)), *after, *states), metrics

    def _table(self, positions_W, before_X):
        """Returns (X, W, 2W): queries at these positions of a block see the W keys up to theirs.

        before_X: whether there is a block before.
        """
        W = self.window
        distance_WJ = W + positions_W[..., :, None] - jnp.arange(2 * W)
        near_WJ = (distance_WJ >= 0) & (distance_WJ < W)
        there_XJ = before_X[:, None] | (jnp.arange(2 * W) >= W)
        return table(near_WJ & there_XJ[:, None])

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        layers = len(self.body.layers)
        windows = (fill_window(cache.window) for cache in caches[1 : 1 + layers])
        return (caches[0], *windows, *self._begun_states(caches[1 + layers :]))

    def _begun_states(self, states):
        return tuple(self.cell.cell.begin_decoding(cache, self.dtype) for cache in states)

    def end_decoding(self, caches: tuple) -> tuple:
        layers = len(self.body.layers)
        windows = (KeysCache(last_block(window)) for window in caches[1 : 1 + layers])
        states = (self.cell.cell.end_decoding(cache) for cache in caches[1 + layers :])
        return (caches[0], *windows, *states)

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        layers = len(self.body.layers)
        y_BPD, after, _ = self.stack(x_BPD, caches)
        windows = (
            fill_window(before.window, block.window, counts_B)
            for before, block in zip(caches[1 : 1 + layers], after[1 : 1 + layers], strict=True)
        )
        return y_BPD, (caches[0], *windows, *self._begun_states(caches[1 + layers :]))

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        layers = len(self.body.layers)
        begun, windows, states = caches[0], caches[1 : 1 + layers], caches[1 + layers :]
        fill_B = windows[0].fill_B
        reads_B = jnp.broadcast_to(jnp.asarray(reads_B), fill_B.shape)
        table_B1J = self._table(fill_B[:, None], begun.count_B > 0)
        positions_BJ = jnp.broadcast_to(jnp.arange(2 * self.window), (len(fill_B), 2 * self.window))

        def written(i, own: LayerKeys) -> DecodingWindow:
            return write_token(windows[i], own.keys_BJGK[:, 0], own.values_BJGK[:, 0], reads_B)

        def seen(i, own):
            window = written(i, own)
            return Seen(LayerKeys(window.keys_BJHK, window.values_BJHK), positions_BJ, table_B1J)

        reads = NOTHING
        if self.has_cell:
            found = StateKeys(states[0].state_keys_BSHK, states[0].state_values_BSHK)
            reads = StatesRead(self.cell, found)
        reading = self.body.read(x_BD[:, None], (self.window + fill_B)[:, None], seen, reads)
        filled = [written(i, keys) for i, keys in enumerate(reading.keys)]
        full_B = completes_block(filled[0], reads_B)
        if self.has_cell:
            states = (self._complete(states[0], filled[self.cell.index], full_B),)
        count_B = jnp.where(full_B, 1, begun.count_B)
        after = (advance(window, reads_B) for window in filled)
        return reading.outputs[-1][:, 0], (BlocksCache(count_B), *after, *states)

    def _complete(self, states, window, full_B):
        """Returns the decoding form of the states, updated by full blocks."""
        keys = LayerKeys(window.keys_BJHK, window.values_BJHK)
        blocks = BlockPairs(*(x[:, None] for x in self.cell.token_keys(keys)))

        def update(states):
            return self.cell.cell.update_after_block(states, blocks, full_B)

        return jax.lax.cond(jnp.any(full_B), update, lambda states: states, states)

    # What it costs, and how far it sees.

    def gradient_metrics(self, grads: dict) -> dict[str, jax.Array]:
        return {"cell_grad_norm": optax.tree.norm(grads["cell"])} if self.has_cell else {}

    def windows_reach(self) -> int:
        return (self.window - 1) * len(self.body.layers)

    def receptive_field(self) -> float:
        return math.inf if self.has_cell else self.windows_reach()

    def flops_per_position(self) -> float:
        total = self.body.flops_of_layers(self.window)
        if self.has_cell:
            total += self.cell.flops_per_position()
            total += self.cell.flops_per_window(2 * self.window) / self.window
        return total


def blocks_of(previous_BWGK: jax.Array, x_BTGK: jax.Array) -> jax.Array:
    """Returns each block with the one before it, (B * blocks, 2W, G, K)."""
    W = previous_BWGK.shape[1]
    whole = jnp.concatenate([previous_BWGK, x_BTGK], axis=1)
    blocks = whole.reshape(len(whole), -1, W, *whole.shape[2:])
    pairs = jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)
    return pairs.reshape(-1, 2 * W, *whole.shape[2:])
