"""The Block-Recurrent cell between windows of a pretrained backbone.

At one layer the tokens also attend to state vectors, which attend to the window's tokens when it is
full. Axes as in `brt.pretrained`; S states.

Source: Block-Recurrent, sections 3.1-3.5, whose block is a window here: its positions restart, so
keys of the window before are not seen.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Index, configurable
from brt.models.block_recurrent.cell import RecurrentCell, StateCache
from brt.models.block_recurrent.memory import BlockPairs
from brt.models.counts import matrix_size
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.backbone_layer import Heads, LayerKeys
from brt.pretrained.memories.backbone_memory import BackboneMemory, StateKeys


@configurable(denylist=["rngs", "body"])
class CellMemory(BackboneMemory):
    """State vectors that the tokens of a layer attend to, and that attend to its tokens.

    Args:
        layer: the layer with states, counted from 1; None: at two thirds of the depth.
        cell: builds the `RecurrentCell`; gin configures the default.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer: Index | None = None,
        cell: Callable[..., RecurrentCell] = RecurrentCell,
    ):
        num_layers = len(body.layers)
        if layer is not None and not 1 <= layer <= num_layers:
            raise ValueError(
                f"CellMemory.layer = {layer} must lie between 1 and {num_layers}, the layers of "
                f"{type(body).__name__}."
            )
        self.cell = cell(rngs, body.sizes, body.num_positions)
        self.layer = layer or max(round(num_layers * 2 / 3), 1)
        self.attach(rngs, body, self.layer - 1, self.cell.num_states)

    def init_cache(self, rows: int, dtype: DTypeLike) -> StateCache:
        return self.cell.init_cache(rows, dtype)

    def view(self, cache: StateCache, dtype: DTypeLike) -> StateKeys:
        states = self.cell.states(cache, dtype, self.cell.prepare(dtype))
        return StateKeys(*(x_BGSHK[:, 0] for x_BGSHK in states))

    def attended(self, view: Any, layer: int, heads: Heads, attended_BTHK: jax.Array) -> jax.Array:
        return attended_BTHK

    def added(self, view: Any, layer: int, normed_BTD: jax.Array) -> jax.Array | None:
        return self.read_states(normed_BTD, view) if layer == self.index else None

    def update(
        self, cache: StateCache, summary: Any, keys: Sequence[LayerKeys]
    ) -> tuple[StateCache, dict[str, jax.Array]]:
        pairs = BlockPairs(*(x_BTHK[:, None] for x_BTHK in self.token_keys(keys[self.index])))
        dtype = pairs.keys_BGJHK.dtype
        weights = self.cell.prepare(dtype)
        states = self.cell.states(cache, dtype, weights)
        _, cache, _, metrics = self.cell(cache, None, pairs, None, weights, states)
        return cache, jax.lax.stop_gradient(metrics | self.output_norm())

    def flops_per_window(self, window: int) -> float:
        S, A = self.cell.num_states, self.sizes.attention_size
        return 2 * S * matrix_size(self.cell) + 4 * A * S * (S + window)
