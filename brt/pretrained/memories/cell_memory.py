"""The Block-Recurrent cell between windows of a pretrained backbone.

Source: Block-Recurrent, sections 3.1-3.5. Windows are blocks, and do not see keys of earlier ones.
"""

from collections.abc import Callable

from flax import nnx

from brt.checks import Index, configurable
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.contract import layer_indices
from brt.models.counts import matrix_size
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.memories.backbone_memory import BackboneMemory


@configurable(denylist=["rngs", "body", "window"])
class CellMemory(BackboneMemory):
    """State vectors that the tokens of a layer attend to, and that attend to its tokens.

    Args:
        layer_index: from 0, or negative from the last; None: at two thirds of the depth.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer_index: Index | None = None,
        cell: Callable[..., RecurrentCell] = RecurrentCell,
        window: int | None = None,
    ):
        layers = len(body.layers)
        if layer_index is None:
            layer_index = max(round(layers * 2 / 3), 1) - 1
        (index,) = layer_indices("CellMemory.layer_index", layer_index, layers)
        self.cell = cell(rngs, body.sizes, window or body.num_positions)
        self.attach(rngs, body, index, self.cell.num_states)

    @property
    def memory(self) -> RecurrentCell:  # type: ignore[override]
        return self.cell

    def flops_per_segment(self, positions: int) -> float:
        S, A = self.num_states, self.sizes.attention_size
        return 2 * S * matrix_size(self.cell) + 4 * A * S * (S + positions)
