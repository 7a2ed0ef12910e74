"""The Block-Recurrent cell between windows of a pretrained backbone.

Source: Block-Recurrent, sections 3.1-3.5. Windows are blocks, and do not see keys of earlier ones.
"""

from collections.abc import Callable

from flax import nnx

from brt.checks import Index, configurable
from brt.models.block_recurrent.cell import RecurrentCell, StateCache
from brt.models.block_recurrent.memory import BlockPairs
from brt.models.counts import matrix_size
from brt.models.model import Metrics
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.memories.backbone_memory import BackboneMemory
from brt.pretrained.memories.window_memory import Window, check_layer


@configurable(denylist=["rngs", "body"])
class CellMemory(BackboneMemory):
    """State vectors that the tokens of a layer attend to, and that attend to its tokens.

    Args:
        layer: counted from 1; None: at two thirds of the depth.
        cell: builds the `RecurrentCell`.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer: Index | None = None,
        cell: Callable[..., RecurrentCell] = RecurrentCell,
    ):
        check_layer(self, layer, body)
        layer = layer or max(round(len(body.layers) * 2 / 3), 1)
        self.cell = cell(rngs, body.sizes, body.num_positions)
        self.attach(rngs, body, layer - 1, self.cell.num_states)

    @property
    def memory(self) -> RecurrentCell:  # type: ignore[override]
        return self.cell

    def update(self, cache: StateCache, segment: Window) -> tuple[StateCache, Metrics]:
        token_keys = self.token_keys(segment.keys[self.index])
        blocks = BlockPairs(*(x_BTHK[:, None] for x_BTHK in token_keys))
        dtype = token_keys.keys_BJGK.dtype
        weights = self.cell.prepare(dtype)
        states = self.cell.states(cache, dtype, weights)
        _, cache, _, metrics = self.cell(cache, None, blocks, None, weights, states)
        return cache, self.with_output_norm(metrics)

    def flops_per_segment(self, positions: int) -> float:
        S, A = self.num_states, self.sizes.attention_size
        return 2 * S * matrix_size(self.cell) + 4 * A * S * (S + positions)
