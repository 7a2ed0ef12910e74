"""Pooled recurrence of the last layer: one vector from window to window of an encoder.

Source: Yoshida et al. 2020, Adding Recurrence to Pretrained Transformers, section 5.4.
"""

from collections.abc import Sequence

import jax
from flax import nnx

from brt.checks import Count, Index, configurable
from brt.models.layers.precision import at_least_float32
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.memories.pooled_memory import PooledMemory


@configurable(denylist=["rngs", "body"])
class FinalLayerMemory(PooledMemory):
    """`PooledMemory` of the outputs of the last layer alone, their mean over all positions.

    Args:
        layer: the layer whose inputs the vector joins, counted from 1.
        hidden: sizes of the MLP's hidden layers.
    """

    mixed = False

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer: Index = 2,
        hidden: tuple[Count, ...] = (768,),
    ):
        super().__init__(rngs, body, layer=layer, hidden=hidden)

    def mixture(self, outputs: Sequence[jax.Array]) -> jax.Array:
        return at_least_float32(outputs[-1])
