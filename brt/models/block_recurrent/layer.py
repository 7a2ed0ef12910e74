"""One layer: windowed attention, memories, attention to states, MLP, residuals.

A token attends to the W tokens before it. With `reads_states` it also attends to state vectors:
those of the layer's memories (`memory.py`), or those of another layer (block feedback). Axes as in
`brt.models`.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models import caches
from brt.models.axis_rules import constrain
from brt.models.block_recurrent.memory import (
    BlockPairs,
    BlockStates,
    LayerMemory,
    LayerTokens,
    joined_states,
)
from brt.models.caches import DecodingLayer, LayerCache, WindowCache
from brt.models.contract import check_scalars
from brt.models.counts import matrix_size
from brt.models.fast import kernel_attention as kernels
from brt.models.fast.loop_weights import LoopWeights, cast_before, product
from brt.models.layers.attention import attend
from brt.models.layers.dropout import LayerMasks, draw_masks, dropped
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import RMSNorm, scaled_down_heads, share_of_norm, unit_heads
from brt.models.layers.positions_t5 import RelativeBias, WindowMask
from brt.models.layers.sizes import Sizes
from brt.models.model import Metrics


class Prepared(NamedTuple):
    """What a layer computes of its parameters once per segment, outside any loop over blocks.

    bias_HWJ: (H, W, 2W), relative position bias and mask of the window, or those of a kernel.
    weights: matrices in the activations' type, by name; the MLP's under "feed_forward", and what
        each memory prepared under "memories".
    masks: dropout masks.
    """

    bias_HWJ: jax.Array
    weights: dict[str, Any]
    masks: LayerMasks


class Layer(nnx.Module):
    """Pre-norm attention and MLP, each with a residual (Block-Recurrent, sections 3.1 and 4.1).

    Args:
        sizes: D, H, K, F, and whether queries and keys are normalised.
        window: W in tokens.
        dropout: rate after the attention norm, on attention weights and after the MLP.
        sinks: whether each head of windowed attention has a learned score of one more key, whose
            value is zero, so that a token need not attend to any other.
        memories: `LayerMemory` modules, which add to attention in this order.
        reads_states: whether the tokens attend to states, even if no memory of the layer has any.
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
        sinks: bool = False,
    ):
        D, H, A = sizes.width, sizes.num_heads, sizes.attention_size
        ones = jax.nn.initializers.ones
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
            self.attention_scale_H = parameter(rngs, ones, H)
        self.sinks = sinks
        if sinks:
            self.sink_H = parameter(rngs, jax.nn.initializers.zeros, H)
        biased = all(memory.position_bias for memory in memories)
        self.relative_bias = RelativeBias(rngs, H) if biased else WindowMask()
        if self.reads_states:
            self.cross_queries_DA = parameter(rngs, DENSE, D, A, purpose="recurrence")
            if sizes.qk_norm:
                self.cross_scale_H = parameter(rngs, ones, H, purpose="recurrence")
            # First A inputs: attention to tokens; last A inputs: attention to states.
            self.output_CD = parameter(rngs, DENSE, 2 * A, D, purpose=("layers", "recurrence"))
        else:
            self.output_AD = parameter(rngs, DENSE, A, D)
        if self.sequential:
            self.cross_norm = RMSNorm(rngs, D, purpose="recurrence")
        self.feed_forward_norm = RMSNorm(rngs, D)
        self.feed_forward = FeedForward(rngs, D, sizes.feed_forward_size)
        self.memory_names = tuple(getattr(memory, "name", "") for memory in memories)
        for memory, name in zip(memories, self.memory_names):
            if not name or hasattr(self, name):
                raise ValueError(
                    f"{type(memory).__name__}.name = {name!r} must be set and differ from those of "
                    "the layer's other memories and parts: it names parameters and metrics."
                )
            if type(memory).states is not LayerMemory.states and not memory.num_states:
                raise ValueError(f"{type(memory).__name__} has states: set num_states, now 0.")
            setattr(self, name, memory)

    @property
    def memories(self) -> tuple[LayerMemory, ...]:
        return tuple(getattr(self, name) for name in self.memory_names)

    # Caches.

    def init_cache(self, rows: int, dtype: DTypeLike) -> LayerCache:
        """Returns the cache of `rows` new documents; an empty window is visible zeros."""
        shape = rows, self.window, self.sizes.num_heads, self.sizes.head_size
        window = WindowCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        return LayerCache(window, tuple(m.init_cache(rows, dtype) for m in self.memories))

    def begin_decoding(
        self, cache: LayerCache, after: LayerCache | None = None, fill_B: jax.Array | None = None
    ) -> DecodingLayer:
        """Returns the decoding form of a segment-form cache.

        after, fill_B: as in `fill_window`, for batch elements that end inside a block.
        """
        window = caches.fill_window(cache.window, None if after is None else after.window, fill_B)
        dtype = window.keys_BJHK.dtype
        # A memory that moves inside a block has processed the tokens of the block that count.
        later = cache if after is None else after
        return DecodingLayer(
            window,
            tuple(
                memory.begin_decoding(new if memory.moves_in_blocks else old, dtype)
                for memory, old, new in self._with(cache.memories, later.memories)
            ),
        )

    def end_decoding(self, cache: DecodingLayer) -> LayerCache:
        """Returns the segment form of a decoding form at a block boundary."""
        memories = (memory.end_decoding(old) for memory, old in self._with(cache.memories))
        return LayerCache(caches.last_block(cache.window), tuple(memories))

    def _with(self, *by_memory):
        return zip(self.memories, *by_memory, strict=True)

    # Prepared once per segment.

    def prepare(
        self,
        dtype: DTypeLike,
        key: jax.Array | None = None,
        tokens: int = 0,
        feedback_size: int = 0,
    ) -> Prepared:
        """Returns what depends on the parameters and the dropout key alone.

        tokens: T of the segment. feedback_size: S of the states of another layer, if any.
        """
        weights = self._weights(dtype)
        with jax.named_scope("states"):
            weights["memories"] = [memory.prepare(dtype) for memory in self.memories]
        S = (self.num_states or feedback_size) if self.reads_states else None
        masks = draw_masks(key, self.dropout, self.sizes, tokens, self.window, S, dtype)
        with jax.named_scope("attention"):
            scale_H = jnp.abs(self._scale("attention_scale_H"))
            bias_HWJ = self.relative_bias.window_table(scale_H, self.window)
            bias_HWJ, masks = kernels.tables_of_tiles(self.sizes, bias_HWJ, masks, self._sink)
        return Prepared(bias_HWJ, weights, masks)

    def _weights(self, dtype) -> dict[str, Any]:
        A = self.sizes.attention_size
        matrices = {
            "queries_DA": self.queries_DA[...],
            "keys_DA": self.keys_DA[...],
            "values_DA": self.values_DA[...],
        }
        if self.reads_states:
            matrices["cross_queries_DA"] = self.cross_queries_DA[...]
            matrices["output_AD"] = self.output_CD[...][:A]
            matrices["states_output_AD"] = self.output_CD[...][A:]
        else:
            matrices["output_AD"] = self.output_AD[...]
        weights: dict[str, Any] = {name: cast_before(x, dtype) for name, x in matrices.items()}
        return weights | {"feed_forward": self.feed_forward.loop_weights(dtype)}

    def _scale(self, name):
        """Returns the learned scale of each head; ones where queries are scaled already."""
        return getattr(self, name)[...] if self.sizes.qk_norm else jnp.ones(self.sizes.num_heads)

    @property
    def _sink(self):
        return self.sink_H[...] if self.sinks else None

    # States that tokens attend to.

    @jax.named_scope("states")
    def current_states(
        self, cache: LayerCache, dtype: DTypeLike, prepared: Prepared
    ) -> tuple[BlockStates | None, ...]:
        """Returns the states of each memory that the next block attends to (G = 1), or None."""
        inputs = self._with(cache.memories, prepared.weights["memories"])
        return tuple(memory.states(old, dtype, weights) for memory, old, weights in inputs)

    @jax.named_scope("states")
    def decoding_states(self, cache: DecodingLayer, dtype: DTypeLike) -> BlockStates | None:
        return joined_states(m.decoding_states(old, dtype) for m, old in self._with(cache.memories))

    # Steps that a segment and a decoded token share.

    def _heads(self, x_BTD, matrix_DA: LoopWeights):
        x_BTA = product("BTD,DA->BTA", x_BTD, matrix_DA)
        return constrain(x_BTA.reshape(*x_BTA.shape[:2], self.sizes.num_heads, -1), "BTHK")

    def _scaled(self, q_BTHK):
        return unit_heads(q_BTHK) if self.sizes.qk_norm else scaled_down_heads(q_BTHK)

    @jax.named_scope("attention")
    def _project(self, x_BTD, weights, mask_PD=None, counts_B=None):
        normed_BTD = dropped(self.attention_norm(x_BTD), mask_PD)
        names = "queries_DA", "keys_DA", "values_DA"
        q_BTHK, k_BTHK, v_BTHK = heads = [self._heads(normed_BTD, weights[name]) for name in names]
        k_BTHK = unit_heads(k_BTHK) if self.sizes.qk_norm else k_BTHK
        scale_H = self._scale("attention_scale_H")
        tokens = LayerTokens(normed_BTD, self._scaled(q_BTHK), k_BTHK, v_BTHK, scale_H, counts_B)
        return tokens, heads

    def _output(self, x_BTD, normed_BTD, attended_BTHK, read_states, weights, mlp_mask_PD=None):
        """Adds the projected attention to tokens and to states, then the MLP."""
        metrics: Metrics = {}

        def project(y_BTHK, matrix_AD):
            return product("BTA,AD->BTD", y_BTHK.reshape(*x_BTD.shape[:2], -1), matrix_AD)

        with jax.named_scope("attention"):
            added_BTD = from_tokens_BTD = project(attended_BTHK, weights["output_AD"])
        if self.reads_states:
            with jax.named_scope("states"):
                if self.sequential:
                    normed_BTD = self.cross_norm(x_BTD + from_tokens_BTD)
                q_BTHK = self._heads(normed_BTD, weights["cross_queries_DA"])
                from_states_BTD = project(read_states(q_BTHK), weights["states_output_AD"])
                added_BTD = from_tokens_BTD + from_states_BTD
                metrics["state_share"] = share_of_norm(from_states_BTD, from_tokens_BTD)
        x_BTD = x_BTD + added_BTD
        with jax.named_scope("feed_forward"):
            normed_BTD = self.feed_forward_norm(x_BTD)
            mlp_BTD = self.feed_forward(normed_BTD, weights=weights["feed_forward"])
            return constrain(x_BTD + dropped(mlp_BTD, mlp_mask_PD), "BTD"), metrics

    # A segment.

    def __call__(
        self,
        x_BTD: jax.Array,
        cache: LayerCache,
        prepared: Prepared | None = None,
        key: jax.Array | None = None,
        counts_B: jax.Array | None = None,
        feedback_states: BlockStates | None = None,
        current_states: tuple[BlockStates | None, ...] | None = None,
    ) -> tuple[jax.Array, LayerCache, Metrics]:
        """Runs on one segment of every batch element.

        Args:
            x_BTD: (B, T, D) activations, T a multiple of W.
            cache: segment form.
            prepared: in a loop over blocks, `prepare(x_BTD.dtype, ...)` from before the loop.
            key: of dropout, where `prepared` is None; None: no dropout.
            counts_B: (B,) int32, tokens that are not padding (one block); None: all.
            feedback_states: states of another layer, for one whose memories have none.
            current_states: `current_states(cache)` where they are computed already (one block).

        Returns:
            (B, T, D), the cache for the next segment, and metrics: those of the memories, and
            state_share, the states' share of what attention adds.
        """
        W = self.window
        bias_HWJ, weights, masks = prepared or self.prepare(x_BTD.dtype, key, x_BTD.shape[1])

        # Queries, keys and values of all blocks at once; each block sees itself and the one before.
        tokens, heads = self._project(x_BTD, weights, masks.normed_PD, counts_B)
        with jax.named_scope("attention"):
            blocks = BlockPairs(
                _pairs(cache.window.keys_BWHK, tokens.keys_BTHK),
                _pairs(cache.window.values_BWHK, tokens.values_BTHK),
            )
            inputs = heads, cache.window, tokens, blocks, bias_HWJ, masks.weights_HWJ, self._sink
            attended_BTHK = kernels.attend_to_window(self.sizes, *inputs, self.remat_blocks)

        # Memories, in order. Each may add to attention, is updated with the blocks, and may offer
        # states: those from before each block, so that no block sees its own update.
        known_states = current_states or (None,) * len(self.memories)
        new_memories, all_states = [], []
        metrics: Metrics = {}
        for memory, old, prepared_weights, known in self._with(
            cache.memories, weights["memories"], known_states
        ):
            with jax.named_scope("states" if memory.num_states else "memory"):
                attended_BTHK, new, states, reported = memory(
                    old, tokens, blocks, attended_BTHK, prepared_weights, known, self.remat_blocks
                )
            new_memories.append(new)
            all_states.append(states)
            metrics |= _named_metrics(memory, reported, metrics)

        def read_states(q_BTHK):
            k_BGSHK, v_BGSHK = cast(BlockStates, joined_states(all_states) or feedback_states)
            scale_H, keep_HWS = self._scale("cross_scale_H"), masks.state_weights_HWS
            inputs = q_BTHK, k_BGSHK, v_BGSHK, scale_H, keep_HWS
            return kernels.attend_to_states(self.sizes, *inputs, self.remat_blocks)

        x_BTD, shares = self._output(
            x_BTD, tokens.inputs_BTD, attended_BTHK, read_states, weights, masks.fed_PD
        )
        window = WindowCache(tokens.keys_BTHK[:, -W:], tokens.values_BTHK[:, -W:])
        return x_BTD, LayerCache(window, tuple(new_memories)), metrics | shares

    # One token.

    def decode(
        self,
        x_BD: jax.Array,
        cache: DecodingLayer,
        feedback_states: BlockStates | None = None,
        reads_B: jax.Array | bool = True,
    ) -> tuple[jax.Array, DecodingLayer]:
        """Runs on one token of every batch element; memories change when it completes a block.

        Args:
            x_BD: (B, D) activations.
            cache: the decoding form.
            feedback_states: with G = 1, for a layer whose memories have no states.
            reads_B: (B,) bool, batch elements that have a token; the caches of others stay.

        Returns:
            (B, D) and the cache after the token.
        """
        x_B1D, weights = x_BD[:, None], self._weights(x_BD.dtype)
        token, _ = self._project(x_B1D, weights)
        with jax.named_scope("attention"):
            k_BHK, v_BHK = token.keys_BTHK[:, 0], token.values_BTHK[:, 0]
            window = caches.write_token(cache.window, k_BHK, v_BHK, reads_B)
            scale_H = jnp.abs(token.scale_H)
            bias_BH1J = self.relative_bias.token_table(scale_H, self.window, window.fill_B)
            keys_values = window.keys_BJHK, window.values_BJHK
            attended_B1HK = attend(
                *(token.queries_BTHK, *keys_values, token.scale_H, bias_BH1J), sink_H=self._sink
            )
        memories = []
        for memory, old in self._with(cache.memories):
            with jax.named_scope("states" if memory.num_states else "memory"):
                attended_B1HK, new = memory.decode(old, token, attended_B1HK, reads_B)
            memories.append(new)

        def read_states(q_B1HK):
            states = self.decoding_states(cache, x_BD.dtype) or cast(BlockStates, feedback_states)
            k_BSHK, v_BSHK = (x_BGSHK[:, 0] for x_BGSHK in states)
            return attend(self._scaled(q_B1HK), k_BSHK, v_BSHK, self._scale("cross_scale_H"))

        x_B1D, _ = self._output(x_B1D, token.inputs_BTD, attended_B1HK, read_states, weights)
        blocks = BlockPairs(window.keys_BJHK[:, None], window.values_BJHK[:, None])
        full_B = caches.completes_block(window, reads_B)

        def update(memories):
            return tuple(
                m.update_after_block(old, blocks, full_B) for m, old in self._with(memories)
            )

        # Computes nothing where no block is full.
        after = jax.lax.cond(jnp.any(full_B), update, lambda memories: memories, tuple(memories))
        return x_B1D[:, 0], DecodingLayer(caches.advance(window, reads_B), after)

    # Cost and receptive field.

    def flops_per_token(self, feedback_size: int = 0) -> float:
        """Returns the operations of one token's forward pass, a product and a sum as two.

        feedback_size: S of the states of another layer.
        """
        A = self.sizes.attention_size
        total = 2 * matrix_size(self, without=self.memory_names) + 4 * A * self.window
        if self.reads_states:
            total += 4 * A * (self.num_states or feedback_size)
        return total + sum(memory.flops_per_token(self.window) for memory in self.memories)

    def reach(self) -> float:
        """Returns how many tokens before a block its tokens may be influenced by, at most."""
        return max([self.window, *(memory.reach for memory in self.memories)])


def _pairs(previous_BWHK, x_BTHK):
    """Returns each block with the block before it, (B, G, 2W, H, K)."""
    B, W = previous_BWHK.shape[:2]
    whole = jnp.concatenate([previous_BWHK, x_BTHK], axis=1)
    if x_BTHK.shape[1] == W:
        return whole[:, None]
    blocks = whole.reshape(B, -1, W, *whole.shape[2:])
    return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)


def _named_metrics(memory, metrics, earlier):
    """Returns a memory's metrics; a name that is taken becomes `<name of the memory>/<name>`."""
    check_scalars(metrics, f"{type(memory).__name__} (memory {memory.name!r})")
    taken = {*earlier, "state_share"}
    return {f"{memory.name}/{n}" if n in taken else n: value for n, value in metrics.items()}
