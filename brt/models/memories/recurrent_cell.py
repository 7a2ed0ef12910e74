"""The recurrent cell: the horizontal direction of a layer, from one block's states to the next's.

Only this is sequential, so only this stands inside the loop over blocks. The tokens' side
(their queries, keys, values, their attention to one another and to the states) is computed
for all blocks at once in `brt/models/layer.py`. Letters as in `brt.models`.
"""

from typing import NamedTuple

import gin
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import check_choice
from brt.models.counts import matrix_size
from brt.models.layers.attention import attend
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.norms import RMSNorm, unit_heads
from brt.models.layers.sizes import Sizes
from brt.models.memories.gates import Gate
from brt.models.memories.memory import BlockPairs, BlockStates, LayerMemory

ARRANGEMENTS = ("dual", "single", "skip")
ORDERS = ("parallel", "sequential")


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

        def make_gate(letter, size):
            return Gate(
                rngs,
                letter=letter,
                input_size=size,
                width=D,
                kind=gate,
                form=gate_form,
                squash=arrangement == "single",
                biases=gate_biases,
            )

        if order == "sequential":
            self.self_gate = make_gate("A", A)
            self.cross_gate = make_gate("A", A)
            self.cross_norm = RMSNorm(rngs, D)
        elif arrangement != "single":
            self.attention_gate = make_gate("C", 2 * A)
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

    def _identified(self, norm, states_BSD, dtype):
        return norm(states_BSD).astype(dtype) + self.state_ids_SD[...].astype(dtype)

    def _heads(self, x_BSD, matrix_DA):
        x_BSA = x_BSD @ matrix_DA[...].astype(x_BSD.dtype)
        return x_BSA.reshape(*x_BSA.shape[:-1], self.num_heads, -1)

    def keys_values(self, states_BSD: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
        """Returns keys (unit length) and values of states, each (B, S, H, K) of `dtype`."""
        x_BSD = self._identified(self.norm, states_BSD, dtype)
        return unit_heads(self._heads(x_BSD, self.keys_DA)), self._heads(x_BSD, self.values_DA)

    def step(
        self,
        states_BSD: jax.Array,
        state_k_BSHK: jax.Array,
        state_v_BSHK: jax.Array,
        token_k_BJHK: jax.Array,
        token_v_BJHK: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Takes in one block: the states read themselves and the tokens, and are updated.

        Args:
            states_BSD: (B, S, D), the states before this block.
            state_k_BSHK, state_v_BSHK: their `keys_values`, (B, S, H, K).
            token_k_BJHK, token_v_BJHK: the tokens' own keys and values, of the previous
                block and this one, (B, 2W, H, K). No mask: all 2W are seen.

        Returns:
            The next states (B, S, D), and the mean share of the old states the gates kept.
        """
        dtype = token_k_BJHK.dtype
        x_BSD = self._identified(self.norm, states_BSD, dtype)

        def read_states():
            q_BSHK = unit_heads(self._heads(x_BSD, self.queries_DA))
            y_BSHK = attend(q_BSHK, state_k_BSHK, state_v_BSHK, self.attention_scale_H[...])
            return y_BSHK.reshape(*x_BSD.shape[:2], -1)

        def read_tokens(x_BSD):
            q_BSHK = unit_heads(self._heads(x_BSD, self.cross_queries_DA))
            y_BSHK = attend(q_BSHK, token_k_BJHK, token_v_BJHK, self.cross_scale_H[...])
            return y_BSHK.reshape(*x_BSD.shape[:2], -1)

        kept = []

        def gated(gate, states_BSD, h_BSX):
            states_BSD, keep = gate(states_BSD, h_BSX)
            kept.append(jnp.mean(keep))
            return states_BSD

        if self.order == "sequential":
            states_BSD = gated(self.self_gate, states_BSD, read_states())
            x_BSD = self._identified(self.cross_norm, states_BSD, dtype)
            states_BSD = gated(self.cross_gate, states_BSD, read_tokens(x_BSD))
        else:
            h_BSC = jnp.concatenate([read_states(), read_tokens(x_BSD)], axis=-1)
            if self.arrangement == "single":
                h_BSF = jax.nn.relu(h_BSC @ self.hidden_CF[...].astype(dtype))
                return gated(self.feed_forward_gate, states_BSD, h_BSF), kept[0]
            states_BSD = gated(self.attention_gate, states_BSD, h_BSC)
        if self.arrangement == "dual":
            x_BSD = self.feed_forward_norm(states_BSD).astype(dtype)
            h_BSF = jax.nn.relu(x_BSD @ self.hidden_DF[...].astype(dtype))
            states_BSD = gated(self.feed_forward_gate, states_BSD, h_BSF)
        return states_BSD, sum(kept) / len(kept)

    # The interface of a layer's memory.

    def states(self, cache: StateCache, dtype: DTypeLike) -> BlockStates:
        k_BSHK, v_BSHK = self.keys_values(cache.states_BSD, dtype)
        return BlockStates(k_BSHK[:, None], v_BSHK[:, None])

    def take_in(
        self,
        cache: StateCache,
        blocks: BlockPairs,
        known: BlockStates | None = None,
        remat: bool = False,
    ) -> tuple[StateCache, BlockStates, dict[str, jax.Array]]:
        """Folds `step` over the blocks of a segment; as `LayerMemory.take_in`.

        The monitors are kept, the mean share of the states that the gates keep, and state_norm,
        their root mean square after the segment.
        """
        dtype = blocks.keys_BGJHK.dtype
        step = jax.checkpoint(self.step) if remat else self.step

        def block(states_BSD, tokens):
            k_BSHK, v_BSHK = self.keys_values(states_BSD, dtype)
            states_BSD, kept = step(states_BSD, k_BSHK, v_BSHK, *tokens)
            return states_BSD, (BlockStates(k_BSHK, v_BSHK), kept)

        if known is not None:
            seen = known
            states_BSD, kept = step(cache.states_BSD, *(x[:, 0] for x in (*known, *blocks)))
        else:
            by_block = tuple(jnp.moveaxis(x, 1, 0) for x in blocks)
            states_BSD, (seen, kept) = jax.lax.scan(block, cache.states_BSD, by_block)
            seen = BlockStates(*(jnp.moveaxis(x, 0, 1) for x in seen))
            kept = jnp.mean(kept)
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
