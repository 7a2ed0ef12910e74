"""A layer memory in one layer of a pretrained backbone, whose windows or blocks are its blocks.

Positions restart in every window, so the memory gets queries and keys without positions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros
from jax.typing import DTypeLike

from brt.checks import Index, configurable
from brt.models.block_recurrent.cached_states import CachedStates
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.memory import (
    BlockStates,
    KeysValues,
    LayerMemory,
    LayerTokens,
    TokenMemory,
)
from brt.models.contract import check_methods, layer_indices, without_gradients
from brt.models.counts import matrix_size
from brt.models.fast.attention import attend
from brt.models.layers.initializers import DENSE, parameter
from brt.models.model import Metrics
from brt.models.ops import attention_to_states, unit_heads
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.backbone_layer import (
    Added,
    Heads,
    LayerKeys,
    join_heads,
    linear,
    repeat_keys,
    split_heads,
)
from brt.pretrained.memories.window_memory import Window, WindowMemory


class StateKeys(NamedTuple):
    """Keys, of unit length, and values of the states of a window: `BlockStates` of one block."""

    keys_BSHK: jax.Array
    values_BSHK: jax.Array


@configurable(denylist=["rngs", "body", "window"])
class BackboneMemory(WindowMemory):
    """A `LayerMemory` at one layer of a backbone, updated after each window or block.

    The output matrix of the attention to its states starts at zero.

    Args:
        memory: builds the memory, as for a layer of the Block-Recurrent stack.
        layer_index: from 0, or negative from the last.
        window: W of blocks of a sliding window; None: windows of any length.
    """

    memory: LayerMemory

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        memory: Callable[..., LayerMemory],
        layer_index: Index = -1,
        window: int | None = None,
    ):
        sizes, binding = body.sizes, f"{type(self).__name__}.layer_index"
        (self.index,) = layer_indices(binding, layer_index, len(body.layers))
        self.sizes = sizes
        self.memory = memory(rngs, sizes, window or body.num_positions)
        check_methods(self.memory, LayerMemory)
        self.every_token = isinstance(self.memory, TokenMemory)
        if type(self.memory).update is LayerMemory.update and not self.every_token:
            raise ValueError(
                f"{type(self).__name__}: {type(self.memory).__name__} has no update(cache, taken, "
                "weights), and a backbone's memories change after a window or block: define it, or "
                "write a WindowMemory."
            )
        self.name = self.memory.name
        self.num_states = self.memory.num_states
        if self.num_states:
            self.cross_queries_DA = parameter(rngs, DENSE, sizes.width, sizes.attention_size)
            self.cross_scale_H = parameter(rngs, ones, sizes.num_heads)
            self.cross_output_AD = parameter(rngs, zeros, sizes.attention_size, sizes.width)

    def for_windows(self, length: int) -> None:
        if isinstance(self.memory, CachedStates):  # it counts windows
            self.memory.window = length

    @property
    def takes_padding(self) -> bool:
        return self.every_token and not isinstance(self.memory, CachedStates)

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        return self.memory.init_cache(rows, dtype)

    def read(self, cache: Any, dtype: DTypeLike) -> StateKeys | None:
        states = self.memory.states(cache, dtype, self.memory.prepare(dtype))
        return states and StateKeys(*(x_B1SHK[:, 0] for x_B1SHK in states))

    def attend(
        self,
        cache: Any,
        read: Any,
        layer: int,
        heads: Heads,
        attended_BTHK: jax.Array,
        real_BT: jax.Array,
    ) -> Added:
        if layer != self.index:
            return Added(attended_BTHK)
        memory, tokens = self.memory, self.tokens(heads)
        taken: Any = memory.take(tokens) if memory.has_own_take else ()
        if isinstance(memory, TokenMemory):
            y, taken, metrics = memory.run(cache, tokens, attended_BTHK, real_BT)
        else:
            weights = memory.prepare(attended_BTHK.dtype)
            y, metrics = memory.read(cache, tokens, attended_BTHK, weights)
        states = read and BlockStates(*(x_BSHK[:, None] for x_BSHK in read))
        y, added_BTD = self.placed(y, attended_BTHK, heads, states)
        return Added(y, added_BTD, without_gradients(metrics), taken)

    def placed(
        self, y: jax.Array, attended_BTHK: jax.Array, heads: Heads, states: BlockStates | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns attention, and the addition to its output; each block attends to its states.

        y: attention with the memory's result, or the addition alone if the memory is `in_residual`.
        """
        added_BTD = None
        if states is not None:
            q_BTA = linear(heads.normed_BTD, self.cross_queries_DA)
            inputs = split_heads(q_BTA, self.sizes.num_heads), *states, self.cross_scale_H[...]
            read_BTHK = attention_to_states(*inputs, attention=attend)
            added_BTD = linear(join_heads(read_BTHK), self.cross_output_AD)
        if not self.memory.in_residual:
            return y, added_BTD
        return attended_BTHK, y if added_BTD is None else added_BTD + y

    def tokens(self, heads: Heads) -> LayerTokens:
        queries_BTHK, scale_H = unit_heads(heads.queries_BTHK), jnp.ones(self.sizes.num_heads)
        return LayerTokens(heads.normed_BTD, queries_BTHK, *self.token_keys(heads.keys), scale_H)

    def token_keys(self, keys: LayerKeys) -> LayerKeys:
        k_BJHK, v_BJHK = repeat_keys(keys, self.sizes.num_heads)
        return LayerKeys(unit_heads(k_BJHK), v_BJHK)

    def update(self, cache: Any, segment: Window) -> tuple[Any, Metrics]:
        if self.every_token:
            return segment.taken, self.with_output_norm({})
        keys_values = KeysValues(*self.token_keys(segment.keys[self.index]))
        taken = segment.taken if self.memory.has_own_take else keys_values
        weights = self.memory.prepare(keys_values.keys_BTHK.dtype)
        cache, metrics = self.memory.update(cache, taken, weights)
        return cache, self.with_output_norm(metrics)

    def with_output_norm(self, metrics: Metrics) -> Metrics:
        """Adds cross_output_norm, the root mean square of the matrix that started at zero."""
        if self.num_states:
            norm = jnp.sqrt(jnp.mean(jnp.square(self.cross_output_AD[...])))
            metrics = metrics | {"cross_output_norm": norm}
        return without_gradients(metrics)

    def flops_per_segment(self, positions: int) -> float:
        return positions * self.memory.flops_per_token(positions)

    def flops_per_position(self) -> float:
        if not self.num_states:
            return 0.0
        products = 2 * (self.cross_queries_DA.size + self.cross_output_AD.size)
        return products + 4 * self.sizes.attention_size * self.num_states


@configurable(denylist=["rngs", "body", "window"])
class CellMemory(BackboneMemory):
    """The Block-Recurrent cell (sections 3.1-3.5): its states, which tokens of a layer attend to,
    attend to the tokens of a window; windows do not see keys of earlier ones.

    Args:
        layer_index: from 0, or negative from the last; None: at two thirds of the depth.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer_index: Index | None = None,
        cell: Callable[..., RecurrentCell] = RecurrentCell,
        window: int | None = None,
    ):
        if layer_index is None:
            layer_index = max(round(len(body.layers) * 2 / 3), 1) - 1
        super().__init__(rngs, body, cell, layer_index, window)

    def flops_per_segment(self, positions: int) -> float:
        S, A = self.num_states, self.sizes.attention_size
        return 2 * S * matrix_size(self.memory) + 4 * A * S * (S + positions)
