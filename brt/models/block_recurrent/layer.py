"""One layer: windowed attention, memories, attention to states, MLP, residuals.

A token attends to the W tokens before it and, with `reads_states`, to state vectors of the layer's
memories (`memory.py`) or of another layer (block feedback). Axes as in `brt.models`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, Share, checked_arguments, with_signature
from brt.models.axis_rules import constrain
from brt.models.block_recurrent.memory import BlockStates, LayerMemory, LayerTokens, joined_states
from brt.models.caches import LayerCache, WindowCache
from brt.models.contract import check_memories, checked_segment, empty_cache, joined_metrics
from brt.models.counts import matrix_size
from brt.models.fast import table
from brt.models.fast.products import JoinedMatrix
from brt.models.layers.feed_forward import FeedForward, FeedForwardWeights
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import RMSNorm, share_of_norm
from brt.models.layers.positions_t5 import RelativeBias, WindowMask
from brt.models.model import Metrics
from brt.models.ops import LayerOps, Matrix, dropped, joined_heads, repeated_mask
from brt.models.sizes import Sizes


class LayerWeights(NamedTuple):
    """The matrices of a layer; None: no attention to states, or no MLP."""

    queries_DA: Matrix
    keys_DA: Matrix
    values_DA: Matrix
    output_AD: Matrix
    cross_queries_DA: Matrix | None
    states_output_AD: Matrix | None
    feed_forward: FeedForwardWeights | None


class Prepared(NamedTuple):
    """Values of the parameters and the dropout key alone, computed once for a segment.

    window: tables of windowed attention. states_dropout: of the attention to states. Both in the
    form for the layer's operations. memories: of each memory's `prepare`. normed_PD, mlp_PD:
    dropout masks of the outputs of attention norm and MLP, repeated along the tokens; None: no
    dropout.
    """

    weights: LayerWeights
    memories: tuple
    window: Any
    states_dropout: Any
    normed_PD: jax.Array | None
    mlp_PD: jax.Array | None


@with_signature
class Layer(nnx.Module):
    """Pre-norm attention and MLP, each with a residual (Block-Recurrent, sections 3.1 and 4.1).

    Args:
        window: W in tokens.
        dropout: rate after the attention norm, on attention weights and after the MLP.
        memories: they add to attention in this order.
        reads_states: attend to the states of another layer (block feedback); a layer whose memories
            have states attends to them anyway.
    """

    @checked_arguments
    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: Count,
        dropout: Share = 0.0,
        memories: tuple[LayerMemory, ...] = (),
        reads_states: bool = False,
    ):
        D, H, A = sizes.width, sizes.num_heads, sizes.attention_size
        ones = jax.nn.initializers.ones
        self.sizes, self.window, self.dropout = sizes, window, dropout
        self.num_states = sum(memory.num_states for memory in memories)
        self.reads_states = reads_states or self.num_states > 0
        self.sequential = any(memory.reads_after_tokens for memory in memories)
        self.attention_norm = RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        if sizes.qk_norm:
            self.attention_scale_H = parameter(rngs, ones, H)
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
        if sizes.feed_forward_size:
            self.feed_forward_norm = RMSNorm(rngs, D)
            self.feed_forward = FeedForward(rngs, D, sizes.feed_forward_size)
        check_memories(memories, dir(self), LayerMemory)
        self.memory_names = tuple(memory.name for memory in memories)
        for memory in memories:
            setattr(self, memory.name, memory)

    @property
    def memories(self) -> tuple[LayerMemory, ...]:
        return tuple(getattr(self, name) for name in self.memory_names)

    # Caches.

    def init_cache(self, rows: int, dtype: DTypeLike) -> LayerCache:
        shape = rows, self.window, self.sizes.num_heads, self.sizes.head_size
        window = WindowCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        return LayerCache(window, tuple(empty_cache(m, rows, dtype) for m in self.memories))

    def prepare(
        self,
        dtype: DTypeLike,
        key: jax.Array | None = None,
        tokens: int = 0,
        feedback_size: int = 0,
    ) -> Prepared:
        """Returns the values that depend on the parameters and the dropout key alone.

        tokens: T of the segment. feedback_size: S of the states of another layer, if any.
        """
        keys = [None] * 4 if key is None else list(jax.random.split(key, 4))
        normed_key, window_key, states_key, mlp_key = keys
        D, H, W, rate = self.sizes.width, self.sizes.num_heads, self.window, self.dropout
        ops = self.ops(dtype, feedback_size)
        with jax.named_scope("attention"):
            normed_PD = repeated_mask(normed_key, rate, tokens, D, dtype)
            bias_HW = self.relative_bias.by_distance(jnp.abs(self.scale_H), W)
            window = ops.window_tables(bias_HW, window_key, rate)
        with jax.named_scope("states"):
            memories = tuple(
                memory.prepare(dtype, None if key is None else jax.random.fold_in(key, i))
                for i, memory in enumerate(self.memories, 4)  # fold_in(key, 0) is keys[0]
            )
            sizes = H, W, self.num_states or feedback_size
            states_dropout = (
                ops.states_dropout(states_key, rate, sizes, dtype) if self.reads_states else None
            )
        with jax.named_scope("feed_forward"):
            mlp_PD = repeated_mask(mlp_key, rate, tokens, D, dtype)
        weights = self.weights(dtype)
        return Prepared(weights, memories, window, states_dropout, normed_PD, mlp_PD)

    def weights(self, dtype: DTypeLike) -> LayerWeights:
        matrix = functools.partial(JoinedMatrix, dtype=dtype)
        A, cross = self.queries_DA.shape[1], self.reads_states
        output_CD = (self.output_CD if cross else self.output_AD)[...]
        return LayerWeights(
            matrix(self.queries_DA[...]),
            matrix(self.keys_DA[...]),
            matrix(self.values_DA[...]),
            matrix(output_CD[:A]),
            matrix(self.cross_queries_DA[...]) if cross else None,
            matrix(output_CD[A:]) if cross else None,
            self.feed_forward.weights(dtype) if self.sizes.feed_forward_size else None,
        )

    def ops(self, dtype: DTypeLike, feedback_size: int = 0) -> LayerOps:
        S = (self.num_states or feedback_size) if self.reads_states else 0
        return table.layer_ops(self.sizes, self.window, S, dtype)

    @property
    def attention_scale(self) -> jax.Array | None:
        """The learned scale of each head, (H,); None: the scaled dot product."""
        return self.attention_scale_H[...] if self.sizes.qk_norm else None

    @property
    def scale_H(self) -> jax.Array:
        scale_H = self.attention_scale
        return jnp.ones(self.sizes.num_heads) if scale_H is None else scale_H

    @property
    def cross_scale(self) -> jax.Array | None:
        return self.cross_scale_H[...] if self.sizes.qk_norm else None

    # States that tokens attend to.

    @jax.named_scope("states")
    def current_states(
        self, cache: LayerCache, dtype: DTypeLike, prepared: Prepared
    ) -> tuple[BlockStates | None, ...]:
        """Returns the states of each memory for the next block (G = 1), or None."""
        inputs = zip(self.memories, cache.memories, prepared.memories, strict=True)
        return tuple(memory.states(old, dtype, weights) for memory, old, weights in inputs)

    # Steps that a segment and a decoded token (`decoding.py`) share.

    def _heads(self, x_BTD, matrix_DA):
        x_BTA = matrix_DA("BTD,DA->BTA", x_BTD)
        return constrain(x_BTA.reshape(*x_BTA.shape[:2], self.sizes.num_heads, -1), "BTHK")

    @jax.named_scope("attention")
    def heads(
        self, x_BTD: jax.Array, weights: LayerWeights, mask_PD: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Returns the normalised inputs, (B, T, D), and their queries, keys and values."""
        normed_BTD = dropped(self.attention_norm(x_BTD), mask_PD)
        q_BTHK = self._heads(normed_BTD, weights.queries_DA)
        k_BTHK = self._heads(normed_BTD, weights.keys_DA)
        return normed_BTD, q_BTHK, k_BTHK, self._heads(normed_BTD, weights.values_DA)

    def output(
        self,
        x_BTD: jax.Array,
        normed_BTD: jax.Array,
        attended_BTHK: jax.Array,
        read_states: Callable[[jax.Array], jax.Array],
        weights: LayerWeights,
        mlp_mask_PD: jax.Array | None = None,
    ) -> tuple[jax.Array, Metrics]:
        """Returns the layer's output; read_states: maps queries to attention to states."""
        metrics = {}
        with jax.named_scope("attention"):
            added_BTD = weights.output_AD("BTA,AD->BTD", joined_heads(attended_BTHK))
        if weights.cross_queries_DA and weights.states_output_AD:
            with jax.named_scope("states"):
                if self.sequential:
                    normed_BTD = self.cross_norm(x_BTD + added_BTD)
                read_BTHK = read_states(self._heads(normed_BTD, weights.cross_queries_DA))
                from_states_BTD = weights.states_output_AD("BTA,AD->BTD", joined_heads(read_BTHK))
                metrics = {"state_share": share_of_norm(from_states_BTD, added_BTD)}
                added_BTD = added_BTD + from_states_BTD
        x_BTD = x_BTD + added_BTD
        with jax.named_scope("feed_forward"):
            if weights.feed_forward:
                normed_BTD = self.feed_forward_norm(x_BTD)
                mlp_BTD = self.feed_forward(normed_BTD, None, weights.feed_forward, mlp_mask_PD)
                x_BTD = x_BTD + mlp_BTD
            return constrain(x_BTD, "BTD"), metrics

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
            prepared: in a loop over blocks, `prepare(x_BTD.dtype, ...)` from before the loop.
            key: of dropout, if `prepared` is None; None: no dropout.
            counts_B: (B,) int32, tokens that are not padding (one block); None: all.
            feedback_states: states of another layer, if the memories have none.
            current_states: `current_states(cache)`, if already computed (one block).

        Returns:
            (B, T, D), the cache for the next segment, and metrics, such as state_share, the states'
            share of attention.
        """
        feedback_size = 0 if feedback_states is None else feedback_states.keys_BGSHK.shape[2]
        ops = self.ops(x_BTD.dtype, feedback_size)
        prepared = prepared or self.prepare(x_BTD.dtype, key, x_BTD.shape[1], feedback_size)

        # All blocks at once; each block sees itself and the one before.
        weights = prepared.weights
        normed_BTD, q_BTHK, k_BTHK, v_BTHK = self.heads(x_BTD, weights, prepared.normed_PD)
        with jax.named_scope("attention"):
            attended_BTHK, q_BTHK, k_BTHK, window = ops.window_attention(
                q_BTHK, k_BTHK, v_BTHK, cache.window, self.attention_scale, prepared.window
            )
        tokens = LayerTokens(normed_BTD, q_BTHK, k_BTHK, v_BTHK, self.scale_H, counts_B)

        # Memories, in order: each may add to attention, is updated with the blocks, and may return
        # states from before each block, so that no block sees its own update.
        new_memories, all_states = [], []
        metrics: Metrics = {}
        current_states = current_states or (None,) * len(self.memories)
        for memory, old, own, known in zip(
            self.memories, cache.memories, prepared.memories, current_states, strict=True
        ):
            with jax.named_scope("states" if memory.num_states else "memory"):
                result = memory(old, tokens, cache.window, attended_BTHK, own, known)
            like = x_BTD if memory.in_residual else attended_BTHK
            y, new, states, reported = checked_segment(memory, like, old, result)
            if memory.in_residual:
                x_BTD = x_BTD + y
            else:
                attended_BTHK = y
            if counts_B is not None and memory.has_own_take:  # the block may continue in decoding
                new = memory.take(tokens)
            new_memories.append(new)
            all_states.append(states)
            metrics = joined_metrics(metrics, memory.name, reported)

        def read_states(q_BTHK):
            states = cast(BlockStates, joined_states(all_states) or feedback_states)
            dropout = prepared.states_dropout
            return ops.attention_to_states(q_BTHK, *states, self.cross_scale, dropout)

        x_BTD, shares = self.output(
            x_BTD, normed_BTD, attended_BTHK, read_states, weights, prepared.mlp_PD
        )
        return x_BTD, LayerCache(window, tuple(new_memories)), metrics | shares

    def flops_per_token(self, feedback_size: int = 0) -> float:
        S = (self.num_states or feedback_size) if self.reads_states else 0
        attention = 4 * self.sizes.attention_size * (self.window + S)
        memories = sum(memory.flops_per_token(self.window) for memory in self.memories)
        return 2 * matrix_size(self, without=self.memory_names) + attention + memories
