"""The recurrent cell: the horizontal direction of a layer, from one block's states to the next's.

Only this is sequential, so only this is inside the loop over blocks.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, OneOf, configurable
from brt.models.block_recurrent import gates
from brt.models.block_recurrent.memory import (
    BlockPairs,
    BlockStates,
    LayerMemory,
    LayerTokens,
    MemoryResult,
)
from brt.models.caches import select_rows
from brt.models.counts import matrix_size
from brt.models.fast.attention import heads_first
from brt.models.fast.data_shards import by_data_shard
from brt.models.fast.kernel_attention import attend_by_head, has_cell_kernel, run_cell
from brt.models.fast.loop_weights import cast_before, in_loop, product, scan
from brt.models.layers import norms
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.sizes import Sizes
from brt.models.model import Metrics

ARRANGEMENTS = ("dual", "single", "skip")
ORDERS = ("parallel", "sequential")

CellWeights = dict[str, Any]
"""Of `RecurrentCell.prepare`: arrays and `LoopWeights`, named by their shapes, and gates'."""
KeysValues = tuple[jax.Array, ...]
"""Keys and values with heads first, (B, H, S, K) of states or (B, H, 2W, K) of tokens."""


class StateCache(NamedTuple):
    """The state vectors of a recurrent cell.

    states_BSD: (B, S, D), float32 or float64: a long sum of small changes. Empty: learned.
    """

    states_BSD: jax.Array

    def clear_state(self, empty: "StateCache") -> "StateCache":
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
        num_states: S.
        gate: "fixed" or "lstm" (section 3.3).
        arrangement: "dual" gates both residuals; "single" has no projection and gate after
            attention, which is the MLP's input; "skip" has no MLP and no gate after it (section
            3.5).
        gate_form: "paper" or "meliad", see `Gate`.
        gate_biases: "small"; "zero" and "one" are ablations (appendix B).
        order: "parallel"; "sequential" has cross-attention, with a gate, after self-attention
            (worse, by section 3.1).
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
        gate: Annotated[str, OneOf(gates.KINDS)] = "fixed",
        arrangement: Annotated[str, OneOf(ARRANGEMENTS)] = "skip",
        gate_form: Annotated[str, OneOf(gates.FORMS)] = "paper",
        gate_biases: Annotated[str, OneOf(gates.BIASES)] = "small",
        order: Annotated[str, OneOf(ORDERS)] = "parallel",
        state_ids: bool = True,
    ):
        if order == "sequential" and arrangement == "single":
            raise ValueError(
                'RecurrentCell.order = "sequential" gates each attention after a projection, '
                'and arrangement "single" has none: use "dual" or "skip".'
            )
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        heads = sizes.num_heads, sizes.head_size
        self.sizes, self.num_states = sizes, num_states
        self.arrangement, self.order = arrangement, order
        self.reads_after_tokens = order == "sequential"
        self.initial_states_SD = parameter(rngs, normal(0.1), num_states, D, multiplied=False)
        if state_ids:
            self.state_ids_SD = parameter(rngs, normal(1.0), num_states, D, multiplied=False)
        self.norm = norms.RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        self.cross_queries_DA = parameter(rngs, DENSE, D, A)
        if sizes.qk_norm:
            ones = jax.nn.initializers.ones
            self.attention_scale_H = parameter(rngs, ones, sizes.num_heads)
            self.cross_scale_H = parameter(rngs, ones, sizes.num_heads)

        def make_gate(source, *input_sizes):
            squash = arrangement == "single"
            return gates.Gate(rngs, source, input_sizes, D, gate, gate_form, squash, gate_biases)

        if order == "sequential":
            self.self_gate = make_gate(gates.ONE_ATTENTION, *heads)
            self.cross_gate = make_gate(gates.ONE_ATTENTION, *heads)
            self.cross_norm = norms.RMSNorm(rngs, D)
        elif arrangement != "single":
            self.attention_gate = make_gate(gates.BOTH_ATTENTIONS, 2, *heads)
        if arrangement == "dual":
            self.feed_forward_norm = norms.RMSNorm(rngs, D)
            self.hidden_DF = parameter(rngs, DENSE, D, F)
        elif arrangement == "single":
            self.hidden_CF = parameter(rngs, DENSE, 2 * A, F)
        if arrangement != "skip":
            self.feed_forward_gate = make_gate(gates.MLP, F)

    def init_cache(self, rows: int, dtype: DTypeLike) -> StateCache:
        initial_SD = self.initial_states_SD[...]
        return StateCache(jnp.broadcast_to(initial_SD, (rows, *initial_SD.shape)))

    def prepare(self, dtype: DTypeLike) -> CellWeights:
        """Returns the parameters for the loop over blocks, matrices cast to `dtype`.

        Matrices that multiply the same vectors are stacked along X (keys, values, queries of both
        attentions), so that under a mesh their gradients are summed over the model axis once.
        """
        heads = self.sizes.num_heads, self.sizes.head_size

        def stacked(*matrices):
            stacked_XDA = jnp.stack([matrix[...] for matrix in matrices])
            return cast_before(stacked_XDA.reshape(*stacked_XDA.shape[:2], *heads), dtype)

        matrices = [self.keys_DA, self.values_DA, self.queries_DA]
        weights: CellWeights = {"norm_scale_D": self.norm.scale_D[...]}
        if self.order == "sequential":
            weights["cross_queries_XDHK"] = stacked(self.cross_queries_DA)
            weights["cross_norm_scale_D"] = self.cross_norm.scale_D[...]
        else:
            matrices.append(self.cross_queries_DA)
        weights["heads_XDHK"] = stacked(*matrices)
        if hasattr(self, "state_ids_SD"):
            weights["ids_SD"] = cast_before(self.state_ids_SD[...], dtype)
        if self.sizes.qk_norm:
            weights["self_scale_H"] = self.attention_scale_H[...]
            weights["cross_scale_H"] = self.cross_scale_H[...]
        if self.arrangement == "dual":
            weights["feed_forward_norm_scale_D"] = self.feed_forward_norm.scale_D[...]
            weights["hidden_DF"] = cast_before(self.hidden_DF[...], dtype)
        elif self.arrangement == "single":
            hidden_XHKF = self.hidden_CF[...].reshape(2, *heads, -1)
            weights["hidden_XHKF"] = cast_before(hidden_XHKF, dtype)
        for name in ("self_gate", "cross_gate", "attention_gate", "feed_forward_gate"):
            if gate := getattr(self, name, None):
                weights[name] = gate.weights(dtype)
        return weights

    # One block.

    def keys_values(
        self, states_BSD: jax.Array, dtype: DTypeLike, weights: CellWeights
    ) -> KeysValues:
        """Returns keys and values of states, each (B, H, S, K) of `dtype`."""
        matrices = in_loop(weights["heads_XDHK"])[:2]
        k_BHSK, v_BHSK = _heads(states_BSD, weights["norm_scale_D"], weights, matrices, dtype)
        return self._keys(k_BHSK), v_BHSK

    def _keys(self, k_BHSK):
        return norms.unit_heads(k_BHSK) if self.sizes.qk_norm else k_BHSK

    def _queries(self, q_BHSK, scale_H):
        if not self.sizes.qk_norm:
            return norms.scaled_down_heads(q_BHSK)
        return norms.scaled_unit_heads(q_BHSK, in_loop(scale_H))

    def step(
        self,
        weights: CellWeights,
        states_BSD: jax.Array,
        tokens: KeysValues,
        state_keys_values: KeysValues | None = None,
    ) -> tuple[jax.Array, tuple[KeysValues, jax.Array]]:
        """Updates the states with one block: they attend to themselves and to the tokens.

        Args:
            weights: `prepare(dtype)` with the type of the tokens' keys.
            states_BSD: (B, S, D), the states before this block.
            tokens: of the previous block and this one, all visible.
            state_keys_values: `keys_values` of the states; None: computed here.

        Returns:
            The next states, (B, S, D); the states' keys and values, and the mean of keep.
        """
        dtype, norm_scale_D = tokens[0].dtype, weights["norm_scale_D"]
        heads = weights["heads_XDHK"]
        if state_keys_values is None:
            k_BHSK, v_BHSK, *queries = _heads(states_BSD, norm_scale_D, weights, heads, dtype)
            state_keys_values = self._keys(k_BHSK), v_BHSK
        else:
            queries = _heads(states_BSD, norm_scale_D, weights, in_loop(heads)[2:], dtype)
        kept = []

        def gated(gate, states_BSD, h, gate_weights):
            states_BSD, keep = gate(states_BSD, h, gate_weights)
            kept.append(jnp.mean(keep))
            return states_BSD

        # The states attend to themselves, then to the tokens, in sequence or in parallel.
        q_BHSK = self._queries(queries[0], weights.get("self_scale_H"))
        to_states_BHSK = attend_by_head(self.sizes, q_BHSK, *state_keys_values)
        if self.order == "sequential":
            states_BSD = gated(self.self_gate, states_BSD, to_states_BHSK, weights["self_gate"])
            scale_D, cross = weights["cross_norm_scale_D"], weights["cross_queries_XDHK"]
            queries = _heads(states_BSD, scale_D, weights, cross, dtype)
        q_BHSK = self._queries(queries[-1], weights.get("cross_scale_H"))
        to_tokens_BHSK = attend_by_head(self.sizes, q_BHSK, *tokens)
        h_XBHSK = to_states_BHSK, to_tokens_BHSK
        if self.order == "sequential":
            states_BSD = gated(self.cross_gate, states_BSD, to_tokens_BHSK, weights["cross_gate"])
        elif self.arrangement != "single":
            gate_weights = weights["attention_gate"]
            states_BSD = gated(self.attention_gate, states_BSD, h_XBHSK, gate_weights)

        # The MLP, whose output matrix is that of its gate.
        if self.arrangement != "skip":
            if self.arrangement == "single":
                h_BSF = product("XBHSK,XHKF->BSF", h_XBHSK, weights["hidden_XHKF"])
            else:
                scale_D = in_loop(weights["feed_forward_norm_scale_D"])
                x_BSD = norms.rms_normed(states_BSD, scale_D).astype(dtype)
                h_BSF = product("BSD,DF->BSF", x_BSD, weights["hidden_DF"])
            h_BSF, gate_weights = jax.nn.relu(h_BSF), weights["feed_forward_gate"]
            states_BSD = gated(self.feed_forward_gate, states_BSD, h_BSF, gate_weights)
        return states_BSD, (state_keys_values, jnp.mean(jnp.stack(kept)))

    # The interface of a layer's memory.

    def states(self, cache: StateCache, dtype: DTypeLike, weights: CellWeights) -> BlockStates:
        keys_values = self.keys_values(cache.states_BSD, dtype, weights)
        return BlockStates(*(heads_first(x_BHSK)[:, None] for x_BHSK in keys_values))

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

        Metrics: kept, the mean share of the states that the gates keep, and state_norm.
        """

        def scan_blocks(weights, inputs):
            states_BSD, blocks = inputs
            # Transposed here, once for both passes of all blocks.
            by_block = tuple(heads_first(jnp.moveaxis(x_BGJHK, 1, 0)) for x_BGJHK in blocks)
            states_BSD, (seen, kept_G) = scan(self.step, weights, states_BSD, by_block, remat)
            seen = BlockStates(*(jnp.moveaxis(heads_first(x_GBHSK), 0, 1) for x_GBHSK in seen))
            return (states_BSD, seen), jnp.mean(kept_G)

        if tokens and self._has_kernel(blocks, remat):
            cell = self.sizes, self.attention_gate.update, weights
            states_BSD, computed, kept = run_cell(*cell, cache.states_BSD, tokens)
            states = states or computed  # those that the caller has computed are the same
        elif states is None:
            inputs = cache.states_BSD, blocks
            (states_BSD, states), kept = by_data_shard(scan_blocks, weights, inputs)
        else:  # one block whose states the caller has computed: block feedback
            step = jax.checkpoint(self.step) if remat else self.step
            pairs = (tuple(heads_first(x[:, 0]) for x in pair) for pair in (blocks, states))
            states_BSD, (_, kept) = step(weights, cache.states_BSD, *pairs)
        metrics = {"kept": kept, "state_norm": jnp.sqrt(jnp.mean(jnp.square(states_BSD)))}
        return MemoryResult(attended_BTHK, StateCache(states_BSD), states, metrics)

    def update(
        self, cache: StateCache, k_BWHK: jax.Array, v_BWHK: jax.Array, weights: CellWeights
    ) -> tuple[StateCache, Metrics]:
        states = self.states(cache, k_BWHK.dtype, weights)
        blocks = BlockPairs(k_BWHK[:, None], v_BWHK[:, None])  # of these tokens alone
        _, cache, _, metrics = self(cache, None, blocks, None, weights, states)
        return cache, metrics

    def _has_kernel(self, blocks, remat):
        misfit = "it is computed again in the backward pass (remat)" if remat else None
        if self.order == "sequential" or self.arrangement != "skip":
            misfit = f'its arrangement is "{self.arrangement}", its order "{self.order}"'
        W, dtype = blocks.keys_BGJHK.shape[2] // 2, blocks.keys_BGJHK.dtype
        return has_cell_kernel(self.sizes, self.num_states, W, dtype, misfit)

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


def _heads(states_BSD, norm_scale_D, weights, matrices_XDHK, dtype):
    """Returns the products of normalised states, with ids, with each matrix, (B, H, S, K)."""
    x_BSD = norms.rms_normed(states_BSD, in_loop(norm_scale_D)).astype(dtype)
    if "ids_SD" in weights:
        x_BSD = x_BSD + in_loop(weights["ids_SD"])
    x_XBHSK = product("BSD,XDHK->XBHSK", x_BSD, matrices_XDHK)
    return [x_BHSK[0] for x_BHSK in jnp.split(x_XBHSK, len(x_XBHSK))]
