"""The recurrent cell: the horizontal direction of a layer, from one block's states to the next's.

Only this is sequential, so only this stands inside the loop over blocks. The tokens' side
(their queries, keys, values, their attention to one another and to the states) is computed
for all blocks at once in `brt/models/layer.py`. Letters as in `brt.models`.
"""

from typing import Any, NamedTuple

import gin
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import check_choice
from brt.models.counts import matrix_size
from brt.models.layers.attention import attend
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.norms import RMSNorm, rms_normed, unit_heads
from brt.models.layers.sizes import Sizes
from brt.models.loop_weights import cast_before, in_loop
from brt.models.memories.gates import Gate
from brt.models.memories.memory import BlockPairs, BlockStates, LayerMemory
from brt.models.row_shards import by_row_shard

ARRANGEMENTS = ("dual", "single", "skip")
ORDERS = ("parallel", "sequential")

CellWeights = dict[str, Any]
"""Of `RecurrentCell.loop_weights`: arrays and `LoopWeights`, named by their shapes, and gates'."""


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


@gin.configurable(denylist=["rngs", "sizes", "window"])
class RecurrentCell(LayerMemory):
    """State vectors that read the tokens of a block, and one another, through gates.

    Args:
        sizes: D, H, K, F of the layer around it.
        window: W of that layer; the number of states does not depend on it.
        num_states: S.
        gate: "fixed" or "lstm" (section 3.3).
        arrangement: "dual" gates both residuals; "single" drops the projection and its
            gate, the attention feeds the network directly; "skip" drops the network and
            its gate (section 3.5).
        gate_form: "paper" or "meliad", see `Gate`.
        gate_biases: "small", or "zero" or "one" to see what the paper warns of (appendix B).
        order: "parallel" or "sequential": cross-attention after self-attention, with a
            gate of its own, the variant section 3.1 reports as worse.

    Raises:
        ValueError: an unknown choice, no states, or a sequential order without a projection.

    Source: Block-Recurrent, sections 3.1-3.5.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        num_states: int = 512,
        gate: str = "fixed",
        arrangement: str = "skip",
        gate_form: str = "paper",
        gate_biases: str = "small",
        order: str = "parallel",
    ):
        check_choice("RecurrentCell.arrangement", arrangement, ARRANGEMENTS)
        check_choice("RecurrentCell.order", order, ORDERS)
        if num_states < 1:
            raise ValueError(f"RecurrentCell.num_states = {num_states} must be at least 1.")
        if order == "sequential" and arrangement == "single":
            raise ValueError(
                'RecurrentCell.order = "sequential" gates each attention after a projection, '
                'and arrangement "single" has none: use "dual" or "skip".'
            )
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        self.num_heads = sizes.num_heads
        self.num_states = num_states
        self.arrangement = arrangement
        self.order = order
        self.reads_after_tokens = order == "sequential"
        self.initial_states_SD = parameter(rngs, normal(0.1), num_states, D, multiplied=False)
        self.state_ids_SD = parameter(rngs, normal(1.0), num_states, D, multiplied=False)
        self.norm = RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        self.cross_queries_DA = parameter(rngs, DENSE, D, A)
        self.attention_scale_H = parameter(rngs, jax.nn.initializers.ones, self.num_heads)
        self.cross_scale_H = parameter(rngs, jax.nn.initializers.ones, self.num_heads)

        def make_gate(letter, size, parts=1):
            return Gate(
                rngs,
                letter=letter,
                input_size=size,
                width=D,
                kind=gate,
                form=gate_form,
                squash=arrangement == "single",
                biases=gate_biases,
                parts=parts,
            )

        if order == "sequential":
            self.self_gate = make_gate("A", A)
            self.cross_gate = make_gate("A", A)
            self.cross_norm = RMSNorm(rngs, D)
        elif arrangement != "single":
            self.attention_gate = make_gate("C", 2 * A, parts=2)
        if arrangement == "dual":
            self.feed_forward_norm = RMSNorm(rngs, D)
            self.hidden_DF = parameter(rngs, DENSE, D, F)
        elif arrangement == "single":
            self.hidden_CF = parameter(rngs, DENSE, 2 * A, F)
        if arrangement != "skip":
            self.feed_forward_gate = make_gate("F", F)

    def init_cache(self, rows: int, dtype: DTypeLike) -> StateCache:
        """Returns the learned states a document begins with, (B, S, D) float32."""
        initial_SD = self.initial_states_SD[...]
        return StateCache(jnp.broadcast_to(initial_SD, (rows, *initial_SD.shape)))

    def loop_weights(self, dtype: DTypeLike) -> CellWeights:
        """Returns the parameters as the loop over blocks uses them, computed once before it.

        They are cast, and those that multiply the same vectors stand side by side: for keys,
        values and the queries of both attentions, in this order; the matrices of a gate. Names say
        shapes; X counts what stands side by side.

        dtype: of the activations.
        """

        def beside(*matrices):
            return cast_before(jnp.stack([matrix[...] for matrix in matrices], axis=1), dtype)

        found: CellWeights = {
            "ids_SD": cast_before(self.state_ids_SD[...], dtype),
            "norm_scale_D": self.norm.scale_D[...],
            "self_scale_H": self.attention_scale_H[...],
            "cross_scale_H": self.cross_scale_H[...],
        }
        if self.order == "sequential":
            found["heads_DXA"] = beside(self.keys_DA, self.values_DA, self.queries_DA)
            found["cross_queries_DXA"] = beside(self.cross_queries_DA)
            found["cross_norm_scale_D"] = self.cross_norm.scale_D[...]
            found["self_gate"] = self.self_gate.weights(dtype)
            found["cross_gate"] = self.cross_gate.weights(dtype)
        else:
            found["heads_DXA"] = beside(
                self.keys_DA, self.values_DA, self.queries_DA, self.cross_queries_DA
            )
            if self.arrangement != "single":
                found["attention_gate"] = self.attention_gate.weights(dtype)
        if self.arrangement == "dual":
            found["feed_forward_norm_scale_D"] = self.feed_forward_norm.scale_D[...]
            found["hidden_DF"] = cast_before(self.hidden_DF[...], dtype)
        elif self.arrangement == "single":
            hidden_CF = self.hidden_CF[...]
            hidden_XAF = hidden_CF.reshape(2, -1, hidden_CF.shape[1])
            found["hidden_XAF"] = cast_before(hidden_XAF, dtype)
        if self.arrangement != "skip":
            found["feed_forward_gate"] = self.feed_forward_gate.weights(dtype)
        return found

    def _identified(self, scale_D, weights, states_BSD, dtype):
        return rms_normed(states_BSD, scale_D).astype(dtype) + in_loop(weights["ids_SD"])

    def _heads(self, x_BSD, matrices):
        """Returns the products with matrices that stand side by side, (B, S, H, K) each."""
        x_BSXA = jnp.einsum("BSD,DXA->BSXA", x_BSD, matrices)
        x_BSXHK = x_BSXA.reshape(*x_BSXA.shape[:3], self.num_heads, -1)
        return [x_BSXHK[:, :, i] for i in range(x_BSXHK.shape[2])]

    def keys_values(
        self, states_BSD: jax.Array, dtype: DTypeLike, weights: CellWeights | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns keys (unit length) and values of states, each (B, S, H, K) of `dtype`.

        weights: `loop_weights(dtype)`, if the caller has them already.
        """
        weights = self.loop_weights(dtype) if weights is None else weights
        x_BSD = self._identified(weights["norm_scale_D"], weights, states_BSD, dtype)
        k_BSHK, v_BSHK = self._heads(x_BSD, in_loop(weights["heads_DXA"])[:, :2])
        return unit_heads(k_BSHK), v_BSHK

    def keys_values_queries(
        self, states_BSD: jax.Array, dtype: DTypeLike, weights: CellWeights
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """Returns `keys_values`, and the queries of the attentions that begin with these states.

        All are parts of one product: under a mesh their gradients are one sum over the model axis.
        """
        x_BSD = self._identified(weights["norm_scale_D"], weights, states_BSD, dtype)
        k_BSHK, v_BSHK, *queries = self._heads(x_BSD, in_loop(weights["heads_DXA"]))
        return unit_heads(k_BSHK), v_BSHK, tuple(map(unit_heads, queries))

    def step(
        self,
        states_BSD: jax.Array,
        state_k_BSHK: jax.Array,
        state_v_BSHK: jax.Array,
        token_k_BJHK: jax.Array,
        token_v_BJHK: jax.Array,
        weights: CellWeights | None = None,
        queries: tuple[jax.Array, ...] | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Takes in one block: the states read themselves and the tokens, and are updated.

        Args:
            states_BSD: (B, S, D), the states before this block.
            state_k_BSHK, state_v_BSHK: their `keys_values`, (B, S, H, K).
            token_k_BJHK, token_v_BJHK: the tokens' own keys and values, of the previous
                block and this one, (B, 2W, H, K). No mask: all 2W are seen.
            weights: `loop_weights(token_k_BJHK.dtype)`, if the caller has them already.
            queries: of the states, from `keys_values_queries`, likewise.

        Returns:
            The next states (B, S, D), and the mean share of each row's old states that the gates
            kept, (B,).
        """
        dtype = token_k_BJHK.dtype
        weights = self.loop_weights(dtype) if weights is None else weights
        if queries is None:
            x_BSD = self._identified(weights["norm_scale_D"], weights, states_BSD, dtype)
            found = self._heads(x_BSD, in_loop(weights["heads_DXA"])[:, 2:])
            queries = tuple(map(unit_heads, found))
        kept = []

        def flat(y_BSHK):
            return y_BSHK.reshape(*y_BSHK.shape[:2], -1)

        def read_states(q_BSHK):
            return flat(attend(q_BSHK, state_k_BSHK, state_v_BSHK, weights["self_scale_H"]))

        def read_tokens(q_BSHK):
            return flat(attend(q_BSHK, token_k_BJHK, token_v_BJHK, weights["cross_scale_H"]))

        def gated(name, states_BSD, h_BSX):
            states_BSD, keep = getattr(self, name)(states_BSD, h_BSX, weights[name])
            # (D,) of a fixed gate, (B, S, D) of others.
            keep = jnp.mean(keep, axis=tuple(range(keep.ndim))[-2:])
            kept.append(jnp.broadcast_to(keep, states_BSD.shape[:1]))
            return states_BSD

        if self.order == "sequential":
            states_BSD = gated("self_gate", states_BSD, read_states(queries[0]))
            x_BSD = self._identified(weights["cross_norm_scale_D"], weights, states_BSD, dtype)
            (q_BSHK,) = self._heads(x_BSD, in_loop(weights["cross_queries_DXA"]))
            states_BSD = gated("cross_gate", states_BSD, read_tokens(unit_heads(q_BSHK)))
        else:
            h_BSXA = jnp.stack([read_states(queries[0]), read_tokens(queries[1])], axis=2)
            if self.arrangement == "single":
                hidden_XAF = in_loop(weights["hidden_XAF"])
                h_BSF = jax.nn.relu(jnp.einsum("BSXA,XAF->BSF", h_BSXA, hidden_XAF))
                return gated("feed_forward_gate", states_BSD, h_BSF), kept[0]
            states_BSD = gated("attention_gate", states_BSD, h_BSXA)
        if self.arrangement == "dual":
            x_BSD = rms_normed(states_BSD, weights["feed_forward_norm_scale_D"]).astype(dtype)
            h_BSF = jax.nn.relu(x_BSD @ in_loop(weights["hidden_DF"]))
            states_BSD = gated("feed_forward_gate", states_BSD, h_BSF)
        return states_BSD, sum(kept) / len(kept)

    # The interface of a layer's memory.

    def states(
        self, cache: StateCache, dtype: DTypeLike, weights: CellWeights | None = None
    ) -> BlockStates:
        k_BSHK, v_BSHK = self.keys_values(cache.states_BSD, dtype, weights)
        return BlockStates(k_BSHK[:, None], v_BSHK[:, None])

    def take_in(
        self,
        cache: StateCache,
        blocks: BlockPairs,
        known: BlockStates | None = None,
        remat: bool = False,
        weights: CellWeights | None = None,
    ) -> tuple[StateCache, BlockStates, dict[str, jax.Array]]:
        """Folds `step` over the blocks of a segment; as `LayerMemory.take_in`.

        The monitors are kept, the mean share of the states that the gates keep, and state_norm,
        their root mean square after the segment.
        """
        dtype = blocks.keys_BGJHK.dtype
        weights = self.loop_weights(dtype) if weights is None else weights
        step = jax.checkpoint(self.step) if remat else self.step
        if known is not None:
            one = (x[:, 0] for x in (*known, *blocks))
            states_BSD, kept_B = step(cache.states_BSD, *one, weights)
            seen = known
            kept = jnp.mean(kept_B)
        else:

            def fold(weights, rows):
                def block(states_BSD, tokens):
                    k_BSHK, v_BSHK, queries = self.keys_values_queries(states_BSD, dtype, weights)
                    states_BSD, kept_B = step(states_BSD, k_BSHK, v_BSHK, *tokens, weights, queries)
                    return states_BSD, (BlockStates(k_BSHK, v_BSHK), kept_B)

                states_BSD, blocks = rows
                by_block = tuple(jnp.moveaxis(x, 1, 0) for x in blocks)
                states_BSD, (seen, kept_GB) = jax.lax.scan(block, states_BSD, by_block)
                seen = BlockStates(*(jnp.moveaxis(x, 0, 1) for x in seen))
                return (states_BSD, seen, jnp.mean(kept_GB, axis=0)), ()

            rows = cache.states_BSD, blocks
            (states_BSD, seen, kept_B), _ = by_row_shard(fold, weights, rows)
            kept = jnp.mean(kept_B)
        state_norm = jnp.sqrt(jnp.mean(jnp.square(states_BSD)))
        return StateCache(states_BSD), seen, {"kept": kept, "state_norm": state_norm}

    def begin_decoding(self, cache: StateCache, dtype: DTypeLike) -> DecodingStates:
        return DecodingStates(cache.states_BSD, *self.keys_values(cache.states_BSD, dtype))

    def end_decoding(self, cache: DecodingStates) -> StateCache:
        return StateCache(cache.states_BSD)

    def decoding_states(self, cache: DecodingStates, dtype: DTypeLike) -> BlockStates:
        return BlockStates(cache.state_keys_BSHK[:, None], cache.state_values_BSHK[:, None])

    def flops_per_token(self, window: int) -> float:
        S, A = self.num_states, self.queries_DA.shape[1]
        block = 2 * S * matrix_size(self) + 4 * A * S * (S + 2 * window)
        return block / window
