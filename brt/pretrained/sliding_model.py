"""A pretrained decoder with rotary positions over a sliding window, with or without a memory.

Every token sees the W tokens up to itself. Keys are cached before rotation, and rotated by their
position in their block, as attention depends on differences only. X: blocks of all batch elements.

Source: Block-Recurrent, section 3 (Slide and Rec), where a token does not see itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import Count, configurable
from brt.models.block_recurrent import decoding
from brt.models.block_recurrent.memory import KeysValues, LayerTokens
from brt.models.caches import LayerCache, WindowCache
from brt.models.contract import check_segment
from brt.models.decoding_window import (
    advance,
    completes_block,
    fill_window,
    last_block,
    write_token,
)
from brt.models.ops import block_pairs
from brt.pretrained.backbone_layer import NOTHING, Heads, LayerKeys, Reads, Seen, attention_bias
from brt.pretrained.decoder_model import DecoderModel
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.memories.backbone_memory import BackboneMemory


class BlocksCache(NamedTuple):
    """Whether there is a block before the next one: 0 for a new document, else 1."""

    count_B: jax.Array

    @property
    def carries_state(self) -> bool:
        return False


class AtLayer(Reads):
    """Applies `function(heads, attended)`, with the results of `Reads.read`, at one layer."""

    def __init__(self, index: int, function: Callable[..., tuple]):
        self.index = index
        self.function = function

    def read(
        self, layer: int, heads: Heads, attended_BTHK: jax.Array
    ) -> tuple[jax.Array, jax.Array | None, Any]:
        if layer != self.index:
            return attended_BTHK, None, ()
        return self.function(heads, attended_BTHK)


@configurable(denylist=["rngs", "special_tokens"])
class SlidingLanguageModel(DecoderModel):
    """A pretrained decoder in which every token sees the W tokens up to itself.

    Args:
        window: W in tokens, which divides the segment length.
        body: builds the `Decoder`, one with rotary positions.
        cell: builds a memory at one layer: a class like `CellMemory`.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        window: Count,
        body: Callable[..., Decoder] = Llama,
        cell: Callable[..., BackboneMemory] | None = None,
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
            self.cell = cell(rngs, self.body, window=window)
        self.window = window

    @property
    def period(self) -> int:
        return self.window

    def _divide(self, caches):
        layers = len(self.body.layers)
        return caches[0], caches[1 : 1 + layers], caches[1 + layers :]

    # Segments.

    def init_caches(self, rows: int) -> tuple:
        """Returns a `BlocksCache`, a `LayerCache` of each layer, and the memory's cache.

        Keys in windows are not rotated; those of an empty window are hidden.
        """
        body = self.body
        shape = rows, self.window, body.num_key_heads, body.sizes.head_size
        empty = LayerCache(WindowCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)))
        states = (self.cell.init_cache(rows, self.dtype),) if self.has_cell else ()
        return (BlocksCache(jnp.zeros(rows, jnp.int32)), *[empty] * len(body.layers), *states)

    def stack(
        self,
        x_BTD: jax.Array,
        caches: tuple,
        key: jax.Array | None = None,
        counts_B: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        """Runs a segment; counts_B: (B,) int32, tokens of one block that are not padding."""
        check_segment("SlidingLanguageModel", self.window, x_BTD.shape[1])
        begun, windows, states = self._divide(caches)
        rows, T, _ = x_BTD.shape
        W = self.window
        n = T // W

        def pairs(i, keys):
            blocks = (block_pairs(*pair) for pair in zip(windows[i].window, keys))
            return LayerKeys(*(x_BGJGK.reshape(-1, *x_BGJGK.shape[2:]) for x_BGJGK in blocks))

        before_BG = jnp.concatenate(
            [begun.count_B[:, None] > 0, jnp.ones((rows, n - 1), bool)], axis=1
        )
        bias_XWJ = self._bias(jnp.arange(W), before_BG.reshape(-1))
        positions_XJ = jnp.broadcast_to(jnp.arange(2 * W), (rows * n, 2 * W))

        def seen(i, keys):
            return Seen(pairs(i, keys), positions_XJ, bias_XWJ)

        def read(heads, attended_BTHK):
            memory, (cache,) = self.cell, states
            window = WindowCache(*memory.token_keys(LayerKeys(*windows[memory.index].window)))
            weights = memory.memory.prepare(attended_BTHK.dtype)
            tokens = memory.tokens(heads)._replace(counts_B=counts_B)
            y, cache, seen, metrics = memory.memory(cache, tokens, window, attended_BTHK, weights)
            if counts_B is not None and memory.memory.has_own_take:
                cache = memory.memory.take(tokens)
            added = memory.placed(y, attended_BTHK, heads, seen)
            return *added, (cache, memory.with_output_norm(metrics))

        reads = AtLayer(self.cell.index, read) if self.has_cell else NOTHING
        positions_BT = jnp.broadcast_to(W + jnp.arange(T) % W, (rows, T))
        reading = self.body.read(x_BTD, positions_BT, seen, reads, key)
        after = [
            LayerCache(WindowCache(keys.keys_BJGK[:, -W:], keys.values_BJGK[:, -W:]))
            for keys in reading.keys
        ]
        metrics: dict[str, jax.Array] = {}
        if self.has_cell:
            cache, metrics = reading.kept[self.cell.index]
            states = (cache,)
        y_BTD = reading.outputs[-1]
        return y_BTD, (BlocksCache(jnp.ones_like(begun.count_B)), *after, *states), metrics

    def _bias(self, positions_W, before_X):
        """Returns the bias (X, W, 2W): a query at a position of a block sees the last W keys."""
        W = self.window
        distance_WJ = W + positions_W[..., :, None] - jnp.arange(2 * W)
        near_WJ = (distance_WJ >= 0) & (distance_WJ < W)
        there_XJ = before_X[:, None] | (jnp.arange(2 * W) >= W)
        return attention_bias(near_WJ & there_XJ[:, None])

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        begun, windows, states = self._divide(caches)
        filled = [fill_window(cache.window) for cache in windows]
        return (begun, *filled, *self._begun_states(states, [None], filled[0].fill_B))

    def _begun_states(self, states, later, fill_B):
        if not states:
            return ()
        rows, sizes = len(fill_B), self.body.sizes
        x_BWHK = jnp.zeros((rows, self.window, sizes.num_heads, sizes.head_size), self.dtype)
        inputs_BWD = jnp.zeros((rows, self.window, self.width), self.dtype)
        nothing = LayerTokens(inputs_BWD, x_BWHK, x_BWHK, x_BWHK, jnp.ones(sizes.num_heads))
        inputs = states[0], later[0], nothing, fill_B
        return (decoding.begin_memory(self.cell.memory, *inputs),)

    def end_decoding(self, caches: tuple) -> tuple:
        begun, windows, states = self._divide(caches)
        states = (decoding.end_memory(self.cell.memory, cache) for cache in states)
        return (begun, *(LayerCache(last_block(window)) for window in windows), *states)

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        begun, windows, states = self._divide(caches)
        y_BPD, after, _ = self.stack(x_BPD, caches, counts_B=counts_B)
        _, blocks, later = self._divide(after)
        filled = (
            fill_window(before.window, block.window, counts_B)
            for before, block in zip(windows, blocks, strict=True)
        )
        return y_BPD, (begun, *filled, *self._begun_states(states, later, counts_B))

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        begun, windows, states = self._divide(caches)
        fill_B = windows[0].fill_B
        reads_B = jnp.broadcast_to(jnp.asarray(reads_B), fill_B.shape)
        bias_B1J = self._bias(fill_B[:, None], begun.count_B > 0)
        positions_BJ = jnp.broadcast_to(jnp.arange(2 * self.window), (len(fill_B), 2 * self.window))

        def written(i, keys):
            return write_token(windows[i], keys.keys_BJGK[:, 0], keys.values_BJGK[:, 0], reads_B)

        def seen(i, keys):
            window = written(i, keys)
            return Seen(LayerKeys(window.keys_BJHK, window.values_BJHK), positions_BJ, bias_B1J)

        def read(heads, attended_BTHK):
            memory, (cache,) = self.cell, states
            token, dtype = memory.tokens(heads), attended_BTHK.dtype
            y, new = decoding.decode_memory(
                memory.memory, cache, token, attended_BTHK, reads_B, fill_B
            )
            of_block = decoding.states_of(memory.memory, cache, dtype)
            return *memory.placed(y, attended_BTHK, heads, of_block), new

        reads = AtLayer(self.cell.index, read) if self.has_cell else NOTHING
        reading = self.body.read(x_BD[:, None], (self.window + fill_B)[:, None], seen, reads)
        filled = [written(i, keys) for i, keys in enumerate(reading.keys)]
        full_B = completes_block(filled[0], reads_B)
        if self.has_cell:
            index = self.cell.index
            states = (self._updated(reading.kept[index], filled[index], full_B),)
        count_B = jnp.where(full_B, 1, begun.count_B)
        after = (advance(window, reads_B) for window in filled)
        return reading.outputs[-1][:, 0], (BlocksCache(count_B), *after, *states)

    def _updated(self, cache, window, full_B):
        keys = self.cell.token_keys(LayerKeys(window.keys_BJHK, window.values_BJHK))
        before = WindowCache(*(x_BJHK[:, : self.window] for x_BJHK in keys))
        block = KeysValues(*(x_BJHK[:, self.window :] for x_BJHK in keys))

        def update(cache):
            return decoding.update_memory(self.cell.memory, cache, before, block, full_B)

        return jax.lax.cond(jnp.any(full_B), update, lambda cache: cache, cache)

    # Windows and cost.

    def gradient_metrics(self, grads: dict) -> dict[str, jax.Array]:
        if not self.has_cell:
            return {}
        return {f"{self.cell.name}_grad_norm": optax.tree.norm(grads["cell"])}

    def windows_reach(self) -> int:
        return (self.window - 1) * len(self.body.layers)

    def flops_per_position(self) -> float:
        total = self.body.flops_of_layers(self.window)
        if self.has_cell:
            total += self.cell.flops_per_position()
            total += self.cell.memory.flops_per_token(self.window)
        return total
