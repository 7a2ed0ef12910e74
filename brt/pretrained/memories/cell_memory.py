"""The Block-Recurrent cell between windows of a pretrained backbone.

Source: Block-Recurrent, sections 3.1-3.5. Windows are blocks, and do not see keys of earlier ones.
"""

from collections.abc import Callable

from flax import nnx

from brt.checks import Index, configurable
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.counts import matrix_size
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.memories.backbone_memory import BackboneMemory
from brt.pretrained.memories.window_memory import check_layer


@configurable(denylist=["rngs", "body", "window"])
class CellMemory(BackboneMemory):
    """State vectors that the tokens of a layer attend to, and that attend to its tokens.

    Args:
        layer: counted from 1; None: at two thirds of the depth.
        cell: builds the `RecurrentCell`.
        window: as of `BackboneMemory`.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer: Index | None = None,
        cell: Callable[..., RecurrentCell] = RecurrentCell,
        window: int | None = None,
    ):
        check_layer(self, layer, body)
        layer = layer or max(round(len(body.layers) * 2 / 3), 1)
        self.cell = cell(rngs, body.sizes, window or body.num_positions)
        self.attach(rngs, body, layer - 1, self.cell.num_states)

    @property
    def memory(self) -> RecurrentCell:  # type: ignore[override]
        return self.cell

    def flops_per_segment(self, positions: int) -> float:
        S, A = self.num_states, self.sizes.attention_size
        return 2 * S * matrix_size(self.cell) + 4 * A * S * (S + positions)
