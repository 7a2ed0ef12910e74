"""Pooled recurrence of the last layer: one vector from window to window of an encoder.

Source: Yoshida et al. 2020, Adding Recurrence to Pretrained Transformers, section 5.4.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from brt.checks import Count, Index, configurable
from brt.models.layers.precision import at_least_float32
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.memories.pooled_memory import PooledMemory, PooledSums
from brt.pretrained.memories.window_memory import Positions


@configurable(denylist=["rngs", "body"])
class FinalLayerMemory(PooledMemory):
    """`PooledMemory` of the outputs of the last layer alone, their mean over all positions.

    Args:
        layer: the layer whose inputs the vector joins, counted from 1.
        hidden: sizes of the network's hidden layers.

    Raises:
        ValueError: as `PooledMemory`.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer: Index = 2,
        hidden: tuple[Count, ...] = (768,),
    ):
        super().__init__(rngs, body, layer=layer, hidden=hidden)
        del self.mixture_L  # one layer needs no mixture

    def summary(self, outputs: Sequence[jax.Array], positions: Positions) -> PooledSums:
        last_BTD = at_least_float32(outputs[-1])
        real_BT = positions.real_BT
        sum_BD = jnp.where(real_BT[..., None], last_BTD, 0).sum(axis=1)
        count_B = real_BT.sum(axis=1).astype(last_BTD.dtype)
        return PooledSums(sum_BD, count_B, jnp.zeros_like(count_B))

    def flops_per_window(self, window: int) -> float:
        network = sum(2.0 * layer.matrix_IU.size for layer in self.network)
        return network + 4.0 * self.width * self.attention_size
