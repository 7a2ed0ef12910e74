"""One layer: windowed attention, memories, attention to states, MLP, residuals.

A token attends to the W tokens before it. With `reads_states` it also attends to state vectors: of
the layer's memories (`memory.py`), or of another layer (block feedback). Axes as in `brt.models`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, Share, checked_arguments, with_signature
from brt.models.axis_rules import constrain
from brt.models.block_recurrent.memory import (
    BlockPairs,
    BlockStates,
    LayerMemory,
    LayerTokens,
    joined_states,
)
from brt.models.caches import LayerCache, WindowCache
from brt.models.contract import check_memories, checked_segment, empty_cache, joined_metrics
from brt.models.counts import matrix_size
from brt.models.fast import kernel_attention as kernels
from brt.models.fast.layer_products import Attended, add_attended, project
from brt.models.fast.loop_weights import LoopWeights, cast_before, product
from brt.models.layers.dropout import LayerMasks, draw_masks, dropped
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import (
    RMSNorm,
    scaled_down_heads,
    unit_heads,
)
from brt.models.layers.positions_t5 import RelativeBias, WindowMask
from brt.models.layers.sizes import Sizes
from brt.models.model import Metrics

QUERIES_KEYS_VALUES = "queries_DA", "keys_DA", "values_DA"
CROSS_QUERIES = "cross_queries_DA"


class Prepared(NamedTuple):
    """Arrays computed from a layer's parameters once per segment, outside of any loop over blocks.

    bias_HWJ: (H, W, 2W), relative position bias and mask of the window, or those of a kernel.
    weights: matrices in the activations' type, by name; "feed_forward" and "memories" are nested.
    """

    bias_HWJ: jax.Array
    weights: dict[str, Any]
    masks: LayerMasks


@with_signature
class Layer(nnx.Module):
    """Pre-norm attention and MLP, each with a residual (Block-Recurrent, sections 3.1 and 4.1).

    Args:
        rngs: of the parameters.
        sizes: of the layer (`brt.Sizes`).
        window: W in tokens.
        dropout: rate after the attention norm, on attention weights and after the MLP.
        memories: they add to attention in this order.
        reads_states: build the attention to states for those of another layer (block feedback);
            a layer whose memories have states attends to them anyway.
        remat_blocks: recompute attention and the memories' parts in the backward pass.
        sinks: a learned score of one more key, whose value is zero, for each head of windowed
            attention, so that a token need not attend to any other.
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
        remat_blocks: bool = False,
        sinks: bool = False,
    ):
        D, H, A = sizes.width, sizes.num_heads, sizes.attention_size
        ones = jax.nn.initializers.ones
        self.sizes, self.window, self.dropout = sizes, window, dropout
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
        check_memories(memories, dir(self), LayerMemory)
        self.memory_names = tuple(memory.name for memory in memories)
        for memory in memories:
            setattr(self, memory.name, memory)

    @property
    def memories(self) -> tuple[LayerMemory, ...]:
        return tuple(getattr(self, name) for name in self.memory_names)

    # Caches.

    def init_cache(self, rows: int, dtype: DTypeLike) -> LayerCache:
        """Returns the cache of `rows` new documents; an empty window is visible zeros."""
        shape = rows, self.window, self.sizes.num_heads, self.sizes.head_size
        window = WindowCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        return LayerCache(window, tuple(empty_cache(m, rows, dtype) for m in self.memories))

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
        """Returns the arrays that depend on the parameters and the dropout key alone.

        tokens: T of the segment. feedback_size: S of the states of another layer, if any.
        """
        weights = self.matrices(dtype)
        with jax.named_scope("states"):
            weights["memories"] = [memory.prepare(dtype) for memory in self.memories]
        S = (self.num_states or feedback_size) if self.reads_states else None
        J = kernels.seen_keys(self.sizes, self.window, dtype, self.sinks)
        tiled = S is not None and kernels.draws_states_dropout(self.sizes, self.window, S)
        masks = draw_masks(key, self.dropout, self.sizes, tokens, self.window, S, dtype, J, tiled)
        with jax.named_scope("attention"):
            scale_H = jnp.abs(self.scale("attention_scale_H"))
            # To a kernel the first tile's: all tiles share it.
            bias_HWJ = self.relative_bias.window_table(scale_H, self.window, J - self.window)
        return Prepared(bias_HWJ, weights, masks)

    def matrices(self, dtype: DTypeLike) -> dict[str, Any]:
        A = self.sizes.attention_size
        matrices = {name: getattr(self, name)[...] for name in QUERIES_KEYS_VALUES}
        if self.reads_states:
            matrices[CROSS_QUERIES] = self.cross_queries_DA[...]
            matrices["output_AD"] = self.output_CD[...][:A]
            matrices["states_output_AD"] = self.output_CD[...][A:]
        else:
            matrices["output_AD"] = self.output_AD[...]
        weights: dict[str, Any] = {name: cast_before(x, dtype) for name, x in matrices.items()}
        return weights | {"feed_forward": self.feed_forward.loop_weights(dtype)}

    def scale(self, name: str) -> jax.Array:
        """Returns the learned scale of each head; ones where queries are scaled already."""
        return getattr(self, name)[...] if self.sizes.qk_norm else jnp.ones(self.sizes.num_heads)

    @property
    def sink(self) -> jax.Array | None:
        """The score of one more key of each head, (H,)."""
        return self.sink_H[...] if self.sinks else None

    # States that tokens attend to.

    @jax.named_scope("states")
    def current_states(
        self, cache: LayerCache, dtype: DTypeLike, prepared: Prepared
    ) -> tuple[BlockStates | None, ...]:
        """Returns the states of each memory that the next block attends to (G = 1), or None."""
        inputs = self._with(cache.memories, prepared.weights["memories"])
        return tuple(memory.states(old, dtype, weights) for memory, old, weights in inputs)

    # Steps that a segment and a decoded token (`decoding.py`) share.

    def _heads(self, x_BTD, matrix_DA: LoopWeights):
        return self._split(product("BTD,DA->BTA", x_BTD, matrix_DA))

    def _split(self, x_BTA):
        return constrain(x_BTA.reshape(*x_BTA.shape[:2], self.sizes.num_heads, -1), "BTHK")

    def scaled(self, q_BTHK: jax.Array) -> jax.Array:
        """Returns queries ready for `attend`: of unit length, or divided by sqrt(K)."""
        return unit_heads(q_BTHK) if self.sizes.qk_norm else scaled_down_heads(q_BTHK)

    @jax.named_scope("attention")
    def project(
        self,
        x_BTD: jax.Array,
        weights: dict[str, Any],
        mask_PD: jax.Array | None = None,
        counts_B: jax.Array | None = None,
    ) -> tuple[LayerTokens, list[jax.Array], jax.Array | None]:
        """Returns the tokens; their queries, keys and values before normalisation; and, if known,
        their queries for states.
        """
        cross = self.reads_states and not self.sequential
        names = [*QUERIES_KEYS_VALUES, *([CROSS_QUERIES] if cross else [])]
        matrices = [weights[name] for name in names]
        projected = project(self.sizes, self.attention_norm, x_BTD, mask_PD, matrices)
        normed_BTD, heads = projected[0], [self._split(y_BTA) for y_BTA in projected[1]]
        heads, cross_BTHK = heads[:3], heads[3] if cross else None
        q_BTHK, k_BTHK, v_BTHK = heads
        k_BTHK = unit_heads(k_BTHK) if self.sizes.qk_norm else k_BTHK
        scale_H = self.scale("attention_scale_H")
        tokens = LayerTokens(normed_BTD, self.scaled(q_BTHK), k_BTHK, v_BTHK, scale_H, counts_B)
        return tokens, heads, cross_BTHK

    def output(
        self,
        x_BTD: jax.Array,
        cross_BTHK: jax.Array | None,
        attended_BTHK: jax.Array,
        read_states: Callable[[jax.Array], jax.Array],
        weights: dict[str, Any],
        mlp_mask_PD: jax.Array | None = None,
    ) -> tuple[jax.Array, Metrics]:
        def read_after_tokens(x_BTD):
            return read_states(self._heads(self.cross_norm(x_BTD), weights[CROSS_QUERIES]))

        attended: list[Attended] = [attended_BTHK]
        if self.sequential:
            attended.append(read_after_tokens)
        elif cross_BTHK is not None:
            with jax.named_scope("states"):
                attended.append(read_states(cross_BTHK))
        matrices = [weights[name] for name in ("output_AD", "states_output_AD")[: len(attended)]]
        x_BTD, state_share = add_attended(self.sizes, x_BTD, attended, matrices)
        metrics = {} if state_share is None else {"state_share": state_share}
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
            (B, T, D), the cache for the next segment, and metrics, such as state_share, the states'
            share of attention.
        """
        bias_HWJ, weights, masks = prepared or self.prepare(x_BTD.dtype, key, x_BTD.shape[1])

        # Queries, keys and values of all blocks at once; each block sees itself and the one before.
        tokens, heads, cross_BTHK = self.project(x_BTD, weights, masks.normed_PD, counts_B)
        tokens = tokens._replace(projected_keys_BTHK=heads[1], window=cache.window)
        with jax.named_scope("attention"):
            blocks = BlockPairs(
                block_pairs(cache.window.keys_BWHK, tokens.keys_BTHK),
                block_pairs(cache.window.values_BWHK, tokens.values_BTHK),
            )
            inputs = heads, cache.window, tokens, blocks, bias_HWJ, masks.weights_HWJ, self.sink
            attended_BTHK, window, tokens = kernels.attend_to_window(
                self.sizes, *inputs, in_cell=self.num_states > 0, remat=self.remat_blocks
            )

        # Memories, in order. Each may add to attention, is updated with the blocks, and may offer
        # states: those from before each block, so that no block sees its own update.
        new_memories, all_states = [], []
        metrics: Metrics = {}
        current_states = current_states or (None,) * len(self.memories)
        for memory, old, prepared_weights, known in self._with(
            cache.memories, weights["memories"], current_states
        ):
            with jax.named_scope("states" if memory.num_states else "memory"):
                result = memory(
                    old, tokens, blocks, attended_BTHK, prepared_weights, known, self.remat_blocks
                )
            attended_BTHK, new, states, reported = checked_segment(
                memory, attended_BTHK, old, result
            )
            new_memories.append(new)
            all_states.append(states)
            metrics = joined_metrics(metrics, memory.name, reported)

        def read_states(q_BTHK):
            k_BGSHK, v_BGSHK = cast(BlockStates, joined_states(all_states) or feedback_states)
            scale_H, keep = self.scale("cross_scale_H"), masks.state_weights_HWS
            inputs = q_BTHK, k_BGSHK, v_BGSHK, scale_H, keep
            return kernels.attend_to_states(self.sizes, *inputs, self.remat_blocks)

        x_BTD, shares = self.output(
            x_BTD, cross_BTHK, attended_BTHK, read_states, weights, masks.mlp_PD
        )
        return x_BTD, LayerCache(window, tuple(new_memories)), metrics | shares

    def flops_per_token(self, feedback_size: int = 0) -> float:
        """Returns the operations of one token's forward pass; a multiply-add counts as two.

        feedback_size: S of the states of another layer.
        """
        S = (self.num_states or feedback_size) if self.reads_states else 0
        attention = 4 * self.sizes.attention_size * (self.window + S)
        memories = sum(memory.flops_per_token(self.window) for memory in self.memories)
        return 2 * matrix_size(self, without=self.memory_names) + attention + memories

    def reach(self) -> float:
        """Returns how many tokens before a block can influence its tokens, at most."""
        return max([self.window, *(memory.reach for memory in self.memories)])


def block_pairs(previous_BWHK: jax.Array, x_BTHK: jax.Array) -> jax.Array:
    """Returns each block with the block before it, (B, G, 2W, H, K)."""
    B, W = previous_BWHK.shape[:2]
    whole = jnp.concatenate([previous_BWHK, x_BTHK], axis=1)
    if x_BTHK.shape[1] == W:
        return whole[:, None]
    blocks = whole.reshape(B, -1, W, *whole.shape[2:])
    return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)
