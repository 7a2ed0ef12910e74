"""The recurrent cell: the horizontal direction of a layer, from one block's states to the next's.

Only this is sequential, so only this is inside the loop over blocks. Axes as in `brt.models`.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, OneOf, configurable
from brt.models.block_recurrent.gates import (
    BIASES,
    BOTH_ATTENTIONS,
    FORMS,
    KINDS,
    MLP,
    ONE_ATTENTION,
    Gate,
)
from brt.models.block_recurrent.memory import (
    BlockPairs,
    BlockStates,
    LayerMemory,
    LayerTokens,
    MemoryResult,
)
from brt.models.caches import select_rows
from brt.models.counts import matrix_size
from brt.models.fast.attention import attend_by_head, heads_first
from brt.models.fast.data_shards import by_data_shard
from brt.models.fast.loop_weights import cast_before, in_loop, product, scan
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.norms import (
    RMSNorm,
    rms_normed,
    scaled_down_heads,
    scaled_unit_heads,
    unit_heads,
)
from brt.models.layers.sizes import Sizes

ARRANGEMENTS = ("dual", "single", "skip")
ORDERS = ("parallel", "sequential")

CellWeights = dict[str, Any]
"""Of `RecurrentCell.prepare`: arrays and `LoopWeights`, named by their shapes, and gates'."""


class StateCache(NamedTuple):
    """The state vectors of a recurrent cell.

    states_BSD: (B, S, D), float32 or wider: a long sum of small changes. Empty: learned.
    """

    states_BSD: jax.Array

    def clear_state(self, empty: "StateCache") -> "StateCache":
        """Returns the learned states that a document begins with."""
        return empty


