"""The recurrent cell: the horizontal direction of a layer, from one block's states to the next's.

Only the cell is sequential and inside the loop over blocks.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, OneOf, configurable
from brt.models.block_recurrent import gates
from brt.models.block_recurrent.memory import (
    BlockStates,
    KeysValues,
    LayerMemory,
    LayerTokens,
    MemoryResult,
)
from brt.models.caches import WindowCache, select_rows
from brt.models.contract import check_arrangement
from brt.models.counts import matrix_size
from brt.models.fast import table
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.norms import RMSNorm
from brt.models.model import Metrics
from brt.models.ops import CellOps, Matrix, heads_first, in_blocks, rms_normed, unit_heads
from brt.models.sizes import Sizes

ARRANGEMENTS = ("dual", "single", "skip")
ORDERS = ("parallel", "sequential")


class CellWeights(NamedTuple):
    """The parameters of a cell for its loop over blocks; None: the cell has none.

    Matrices that multiply the same vectors are stacked along X (keys, values; queries for states,
    for tokens), so that under a mesh their gradients are summed over the model axis once.
    """

    norm_scale_D: jax.Array
    keys_values_XDHK: Matrix
    queries_XDHK: Matrix
    gates: dict[str, gates.GateWeights]
    ids_SD: jax.Array | None = None
    self_scale_H: jax.Array | None = None
    cross_scale_H: jax.Array | None = None
    cross_norm_scale_D: jax.Array | None = None
    cross_queries_XDHK: Matrix | None = None
    feed_forward_norm_scale_D: jax.Array | None = None
    hidden_DF: Matrix | None = None
    hidden_XHKF: Matrix | None = None


class ByHead(NamedTuple):
    """Keys and values of states or tokens, heads first."""

    keys_BHJK: jax.Array
    values_BHJK: jax.Array


class CellCarry(NamedTuple):
    """The states, and the tokens of the block before."""

    states_BSD: jax.Array
    before: ByHead


class StateCache(NamedTuple):
    """The state vectors of a recurrent cell.

    states_BSD: (B, S, D), float32 or float64: a long sum of small changes. Empty: learned.
    """

    states_BSD: jax.Array


class DecodingStates(NamedTuple):
    """The states while a block is being filled, and their keys and values, (B, S, H, K)."""

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
        state_ids: add a learned vector to each state before its projections (section 3.2).

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
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        check_arrangement(arrangement, order, F)
        heads = sizes.num_heads, sizes.head_size
        self.sizes, self.window, self.num_states = sizes, window, num_states
        self.arrangement, self.order = arrangement, order
        self.reads_after_tokens = order == "sequential"
        self.initial_states_SD = parameter(rngs, normal(0.1), num_states, D, multiplied=False)
        if state_ids:
            self.state_ids_SD = parameter(rngs, normal(1.0), num_states, D, multiplied=False)
        self.norm = RMSNorm(rngs, D)
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
            self.cross_norm = RMSNorm(rngs, D)
        elif arrangement != "single":
            self.attention_gate = make_gate(gates.BOTH_ATTENTIONS, 2, *heads)
        if arrangement == "dual":
            self.feed_forward_norm = RMSNorm(rngs, D)
            self.hidden_DF = parameter(rngs, DENSE, D, F)
        elif arrangement == "single":
            self.hidden_CF = parameter(rngs, DENSE, 2 * A, F)
        if arrangement != "skip":
            self.feed_forward_gate = make_gate(gates.MLP, F)

    def init_cache(self, rows: int, dtype: DTypeLike) -> StateCache:
        initial_SD = self.initial_states_SD[...]
        return StateCache(jnp.broadcast_to(initial_SD, (rows, *initial_SD.shape)))

    def prepare(self, dtype: DTypeLike, key: jax.Array | None = None) -> CellWeights:
        """Returns the parameters for the loop over blocks; dtype: of the activations."""
        D, H, K = self.sizes.width, self.sizes.num_heads, self.sizes.head_size

        def value(name):
            found = getattr(self, name, None)
            return None if found is None else found[...]

        def matrix(name, *axes):
            found = value(name)
            return None if found is None else Matrix(found.reshape(*axes, found.shape[1]), dtype)

        def by_head(*names):
            return Matrix(jnp.stack([*map(value, names)]).reshape(-1, D, H, K), dtype)

        sequential, dual = self.order == "sequential", self.arrangement == "dual"
        queries = ["queries_DA"] if sequential else ["queries_DA", "cross_queries_DA"]
        gates = ("self_gate", "cross_gate", "attention_gate", "feed_forward_gate")
        return CellWeights(
            norm_scale_D=self.norm.scale_D[...],
            keys_values_XDHK=by_head("keys_DA", "values_DA"),
            queries_XDHK=by_head(*queries),
            gates={n: getattr(self, n).weights(dtype) for n in gates if hasattr(self, n)},
            ids_SD=value("state_ids_SD"),
            self_scale_H=value("attention_scale_H"),
            cross_scale_H=value("cross_scale_H"),
            cross_norm_scale_D=self.cross_norm.scale_D[...] if sequential else None,
            cross_queries_XDHK=by_head("cross_queries_DA") if sequential else None,
            feed_forward_norm_scale_D=self.feed_forward_norm.scale_D[...] if dual else None,
            hidden_DF=matrix("hidden_DF", D),
            hidden_XHKF=matrix("hidden_CF", 2, H, K),
        )

    def ops(self, dtype: DTypeLike) -> CellOps:
        one_gate = self.order == "parallel" and self.arrangement == "skip"
        gate = self.attention_gate if one_gate else None
        return table.cell_ops(self.sizes, self.window, self.num_states, dtype, gate)

    # One block.

    def _normed(self, states_BSD, scale_D, weights):
        dtype = weights.keys_values_XDHK.dtype
        x_BSD = rms_normed(states_BSD, scale_D).astype(dtype)
        return x_BSD if weights.ids_SD is None else x_BSD + weights.ids_SD.astype(dtype)

    def keys_values(self, x_BSD: jax.Array, weights: CellWeights) -> ByHead:
        """Returns keys and values of normalised states, each (B, H, S, K)."""
        k_BHSK, v_BHSK = jnp.unstack(weights.keys_values_XDHK("BSD,XDHK->XBHSK", x_BSD))
        return ByHead(unit_heads(k_BHSK) if self.sizes.qk_norm else k_BHSK, v_BHSK)

    def step(
        self, weights: CellWeights, carry: CellCarry, block: ByHead, of_states: ByHead | None = None
    ) -> tuple[CellCarry, ByHead, Metrics]:
        """Updates the states with one block: they attend to themselves and to the tokens.

        Args:
            carry: the states, and the block before, which is visible too.
            block: this block's tokens, (B, H, W, K).
            of_states: `keys_values` of the states, if already computed.

        Returns:
            The next carry; keys and values of the states; and kept, the mean of the gates' keep.
        """
        states_BSD, before = carry
        k_BHJK = jnp.concatenate([before.keys_BHJK, block.keys_BHJK], axis=2)
        v_BHJK = jnp.concatenate([before.values_BHJK, block.values_BHJK], axis=2)
        attend = self.ops(v_BHJK.dtype).attention_by_head
        kept = []

        # The states attend to themselves, then to the tokens, in sequence or in parallel.
        x_BSD = self._normed(states_BSD, weights.norm_scale_D, weights)
        of_states = of_states or self.keys_values(x_BSD, weights)
        queries = jnp.unstack(weights.queries_XDHK("BSD,XDHK->XBHSK", x_BSD))
        to_states_BHSK = attend(queries[0], *of_states, weights.self_scale_H)
        if weights.cross_queries_XDHK is not None:
            gate = weights.gates["self_gate"]
            states_BSD, keep = self.self_gate(states_BSD, to_states_BHSK, gate)
            kept.append(keep)
            x_BSD = self._normed(states_BSD, weights.cross_norm_scale_D, weights)
            queries = jnp.unstack(weights.cross_queries_XDHK("BSD,XDHK->XBHSK", x_BSD))
        to_tokens_BHSK = attend(queries[-1], k_BHJK, v_BHJK, weights.cross_scale_H)
        both = to_states_BHSK, to_tokens_BHSK
        if self.order == "sequential":
            gate = weights.gates["cross_gate"]
            states_BSD, keep = self.cross_gate(states_BSD, to_tokens_BHSK, gate)
            kept.append(keep)
        elif self.arrangement != "single":
            gate = weights.gates["attention_gate"]
            states_BSD, keep = self.attention_gate(states_BSD, both, gate)
            kept.append(keep)

        # The MLP, whose output matrix is that of its gate.
        h_BSF = None
        if weights.hidden_XHKF is not None:
            h_BSF = weights.hidden_XHKF("XBHSK,XHKF->BSF", *both)
        elif weights.hidden_DF is not None:
            x_BSD = rms_normed(states_BSD, weights.feed_forward_norm_scale_D)
            h_BSF = weights.hidden_DF("BSD,DF->BSF", x_BSD.astype(v_BHJK.dtype))
        if h_BSF is not None:
            gate = weights.gates["feed_forward_gate"]
            states_BSD, keep = self.feed_forward_gate(states_BSD, jax.nn.relu(h_BSF), gate)
            kept.append(keep)
        metrics = {"kept": jnp.mean(jnp.stack([*map(jnp.mean, kept)]))}
        return CellCarry(states_BSD, block), of_states, metrics

    # The interface of a layer's memory.

    def states(self, cache: StateCache, dtype: DTypeLike, weights: CellWeights) -> BlockStates:
        x_BSD = self._normed(cache.states_BSD, weights.norm_scale_D, weights)
        return BlockStates(*(heads_first(x)[:, None] for x in self.keys_values(x_BSD, weights)))

    def __call__(
        self,
        cache: StateCache,
        tokens: LayerTokens,
        window: WindowCache,
        attended_BTHK: jax.Array,
        weights: CellWeights,
        states: BlockStates | None = None,
    ) -> MemoryResult:
        """Runs `step` on each block of a segment and returns `attended_BTHK` unchanged.

        Metrics: kept, the mean share of the states that the gates keep, and state_norm.
        """
        if states is not None:  # block feedback: one block, whose states the caller computed
            known = ByHead(*(heads_first(x_BGSHK[:, 0]) for x_BGSHK in states))
            block = KeysValues(tokens.keys_BTHK, tokens.values_BTHK)
            after, metrics = self._updated(cache, window, block, weights, known)
            return MemoryResult(attended_BTHK, after, states, metrics)
        W = window.keys_BWHK.shape[1]
        # Heads come first before the loop, once for both passes of all blocks.
        k_BGWHK, v_BGWHK = in_blocks(tokens.keys_BTHK, W), in_blocks(tokens.values_BTHK, W)
        blocks = ByHead(heads_first(k_BGWHK), heads_first(v_BGWHK))
        carry = CellCarry(cache.states_BSD, ByHead(*map(heads_first, window)))
        scan = self.ops(tokens.values_BTHK.dtype).scan_blocks
        carry, of_states, metrics = scan(self.step, weights, carry, blocks)
        states = BlockStates(*map(heads_first, of_states))
        after, metrics = self._after(carry, metrics)
        return MemoryResult(attended_BTHK, after, states, metrics)

    def _after(self, carry, metrics):
        norm = jnp.sqrt(jnp.mean(jnp.square(carry.states_BSD)))
        return StateCache(carry.states_BSD), metrics | {"state_norm": norm}

    def update(
        self, cache: StateCache, taken: KeysValues, weights: CellWeights
    ) -> tuple[StateCache, Metrics]:
        """Updates the states with these tokens alone, without an earlier block."""
        none = KeysValues(*(x_BWHK[:, :0] for x_BWHK in taken))
        return self._updated(cache, none, taken, weights)

    def _updated(self, cache, before, block, weights, known=None):
        before, block = (ByHead(*map(heads_first, x)) for x in (before, block))
        carry, _, metrics = self.step(weights, CellCarry(cache.states_BSD, before), block, known)
        return self._after(carry, metrics)

    def begin_decoding(self, cache: StateCache, dtype: DTypeLike) -> DecodingStates:
        states = self.states(cache, dtype, self.prepare(dtype))
        return DecodingStates(cache.states_BSD, *(x_B1SHK[:, 0] for x_B1SHK in states))

    def end_decoding(self, cache: DecodingStates) -> StateCache:
        return StateCache(cache.states_BSD)

    def decoding_states(self, cache: DecodingStates, dtype: DTypeLike) -> BlockStates:
        return BlockStates(cache.state_keys_BSHK[:, None], cache.state_values_BSHK[:, None])

    def update_after_block(
        self, cache: DecodingStates, before: WindowCache, block: KeysValues, full_B: jax.Array
    ) -> DecodingStates:
        dtype = before.keys_BWHK.dtype
        known = ByHead(*map(heads_first, (cache.state_keys_BSHK, cache.state_values_BSHK)))
        states = self.end_decoding(cache)
        after, _ = self._updated(states, before, block, self.prepare(dtype), known)
        return select_rows(full_B, self.begin_decoding(after, dtype), cache)

    def flops_per_token(self, window: int) -> float:
        S, A = self.num_states, self.queries_DA.shape[1]
        block = 2 * S * matrix_size(self) + 4 * A * S * (S + 2 * window)
        return block / window
