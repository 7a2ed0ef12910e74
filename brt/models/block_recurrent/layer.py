"""One layer: windowed attention, memories, attention to states, feed-forward, residuals.

A layer attends to the W tokens before each token. It carries any number of memories, known by
their interface only (`memory.py`). One that `reads_states` also attends to state vectors: those its
memories offer, otherwise those it is given (block feedback). Letters as in `brt.models`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.block_recurrent.memory import BlockPairs, BlockStates, LayerMemory, LayerTokens
from brt.models.block_recurrent.of_layer import (
    call_each,
    complete_block,
    joined,
    named_monitors,
    offered_states,
    read_all,
    take_in_all,
)
from brt.models.caches import (
    DecodingLayer,
    LayerCache,
    WindowCache,
    advance,
    completes_block,
    fill_window,
    last_block,
    write_token,
)
from brt.models.counts import matrix_size
from brt.models.fast.loop_weights import LoopWeights, cast_before, product
from brt.models.layers.attention import attend
from brt.models.layers.dropout import LayerMasks, draw_masks, dropped
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import RMSNorm, scaled_down_heads, share_of_norm, unit_heads
from brt.models.layers.positions_t5 import RelativeBias, WindowMask
from brt.models.layers.sizes import Sizes
from brt.models.shape_letters import constrain


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward, each with a residual (sections 3.1 and 4.1).

    Args:
        sizes: D, H, K, F, and whether queries and keys are normalised.
        window: W in tokens.
        dropout: rate after the attention norm, on attention weights and after the network.
        memories: `LayerMemory` modules, whose additions to attention are made in this order.
        reads_states: whether the tokens attend to states, even without a memory that offers some.
        remat_blocks: recompute attention and the memories' parts in the backward pass.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        dropout: float = 0.0,
        memories: tuple[LayerMemory, ...] = (),
        reads_states: bool = False,
        remat_blocks: bool = False,
    ):
        D, H, A = sizes.width, sizes.num_heads, sizes.attention_size
        self.sizes = sizes
        self.window = window
        self.dropout = dropout
        self.remat_blocks = remat_blocks
        self.num_states = sum(memory.num_states for memory in memories)
        self.reads_states = reads_states or self.num_states > 0
        self.sequential = any(memory.reads_after_tokens for memory in memories)
        self.attention_norm = RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        if sizes.qk_norm:
            self.attention_scale_H = parameter(rngs, jax.nn.initializers.ones, H)
        biased = all(memory.position_bias for memory in memories)
        self.relative_bias = RelativeBias(rngs, H) if biased else WindowMask()
        if self.reads_states:
            ones = jax.nn.initializers.ones
            self.cross_queries_DA = parameter(rngs, DENSE, D, A, purpose="recurrence")
            if sizes.qk_norm:
                self.cross_scale_H = parameter(rngs, ones, H, purpose="recurrence")
            # Rows of what attention to tokens reads, then rows of what attention to states reads.
            self.output_CD = parameter(rngs, DENSE, 2 * A, D, purpose=("layers", "recurrence"))
        else:
            self.output_AD = parameter(rngs, DENSE, A, D)
        if self.sequential:
            self.cross_norm = RMSNorm(rngs, D, purpose="recurrence")
        self.feed_forward_norm = RMSNorm(rngs, D)
        self.feed_forward = FeedForward(rngs, D, sizes.feed_forward_size)
        for memory in memories:
            if not hasattr(memory, "name"):
                raise ValueError(
                    f"{type(memory).__name__} has no name: give the class one, such as "
                    'name = "summaries", for its parameters and monitors.'
                )
        self.memory_names = tuple(memory.name for memory in memories)
        for memory in memories:
            if hasattr(self, memory.name):
                raise ValueError(
                    f'{type(memory).__name__}.name = "{memory.name}" is taken in its layer: a '
                    "layer has one memory of a name, and none is called as a part of the layer is."
                )
            setattr(self, memory.name, memory)

    @property
    def memories(self) -> tuple[LayerMemory, ...]:
        """The memories of the layer, in the order in which they add to attention."""
        return tuple(getattr(self, name) for name in self.memory_names)

    # The caches.

    def init_cache(self, rows: int, dtype: DTypeLike) -> LayerCache:
        """Returns the cache of `rows` documents that have not begun: visible zeros, no memory."""
        shape = rows, self.window, self.sizes.num_heads, self.sizes.head_size
        window = WindowCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        return LayerCache(window, tuple(m.init_cache(rows, dtype) for m in self.memories))

    def begin_decoding(
        self, cache: LayerCache, after: LayerCache | None = None, fill_B: jax.Array | None = None
    ) -> DecodingLayer:
        """Returns the decoding form of a segment-form cache.

        after, fill_B: as `fill_window` takes them, for rows that stand inside a block.
        """
        block = None if after is None else after.window
        window = fill_window(cache.window, block, fill_B)
        dtype = window.keys_BJHK.dtype
        return DecodingLayer(
            window, call_each(self.memories, "begin_decoding", cache.memories, dtype)
        )

    def end_decoding(self, cache: DecodingLayer) -> LayerCache:
        """Returns the segment form of a decoding-form cache whose rows stand at a block border."""
        return LayerCache(
            last_block(cache.window), call_each(self.memories, "end_decoding", cache.memories)
        )

    @jax.named_scope("attention")
    def window_table(self) -> jax.Array:
        """Returns the scaled position bias and mask of one block, (H, W, 2W)."""
        return self.relative_bias.window_table(self._bias_scale(), self.window)

    def _bias_scale(self):
        return jnp.abs(self._scale("attention_scale_H"))

    def _scale(self, name):
        """Returns the learned scale of each head; ones where queries are scaled already."""
        return getattr(self, name)[...] if self.sizes.qk_norm else jnp.ones(self.sizes.num_heads)

    def _queries(self, q_BTHK):
        return unit_heads(q_BTHK) if self.sizes.qk_norm else scaled_down_heads(q_BTHK)

    def masks(
        self, key: jax.Array | None, tokens: int, num_states: int, dtype: DTypeLike
    ) -> LayerMasks:
        """Draws the dropout masks of a segment; without a key there are none.

        tokens: T; num_states: S that its tokens attend to; dtype: of the activations.
        """
        S = num_states if self.reads_states else None
        return draw_masks(key, self.dropout, self.sizes, tokens, self.window, S, dtype)

    def loop_weights(self, dtype: DTypeLike) -> dict[str, Any]:
        """Returns what a loop over blocks uses of the parameters, computed once before it.

        The layer's matrices in the activations' type, those of its network under "feed_forward",
        and under "memories" a list of what each memory computes. Names say shapes.

        dtype: of the activations.
        """
        found = self._own_weights(dtype)
        with jax.named_scope("states"):
            found["memories"] = [memory.loop_weights(dtype) for memory in self.memories]
        return found

    def _own_weights(self, dtype) -> dict[str, Any]:
        """Returns `loop_weights` without those of the memories, which decoding does not use."""
        found: dict[str, Any] = {"feed_forward": self.feed_forward.loop_weights(dtype)}
        names = ["queries_DA", "keys_DA", "values_DA"]
        names += ["cross_queries_DA"] if self.reads_states else ["output_AD"]
        for name in names:
            found[name] = cast_before(getattr(self, name)[...], dtype)
        if self.reads_states:
            A = self.sizes.attention_size
            output_CD = self.output_CD[...]
            found["output_AD"] = cast_before(output_CD[:A], dtype)
            found["states_output_AD"] = cast_before(output_CD[A:], dtype)
        return found

    # The states that tokens attend to.

    @jax.named_scope("states")
    def own_states(
        self, cache: LayerCache, dtype: DTypeLike, weights: dict[str, Any] | None = None
    ) -> tuple[BlockStates | None, ...]:
        """Returns the states that each memory offers to the next block (G = 1).

        weights: `loop_weights(dtype)`, if the caller has them already.
        """
        of_each = None if weights is None else weights["memories"]
        return offered_states(self.memories, cache.memories, dtype, of_each)

    @jax.named_scope("states")
    def own_decoding_states(self, cache: DecodingLayer, dtype: DTypeLike) -> BlockStates | None:
        """Returns the states of all memories of a decoding-form cache, or None without any."""
        return joined(call_each(self.memories, "decoding_states", cache.memories, dtype))

    # The parts both forms share.

    def _heads(self, x_BTD, matrix_DA: LoopWeights):
        x_BTA = product("BTD,DA->BTA", x_BTD, matrix_DA)
        return constrain(x_BTA.reshape(*x_BTA.shape[:2], self.sizes.num_heads, -1), "BTHK")

    @jax.named_scope("attention")
    def _tokens(self, x_BTD, weights) -> LayerTokens:
        q_BTHK = self._queries(self._heads(x_BTD, weights["queries_DA"]))
        k_BTHK = self._heads(x_BTD, weights["keys_DA"])
        k_BTHK = unit_heads(k_BTHK) if self.sizes.qk_norm else k_BTHK
        v_BTHK = self._heads(x_BTD, weights["values_DA"])
        return LayerTokens(q_BTHK, k_BTHK, v_BTHK, self._scale("attention_scale_H"))

    def _project_and_feed(self, x_BTD, normed_BTD, self_BTHK, read_states, weights, fed_mask_PD):
        """Projects, adds, feeds, adds; returns that and the states' share of the sum.

        read_states: from queries (B, T, H, K) to what they read in the states, or None.
        """
        A = self.sizes.attention_size
        monitors = {}

        def flat(y_BTHK):
            return y_BTHK.reshape(*x_BTD.shape[:2], A)

        with jax.named_scope("attention"):
            from_tokens_BTD = product("BTA,AD->BTD", flat(self_BTHK), weights["output_AD"])
        if not self.reads_states:
            x_BTD = x_BTD + from_tokens_BTD
        else:
            with jax.named_scope("states"):
                if self.sequential:
                    normed_BTD = self.cross_norm(x_BTD + from_tokens_BTD)
                q_BTHK = self._queries(self._heads(normed_BTD, weights["cross_queries_DA"]))
                from_states_BTD = product(
                    "BTA,AD->BTD", flat(read_states(q_BTHK)), weights["states_output_AD"]
                )
                x_BTD = x_BTD + (from_tokens_BTD + from_states_BTD)
                monitors["state_share"] = share_of_norm(from_states_BTD, from_tokens_BTD)
        with jax.named_scope("feed_forward"):
            fed_BTD = self.feed_forward(
                self.feed_forward_norm(x_BTD), weights=weights["feed_forward"]
            )
            return constrain(x_BTD + dropped(fed_BTD, fed_mask_PD), "BTD"), monitors

    # The segment form.

    def __call__(
        self,
        x_BTD: jax.Array,
        cache: LayerCache,
        table_HWJ: jax.Array | None = None,
        given: BlockStates | None = None,
        known: tuple[BlockStates | None, ...] | None = None,
        key: jax.Array | None = None,
        masks: LayerMasks | None = None,
        weights: dict[str, Any] | None = None,
    ) -> tuple[jax.Array, LayerCache, dict[str, jax.Array]]:
        """Reads one segment of every row.

        Args:
            x_BTD: (B, T, D) activations, T a multiple of W.
            cache: segment form.
            table_HWJ: `window_table()`, if the caller has it already.
            given: `BlockStates` to read, for a layer whose memories offer none.
            known: `own_states(cache)`, if the caller has them already (one block only).
            key: dropout key; None turns dropout off.
            masks: `masks(key, ...)`, if the caller has them already, instead of a key.
            weights: `loop_weights(x_BTD.dtype)`, if the caller has them already.

        Returns:
            (B, T, D), the cache after the segment, and the monitors: a dict of scalars, those of
            the memories and, where tokens attend to states, state_share: the states' part of what
            attention adds.
        """
        B, T, _ = x_BTD.shape
        W = self.window
        table_HWJ = self.window_table() if table_HWJ is None else table_HWJ
        weights = self.loop_weights(x_BTD.dtype) if weights is None else weights
        if masks is None:
            S = self.num_states or (given.keys_BGSHK.shape[2] if given else 0)
            masks = self.masks(key, T, S, x_BTD.dtype)

        with jax.named_scope("attention"):
            normed_BTD = dropped(self.attention_norm(x_BTD), masks.normed_PD)
        tokens = self._tokens(normed_BTD, weights)
        with jax.named_scope("attention"):
            blocks = BlockPairs(
                _pairs(cache.window.keys_BWHK, tokens.keys_BTHK),
                _pairs(cache.window.values_BWHK, tokens.values_BTHK),
            )

        def read(q_BTHK, k_BGJHK, v_BGJHK, scale_H, table, keep):
            q_BGWHK = q_BTHK.reshape(B, T // W, W, *q_BTHK.shape[2:])
            y = attend(q_BGWHK, k_BGJHK, v_BGJHK, scale_H, table, keep)
            return y.reshape(B, T, *q_BTHK.shape[2:])

        if self.remat_blocks:
            read = jax.checkpoint(read)
        with jax.named_scope("attention"):
            self_BTHK = read(
                tokens.queries_BTHK,
                blocks.keys_BGJHK,
                blocks.values_BGJHK,
                tokens.scale_H,
                table_HWJ,
                masks.weights_HWJ,
            )

        remat = self.remat_blocks
        self_BTHK, read_monitors = read_all(self.memories, cache.memories, tokens, self_BTHK, remat)
        memories, offered, block_monitors = take_in_all(
            self.memories, cache.memories, blocks, known, weights["memories"], remat
        )
        monitors = named_monitors(self.memories, read_monitors, block_monitors)
        states = offered or given

        def read_states(q_BTHK):
            k_BGSHK, v_BGSHK = states
            scale_H, keep_HWS = self._scale("cross_scale_H"), masks.state_weights_HWS
            return read(q_BTHK, k_BGSHK, v_BGSHK, scale_H, None, keep_HWS)

        x_BTD, shares = self._project_and_feed(
            x_BTD, normed_BTD, self_BTHK, read_states, weights, masks.fed_PD
        )
        window = WindowCache(tokens.keys_BTHK[:, -W:], tokens.values_BTHK[:, -W:])
        return x_BTD, LayerCache(window, memories), monitors | shares

    # The decoding form.

    def decode(
        self,
        x_BD: jax.Array,
        cache: DecodingLayer,
        given: BlockStates | None = None,
        reads_B: jax.Array | bool = True,
    ) -> tuple[jax.Array, DecodingLayer]:
        """Reads one token of every row; memories change when the token completes a block.

        Args:
            x_BD: (B, D) activations.
            cache: the decoding form.
            given: `BlockStates` with G = 1, for a layer whose memories offer none.
            reads_B: (B,) bool, rows that read a token; the caches of the others stay.

        Returns:
            (B, D) and the cache after the token.
        """
        x_B1D = x_BD[:, None]
        with jax.named_scope("attention"):
            normed_B1D = self.attention_norm(x_B1D)
        weights = self._own_weights(x_BD.dtype)
        token = self._tokens(normed_B1D, weights)
        with jax.named_scope("attention"):
            keys_BHK = token.keys_BTHK[:, 0]
            window = write_token(cache.window, keys_BHK, token.values_BTHK[:, 0], reads_B)
            table_BH1J = self.relative_bias.token_table(
                self._bias_scale(), self.window, window.fill_B
            )
            self_B1HK = attend(
                token.queries_BTHK, window.keys_BJHK, window.values_BJHK, token.scale_H, table_BH1J
            )
        self_B1HK, _ = read_all(self.memories, cache.memories, token, self_B1HK)

        def read_states(q_B1HK):
            states = self.own_decoding_states(cache, x_BD.dtype) or given
            k_BSHK, v_BSHK = (x_BGSHK[:, 0] for x_BGSHK in states)
            return attend(q_B1HK, k_BSHK, v_BSHK, self._scale("cross_scale_H"))

        x_B1D, _ = self._project_and_feed(x_B1D, normed_B1D, self_B1HK, read_states, weights, None)
        blocks = BlockPairs(window.keys_BJHK[:, None], window.values_BJHK[:, None])
        full_B = completes_block(window, reads_B)
        memories = complete_block(self.memories, cache.memories, blocks, full_B)
        return x_B1D[:, 0], DecodingLayer(advance(window, reads_B), memories)

    # What it costs, and how far it sees.

    def flops_per_token(self, given_states: int = 0) -> float:
        """Returns the operations of one token's forward pass, a product and a sum as two.

        given_states: S, states that it is given where its memories offer none.
        """
        A = self.sizes.attention_size
        total = 2 * matrix_size(self, without=self.memory_names) + 4 * A * self.window
        if self.reads_states:
            total += 4 * A * (self.num_states or given_states)
        return total + sum(memory.flops_per_token(self.window) for memory in self.memories)

    def reach(self) -> float:
        """Returns how many tokens before a block its tokens may be influenced by, at most."""
        return max([self.window, *(memory.reach for memory in self.memories)])


def _pairs(previous_BWHK, x_BTHK):
    """Returns each block's view: the block before it and itself, (B, G, 2W, H, K)."""
    B, W = previous_BWHK.shape[:2]
    whole = jnp.concatenate([previous_BWHK, x_BTHK], axis=1)
    if x_BTHK.shape[1] == W:
        return whole[:, None]
    blocks = whole.reshape(B, -1, W, *whole.shape[2:])
    return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)
