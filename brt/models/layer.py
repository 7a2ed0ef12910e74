"""One layer: windowed attention, optional attention to states, feed-forward, residuals.

A plain layer attends to the W tokens before each token. A layer that `reads_states` also
attends, in parallel, to state vectors: its own cell's if it has one (a recurrent layer),
otherwise those it is handed (block feedback). A memorizing layer mixes what its attention reads
with what the same queries find in an external memory. Letters as in `brt.models`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.caches import (
    DecodingRecurrent,
    RecurrentCache,
    WindowCache,
    advance,
    completes_block,
    fill_window,
    last_block,
    select_rows,
    write_token,
)
from brt.models.layers.attention import attend
from brt.models.layers.dropout import dropout, keep_mask
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import RMSNorm, unit_heads, wide
from brt.models.layers.positions_t5 import RelativeBias, WindowMask
from brt.models.memories.memorizing_cache import DecodingMemorizing, MemorizingCache
from brt.models.memories.recurrent_cell import BlockStates
from brt.models.shape_letters import constrain


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward, each with a residual (sections 3.1 and 4.1).

    Args:
        width, num_heads, head_size, feed_forward_size, window: D, H, K, F, W.
        dropout: rate after the attention norm, on attention weights and after the network.
        cell: the `RecurrentCell` that makes this a recurrent layer, or None.
        memory: the `ExternalMemory` that makes this a memorizing layer, without a position
            bias, or None.
        reads_states: whether the tokens attend to states.
        remat_blocks: recompute attention and the cell's steps in the backward pass.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        width: int,
        num_heads: int,
        head_size: int,
        feed_forward_size: int,
        window: int,
        dropout: float = 0.0,
        cell=None,
        memory=None,
        reads_states: bool = False,
        remat_blocks: bool = False,
    ):
        D, A = width, num_heads * head_size
        self.num_heads, self.head_size, self.window = num_heads, head_size, window
        self.dropout, self.remat_blocks = dropout, remat_blocks
        self.reads_states = reads_states or cell is not None
        self.sequential = cell is not None and cell.order == "sequential"
        self.attention_norm = RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        self.attention_scale_H = parameter(rngs, jax.nn.initializers.ones, num_heads)
        self.relative_bias = RelativeBias(rngs, num_heads) if memory is None else WindowMask()
        if self.reads_states:
            self.cross_queries_DA = parameter(rngs, DENSE, D, A)
            self.cross_scale_H = parameter(rngs, jax.nn.initializers.ones, num_heads)
            self.output_CD = parameter(rngs, DENSE, 2 * A, D)
        else:
            self.output_AD = parameter(rngs, DENSE, A, D)
        if self.sequential:
            self.cross_norm = RMSNorm(rngs, D)
        self.feed_forward_norm = RMSNorm(rngs, D)
        self.feed_forward = FeedForward(rngs, D, feed_forward_size)
        self.cell, self.memory = cell, memory

    # The caches.

    def init_cache(self, rows: int, dtype):
        """The cache of `rows` documents that have not begun: zero keys and values, visible."""

        def zeros(length):
            return jnp.zeros((rows, length, self.num_heads, self.head_size), dtype)

        window = WindowCache(zeros(self.window), zeros(self.window))
        if self.memory is not None:
            size = self.memory.size
            return MemorizingCache(window, zeros(size), zeros(size), jnp.zeros(rows, jnp.int32))
        if self.cell is None:
            return window
        return RecurrentCache(window, self.cell.initial_states(rows))

    def _window(self, cache):
        """The part of a cache that every layer has, in either form."""
        return cache if self.cell is None and self.memory is None else cache.window

    def begin_decoding(self, cache, after=None, fill_B=None):
        """The decoding form of a segment-form cache.

        after, fill_B: as `fill_window` takes them, for rows that stand inside a block.
        """
        block = None if after is None else self._window(after)
        window = fill_window(self._window(cache), block, fill_B)
        if self.memory is not None:
            return DecodingMemorizing(window, *cache[1:])
        if self.cell is None:
            return window
        states_BSD, dtype = cache.states_BSD, window.keys_BJHK.dtype
        return DecodingRecurrent(window, states_BSD, *self.cell.keys_values(states_BSD, dtype))

    def end_decoding(self, cache):
        """The segment form of a decoding-form cache whose rows stand at a block border."""
        window = last_block(self._window(cache))
        if self.memory is not None:
            return MemorizingCache(window, *cache[1:])
        return window if self.cell is None else RecurrentCache(window, cache.states_BSD)

    def window_table(self):
        """Scaled position bias and mask of one block, (H, W, 2W)."""
        return self.relative_bias.window_table(self._scale(), self.window)

    def _scale(self):
        return jnp.abs(self.attention_scale_H[...])

    # The parts both forms share.

    def _heads(self, x_BTD, matrix_DA):
        x_BTA = x_BTD @ matrix_DA[...].astype(x_BTD.dtype)
        return constrain(x_BTA.reshape(*x_BTA.shape[:2], self.num_heads, -1), "BTHK")

    def _queries_keys_values(self, x_BTD):
        q_BTHK = unit_heads(self._heads(x_BTD, self.queries_DA))
        k_BTHK = unit_heads(self._heads(x_BTD, self.keys_DA))
        return q_BTHK, k_BTHK, self._heads(x_BTD, self.values_DA)

    def _project_and_feed(self, x_BTD, normed_BTD, self_BTHK, read_states, key):
        """Output projection, residual, network, residual; and the states' share of the sum.

        read_states: from queries (B, T, H, K) to what they read in the states, or None.
        """
        A = self.num_heads * self.head_size
        share = None

        def flat(y_BTHK):
            return y_BTHK.reshape(*x_BTD.shape[:2], A)

        def queries(x_BTD):
            return unit_heads(self._heads(x_BTD, self.cross_queries_DA))

        if not self.reads_states:
            x_BTD = x_BTD + flat(self_BTHK) @ self.output_AD[...].astype(x_BTD.dtype)
        else:
            output_CD = self.output_CD[...].astype(x_BTD.dtype)
            from_tokens_BTD = flat(self_BTHK) @ output_CD[:A]
            if self.sequential:
                normed_BTD = self.cross_norm(x_BTD + from_tokens_BTD)
            from_states_BTD = flat(read_states(queries(normed_BTD))) @ output_CD[A:]
            x_BTD = x_BTD + (from_tokens_BTD + from_states_BTD)
            share = _share(from_states_BTD, from_tokens_BTD)
        y_BTD = self.feed_forward(self.feed_forward_norm(x_BTD))
        return constrain(x_BTD + dropout(y_BTD, self.dropout, key), "BTD"), share

    # The segment form.

    def __call__(self, x_BTD, cache, table_HWJ=None, given=None, key=None):
        """One segment of every row.

        Args:
            x_BTD: (B, T, D) activations, T a multiple of W.
            cache: `WindowCache`, `RecurrentCache` or `MemorizingCache`, as `init_cache` makes it.
            table_HWJ: `window_table()`, if the caller has it already.
            given: `BlockStates` to read, for a layer without a cell; for one with a cell,
                those of its own states if they are known already (one block only).
            key: dropout key; None turns dropout off.

        Returns:
            (B, T, D), the cache after the segment, and the monitors: a dict of scalars
            (kept: share of the states the gates keep; state_norm: root mean square;
            state_share: the states' part of what attention adds; memory_share: the external
            memory's part of what attention reads), empty for plain layers.
        """
        B, T, _ = x_BTD.shape
        W, G = self.window, T // self.window
        table_HWJ = self.window_table() if table_HWJ is None else table_HWJ
        window = self._window(cache)
        norm_key, weights_key, states_key, output_key = (
            (None,) * 4 if key is None else jax.random.split(key, 4)
        )

        normed_BTD = dropout(self.attention_norm(x_BTD), self.dropout, norm_key)
        q_BTHK, k_BTHK, v_BTHK = self._queries_keys_values(normed_BTD)
        k_BGJHK, v_BGJHK = _pairs(window.keys_BWHK, k_BTHK), _pairs(window.values_BWHK, v_BTHK)

        def read(q_BTHK, k_BGJHK, v_BGJHK, scale_H, table, key):
            q_BGWHK = q_BTHK.reshape(B, G, W, *q_BTHK.shape[2:])
            shape = (self.num_heads, W, k_BGJHK.shape[2])
            keep = keep_mask(key, self.dropout, shape, wide(x_BTD).dtype)
            y = attend(q_BGWHK, k_BGJHK, v_BGJHK, scale_H, table, keep)
            return y.reshape(B, T, *q_BTHK.shape[2:])

        if self.remat_blocks:
            read = jax.checkpoint(read)
        scale_H = self.attention_scale_H[...]
        self_BTHK = read(q_BTHK, k_BGJHK, v_BGJHK, scale_H, table_HWJ, weights_key)

        monitors, new_cache = {}, WindowCache(k_BTHK[:, -W:], v_BTHK[:, -W:])
        if self.cell is not None:
            states_BSD, given, kept = self.cell.over_blocks(
                cache.states_BSD, k_BGJHK, v_BGJHK, given, self.remat_blocks
            )
            new_cache = RecurrentCache(new_cache, states_BSD)
            monitors = {"kept": kept, "state_norm": jnp.sqrt(jnp.mean(jnp.square(states_BSD)))}

        if self.memory is not None:
            found_BTHK = self.memory.read(q_BTHK, cache, k_BTHK, v_BTHK, scale_H, self.remat_blocks)
            parts = self.memory.mixed(self_BTHK, found_BTHK)
            self_BTHK, monitors = sum(parts), {"memory_share": _share(*parts[::-1])}
            new_cache = self.memory.write(cache, k_BTHK, v_BTHK)._replace(window=new_cache)

        def read_states(q_BTHK):
            return read(q_BTHK, *given, self.cross_scale_H[...], None, states_key)

        x_BTD, share = self._project_and_feed(x_BTD, normed_BTD, self_BTHK, read_states, output_key)
        if share is not None:
            monitors["state_share"] = share
        return x_BTD, new_cache, monitors

    # The decoding form.

    def decode(self, x_BD, cache, given: BlockStates | None = None, reads_B=True):
        """One token of every row; state and memory move when the token completes a block.

        Args:
            x_BD: (B, D) activations.
            cache: the decoding form.
            given: `BlockStates` with G = 1 for a layer that reads states but has no cell.
            reads_B: (B,) bool, rows that read a token; the caches of the others stay.

        Returns:
            (B, D) and the cache after the token.
        """
        x_B1D = x_BD[:, None]
        window = self._window(cache)
        normed_B1D = self.attention_norm(x_B1D)
        q_B1HK, k_B1HK, v_B1HK = self._queries_keys_values(normed_B1D)
        window = write_token(window, k_B1HK[:, 0], v_B1HK[:, 0], reads_B)
        table_BH1J = self.relative_bias.token_table(self._scale(), self.window, window.fill_B)
        self_B1HK = attend(
            q_B1HK, window.keys_BJHK, window.values_BJHK, self.attention_scale_H[...], table_BH1J
        )

        if self.memory is not None:
            scale_H = self.attention_scale_H[...]
            found_B1HK = self.memory.read(q_B1HK, cache, k_B1HK, v_B1HK, scale_H)
            self_B1HK = sum(self.memory.mixed(self_B1HK, found_B1HK))

        def read_states(q_B1HK):
            if self.cell is None:
                k_BSHK, v_BSHK = given.keys_BGSHK[:, 0], given.values_BGSHK[:, 0]
            else:
                k_BSHK, v_BSHK = cache.state_keys_BSHK, cache.state_values_BSHK
            return attend(q_B1HK, k_BSHK, v_BSHK, self.cross_scale_H[...])

        x_B1D, _ = self._project_and_feed(x_B1D, normed_B1D, self_B1HK, read_states, None)
        if self.memory is not None:
            cache = self._advance_memory(cache._replace(window=window), reads_B)
        elif self.cell is not None:
            cache = self._advance_state(cache._replace(window=window), reads_B)
        else:
            cache = advance(window, reads_B)
        return x_B1D[:, 0], cache

    def _advance_memory(self, cache: DecodingMemorizing, reads_B):
        window, W = cache.window, self.window
        full_B = completes_block(window, reads_B)

        def update(cache):
            block = window.keys_BJHK[:, W:], window.values_BJHK[:, W:]
            return self.memory.write(cache, *block, full_B)

        cache = jax.lax.cond(jnp.any(full_B), update, lambda cache: cache, cache)
        return cache._replace(window=advance(window, reads_B))

    def _advance_state(self, cache: DecodingRecurrent, reads_B):
        window = cache.window
        full_B = completes_block(window, reads_B)

        def update(cache):
            states_BSD, _ = self.cell.step(*cache[1:], window.keys_BJHK, window.values_BJHK)
            k_BSHK, v_BSHK = self.cell.keys_values(states_BSD, window.keys_BJHK.dtype)
            moved = cache._replace(
                states_BSD=states_BSD, state_keys_BSHK=k_BSHK, state_values_BSHK=v_BSHK
            )
            # Keys computed again from the same states need not be the same to the last bit.
            return select_rows(full_B, moved, cache)

        cache = jax.lax.cond(jnp.any(full_B), update, lambda cache: cache, cache)
        return cache._replace(window=advance(window, reads_B))


def _pairs(previous_BWHK, x_BTHK):
    """Each block's view: the block before it and itself, (B, G, 2W, H, K)."""
    B, W = previous_BWHK.shape[:2]
    whole = jnp.concatenate([previous_BWHK, x_BTHK], axis=1)
    blocks = whole.reshape(B, -1, W, *whole.shape[2:])
    return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)


def _share(part, rest):
    part, rest = (jnp.sqrt(jnp.mean(jnp.square(wide(x)))) for x in (part, rest))
    return part / jnp.maximum(part + rest, 1e-30)