class DecodingStates(NamedTuple):
    """The state vectors while a block is being filled.

    states_BSD: (B, S, D), fixed inside a block.
    state_keys_BSHK, state_values_BSHK: (B, S, H, K), computed from the states once a block.
    """

    states_BSD: jax.Array
    state_keys_BSHK: jax.Array
    state_values_BSHK: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class RecurrentCell(LayerMemory):
    """State vectors that attend to the tokens of a block and to one another, and are gated.

    Args:
        sizes: of the layer around it.
        window: W of that layer.
        num_states: S.
        gate: "fixed" or "lstm" (section 3.3).
        arrangement: "dual" gates both residuals; "single" has no projection and gate after
            attention, which is the MLP's input; "skip" has no MLP and no gate after it (section
            3.5).
        gate_form: "paper" or "meliad", see `Gate`.
        gate_biases: "small"; "zero" and "one" are ablations (appendix B).
        order: "parallel"; "sequential" has cross-attention after self-attention, with a gate of
            its own, which section 3.1 reports as worse.
        state_ids: add a learned vector to each state before its keys, values and queries are
            computed (section 3.2).

    Source: Block-Recurrent, sections 3.1-3.5.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        num_states: Count = 512,
        gate: Annotated[str, OneOf(KINDS)] = "fixed",
        arrangement: Annotated[str, OneOf(ARRANGEMENTS)] = "skip",
        gate_form: Annotated[str, OneOf(FORMS)] = "paper",
        gate_biases: Annotated[str, OneOf(BIASES)] = "small",
        order: Annotated[str, OneOf(ORDERS)] = "parallel",
        state_ids: bool = True,
    ):
        if order == "sequential" and arrangement == "single":
            raise ValueError(
                'RecurrentCell.order = "sequential" gates each attention after a projection, '
                'and arrangement "single" has none: use "dual" or "skip".'
            )
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        self.num_heads = sizes.num_heads
        self.qk_norm = sizes.qk_norm
        self.num_states = num_states
        self.arrangement = arrangement
        self.order = order
        self.reads_after_tokens = order == "sequential"
        self.initial_states_SD = parameter(rngs, normal(0.1), num_states, D, multiplied=False)
        if state_ids:
            self.state_ids_SD = parameter(rngs, normal(1.0), num_states, D, multiplied=False)
        self.norm = RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        self.cross_queries_DA = parameter(rngs, DENSE, D, A)
        if self.qk_norm:
            self.attention_scale_H = parameter(rngs, jax.nn.initializers.ones, self.num_heads)
            self.cross_scale_H = parameter(rngs, jax.nn.initializers.ones, self.num_heads)

        heads = self.num_heads, A // self.num_heads

        def make_gate(source, *input_sizes):
            squash = arrangement == "single"
            return Gate(rngs, source, input_sizes, D, gate, gate_form, squash, gate_biases)

        if order == "sequential":
            self.self_gate = make_gate(ONE_ATTENTION, *heads)
            self.cross_gate = make_gate(ONE_ATTENTION, *heads)
            self.cross_norm = RMSNorm(rngs, D)
        elif arrangement != "single":
            self.attention_gate = make_gate(BOTH_ATTENTIONS, 2, *heads)
        if arrangement == "dual":
            self.feed_forward_norm = RMSNorm(rngs, D)
            self.hidden_DF = parameter(rngs, DENSE, D, F)
        elif arrangement == "single":
            self.hidden_CF = parameter(rngs, DENSE, 2 * A, F)
        if arrangement != "skip":
            self.feed_forward_gate = make_gate(MLP, F)

    def init_cache(self, rows: int, dtype: DTypeLike) -> StateCache:
        initial_SD = self.initial_states_SD[...]
        return StateCache(jnp.broadcast_to(initial_SD, (rows, *initial_SD.shape)))

    def prepare(self, dtype: DTypeLike) -> CellWeights:
        """Returns the parameters as the loop over blocks uses them, cast to `dtype`.

        Matrices that multiply the same vectors are stacked along X: keys, values and the queries of
        both attentions, in this order.
        """

        def stacked(*matrices):
            stacked_DXA = jnp.stack([matrix[...] for matrix in matrices], axis=1)
            D, X, _ = stacked_DXA.shape
            return cast_before(stacked_DXA.reshape(D, X, self.num_heads, -1), dtype)

        weights: CellWeights = {
            "norm_scale_D": self.norm.scale_D[...],
        }
        if hasattr(self, "state_ids_SD"):
            weights["ids_SD"] = cast_before(self.state_ids_SD[...], dtype)
        if self.qk_norm:
            weights["self_scale_H"] = self.attention_scale_H[...]
            weights["cross_scale_H"] = self.cross_scale_H[...]
        if self.order == "sequential":
            weights["heads_DXHK"] = stacked(self.keys_DA, self.values_DA, self.queries_DA)
            weights["cross_queries_DXHK"] = stacked(self.cross_queries_DA)
            weights["cross_norm_scale_D"] = self.cross_norm.scale_D[...]
            weights["self_gate"] = self.self_gate.weights(dtype)
            weights["cross_gate"] = self.cross_gate.weights(dtype)
        else:
            weights["heads_DXHK"] = stacked(
                self.keys_DA, self.values_DA, self.queries_DA, self.cross_queries_DA
            )
            if self.arrangement != "single":
                weights["attention_gate"] = self.attention_gate.weights(dtype)
        if self.arrangement == "dual":
            weights["feed_forward_norm_scale_D"] = self.feed_forward_norm.scale_D[...]
            weights["hidden_DF"] = cast_before(self.hidden_DF[...], dtype)
        elif self.arrangement == "single":
            hidden_CF = self.hidden_CF[...]
            hidden_XHKF = hidden_CF.reshape(2, self.num_heads, -1, hidden_CF.shape[1])
            weights["hidden_XHKF"] = cast_before(hidden_XHKF, dtype)
        if self.arrangement != "skip":
            weights["feed_forward_gate"] = self.feed_forward_gate.weights(dtype)
        return weights

    def _identified(self, scale_D, weights, states_BSD, dtype):
        normed_BSD = rms_normed(states_BSD, in_loop(scale_D)).astype(dtype)
        return normed_BSD + in_loop(weights["ids_SD"]) if "ids_SD" in weights else normed_BSD

    def keys_values(
        self, states_BSD: jax.Array, dtype: DTypeLike, weights: CellWeights
    ) -> tuple[jax.Array, jax.Array]:
        """Returns keys and values of states, each (B, H, S, K) of `dtype`."""
        x_BSD = self._identified(weights["norm_scale_D"], weights, states_BSD, dtype)
        k_BHSK, v_BHSK = _heads(x_BSD, in_loop(weights["heads_DXHK"])[:, :2])
        return self._keys(k_BHSK), v_BHSK

    def keys_values_queries(
        self, states_BSD: jax.Array, dtype: DTypeLike, weights: CellWeights
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """Returns `keys_values`, and the queries of the attentions that start from these states.

        All come from one product, so that under a mesh their gradients are summed over the model
        axis once.
        """
        x_BSD = self._identified(weights["norm_scale_D"], weights, states_BSD, dtype)
        k_BHSK, v_BHSK, *queries = _heads(x_BSD, weights["heads_DXHK"])
        return self._keys(k_BHSK), v_BHSK, self._scaled(queries, weights)

    def _keys(self, k_BHSK):
        return unit_heads(k_BHSK) if self.qk_norm else k_BHSK

    def _scaled(self, queries, weights, names=("self_scale_H", "cross_scale_H")):
        """Returns normalised queries times the learned scales; self-attention comes first."""
        if not self.qk_norm:
            return tuple(map(scaled_down_heads, queries))
        return tuple(
            scaled_unit_heads(q_BHSK, in_loop(weights[name]))
            for q_BHSK, name in zip(queries, names, strict=False)
        )

    def step(
        self,
        states_BSD: jax.Array,
        state_k_BHSK: jax.Array,
        state_v_BHSK: jax.Array,
        token_k_BHJK: jax.Array,
        token_v_BHJK: jax.Array,
        weights: CellWeights,
        queries: tuple[jax.Array, ...] | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Updates the states with one block: they attend to themselves and to the tokens.

        Args:
            states_BSD: (B, S, D), the states before this block.
            state_k_BHSK, state_v_BHSK: their `keys_values`, (B, H, S, K).
            token_k_BHJK, token_v_BHJK: keys and values of the previous block and this one, (B, H,
                2W, K), all visible.
            weights: `prepare(token_k_BHJK.dtype)`.
            queries: of the states, from `keys_values_queries`; None: computed here.

        Returns:
            The next states, (B, S, D), and the mean of keep for each batch element, (B,).
        """
        dtype = token_k_BHJK.dtype
        if queries is None:
            x_BSD = self._identified(weights["norm_scale_D"], weights, states_BSD, dtype)
            heads = _heads(x_BSD, in_loop(weights["heads_DXHK"])[:, 2:])
            queries = self._scaled(heads, weights)
        state_kv, token_kv = (state_k_BHSK, state_v_BHSK), (token_k_BHJK, token_v_BHJK)
        kept = []

        if self.order == "sequential":
            h_BHSK = attend_by_head(queries[0], *state_kv)
            states_BSD, keep = self.self_gate(states_BSD, h_BHSK, weights["self_gate"])
            kept.append(keep)
            x_BSD = self._identified(weights["cross_norm_scale_D"], weights, states_BSD, dtype)
            heads = _heads(x_BSD, weights["cross_queries_DXHK"])
            (q_BHSK,) = self._scaled(heads, weights, ["cross_scale_H"])
            h_BHSK = attend_by_head(q_BHSK, *token_kv)
            states_BSD, keep = self.cross_gate(states_BSD, h_BHSK, weights["cross_gate"])
            kept.append(keep)
        else:
            h_XBHSK = attend_by_head(queries[0], *state_kv), attend_by_head(queries[1], *token_kv)
            if self.arrangement == "single":
                h_BSF = jax.nn.relu(product("XBHSK,XHKF->BSF", h_XBHSK, weights["hidden_XHKF"]))
            else:
                gate_weights = weights["attention_gate"]
                states_BSD, keep = self.attention_gate(states_BSD, h_XBHSK, gate_weights)
                kept.append(keep)
        if self.arrangement == "dual":
            scale_D = in_loop(weights["feed_forward_norm_scale_D"])
            x_BSD = rms_normed(states_BSD, scale_D).astype(dtype)
            h_BSF = jax.nn.relu(product("BSD,DF->BSF", x_BSD, weights["hidden_DF"]))
        if self.arrangement != "skip":
            gate_weights = weights["feed_forward_gate"]
            states_BSD, keep = self.feed_forward_gate(states_BSD, h_BSF, gate_weights)
            kept.append(keep)
        return states_BSD, sum(_mean_of_rows(keep, states_BSD) for keep in kept) / len(kept)

    # The interface of a layer's memory.

    def states(self, cache: StateCache, dtype: DTypeLike, weights: CellWeights) -> BlockStates:
        k_BHSK, v_BHSK = self.keys_values(cache.states_BSD, dtype, weights)
        return BlockStates(heads_first(k_BHSK)[:, None], heads_first(v_BHSK)[:, None])

    def __call__(
        self,
        cache: StateCache,
        tokens: LayerTokens | None,
        blocks: BlockPairs,
        attended_BTHK: Any,
        weights: CellWeights,
        states: BlockStates | None = None,
        remat: bool = False,
    ) -> MemoryResult:
        """Runs `step` on each block of a segment; the tokens' self-attention stays as it is.

        Metrics: kept, the mean share of the states that the gates keep, and state_norm, their root
        mean square after the segment.
        """
        if states is None:
            inputs = cache.states_BSD, blocks
            (states_BSD, states, kept_B), _ = by_data_shard(self._scan(remat), weights, inputs)
        else:  # one block whose states the caller has computed: block feedback
            step = jax.checkpoint(self.step) if remat else self.step
            state_k, state_v, token_k, token_v = (heads_first(x[:, 0]) for x in (*states, *blocks))
            states_BSD, kept_B = step(cache.states_BSD, state_k, state_v, token_k, token_v, weights)
        state_norm = jnp.sqrt(jnp.mean(jnp.square(states_BSD)))
        metrics = {"kept": jnp.mean(kept_B), "state_norm": state_norm}
        return MemoryResult(attended_BTHK, StateCache(states_BSD), states, metrics)

    def _scan(self, remat):
        """Returns a function that scans over the blocks of a segment."""

        def block(weights, states_BSD, tokens):
            dtype = tokens[0].dtype
            k_BHSK, v_BHSK, queries = self.keys_values_queries(states_BSD, dtype, weights)
            states_BSD, kept_B = self.step(states_BSD, k_BHSK, v_BHSK, *tokens, weights, queries)
            return states_BSD, (k_BHSK, v_BHSK, kept_B)

        def scan_blocks(weights, inputs):
            states_BSD, blocks = inputs
            # Transposed here, once for both passes of all blocks.
            by_block = tuple(heads_first(jnp.moveaxis(x, 1, 0)) for x in blocks)
            states_BSD, (*seen, kept_GB) = scan(block, weights, states_BSD, by_block, remat)
            states = BlockStates(*(jnp.moveaxis(heads_first(x), 0, 1) for x in seen))
            return (states_BSD, states, jnp.mean(kept_GB, axis=0)), ()

        return scan_blocks

    def begin_decoding(self, cache: StateCache, dtype: DTypeLike) -> DecodingStates:
        keys_values = self.keys_values(cache.states_BSD, dtype, self.prepare(dtype))
        return DecodingStates(cache.states_BSD, *map(heads_first, keys_values))

    def end_decoding(self, cache: DecodingStates) -> StateCache:
        return StateCache(cache.states_BSD)

    def decoding_states(self, cache: DecodingStates, dtype: DTypeLike) -> BlockStates:
        return BlockStates(cache.state_keys_BSHK[:, None], cache.state_values_BSHK[:, None])

    def update_after_block(
        self, cache: DecodingStates, blocks: BlockPairs, full_B: jax.Array
    ) -> DecodingStates:
        dtype = blocks.keys_BGJHK.dtype
        states = self.decoding_states(cache, dtype)
        after = self(self.end_decoding(cache), None, blocks, None, self.prepare(dtype), states)
        return select_rows(full_B, self.begin_decoding(after.cache, dtype), cache)

    def flops_per_token(self, window: int) -> float:
        S, A = self.num_states, self.queries_DA.shape[1]
        block = 2 * S * matrix_size(self) + 4 * A * S * (S + 2 * window)
        return block / window


def _heads(x_BSD, matrices_DXHK):
    """Returns the products with matrices that stand side by side, (B, H, S, K) each."""
    x_XBHSK = product("BSD,DXHK->XBHSK", x_BSD, matrices_DXHK)
    return [x_BHSK[0] for x_BHSK in jnp.split(x_XBHSK, len(x_XBHSK))]


def _mean_of_rows(keep, states_BSD):
    """Returns the mean of each batch element, (B,), of (D,) or (B, S, D)."""
    return jnp.broadcast_to(jnp.mean(keep, axis=(-2, -1)[-keep.ndim :]), states_BSD.shape[:1])
