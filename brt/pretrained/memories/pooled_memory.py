"""Pooled recurrence: the outputs of all layers are mixed and averaged over a window; an MLP maps
the mean to inputs of a layer of the next window, for keys and values only.

Source: Yoshida et al. 2020, Adding Recurrence to Pretrained Transformers, section 3.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros
from jax.typing import DTypeLike

from brt.checks import Count, Index, OneOf, configurable
from brt.models.contract import layer_indices
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.model import Metrics
from brt.models.ops import at_least_float32
from brt.models.segment_memory import MemoryVectors
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.memories.window_memory import Positions, Window, WindowMemory

POOLED = ("all", "unrepeated")
POOLINGS = ("mean", "max", "attention")
LOWEST = -1e30


class PooledCache(NamedTuple):
    """The vectors from a window to the next, at least float32.

    count_B: int32, 0 or M. Empty: absent, so that a document's first window is the plain
    backbone's.
    """

    vectors_BMD: jax.Array
    count_B: jax.Array


class PooledSums(NamedTuple):
    """The pooled part of a window so far.

    pooled_BD: the weighted sum of outputs, or their maximum. weight_B: the sum of weights.
    highest_B: the reference score of the weights.
    """

    pooled_BD: jax.Array
    weight_B: jax.Array
    highest_B: jax.Array


class PooledLayer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, inputs: int, units: int):
        # Once a window: the memory counts its cost.
        self.matrix_IU = parameter(rngs, DENSE, inputs, units, multiplied=False)
        self.bias_U = parameter(rngs, zeros, units)

    def __call__(self, x_BI: jax.Array) -> jax.Array:
        return x_BI @ self.matrix_IU[...] + self.bias_U[...]


@configurable(denylist=["rngs", "body"])
class PooledMemory(WindowMemory):
    """Carries an MLP's outputs for the mean of a window.

    Args:
        layer_index: of the layer whose inputs the vectors join, from 0, or negative from the last;
            None: all layers.
        hidden: sizes of the MLP's hidden layers.
        pooled: the pooled positions: "all", or "unrepeated", without those that the next window
            repeats.
        pooling: "mean"; "max"; or "attention", a mean weighted by a learned key.
        num_vectors: M.

    Source: section 3.1, and note 4 for the alternatives. The MLP has the backbone's activation.
    """

    name = "pooled"
    mixed = True

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer_index: Index | None = 1,
        hidden: tuple[Count, ...] = (200, 200, 200),
        pooled: Annotated[str, OneOf(POOLED)] = "all",
        pooling: Annotated[str, OneOf(POOLINGS)] = "mean",
        num_vectors: Count = 1,
    ):
        num_layers = len(body.layers)
        self.layer_index = layer_index
        if layer_index is not None:
            binding = f"{type(self).__name__}.layer_index"
            (self.layer_index,) = layer_indices(binding, layer_index, num_layers)
        self.pooled = pooled
        self.pooling = pooling
        self.num_vectors = num_vectors
        self.width = body.width
        self.attention_size = body.sizes.attention_size
        self.in_layers = num_layers if layer_index is None else 1
        self.activation = body.settings.activation
        if self.mixed:
            self.mixture_L = parameter(rngs, zeros, num_layers)
        sizes = (body.width, *hidden, num_vectors * body.width)
        self.network = nnx.List(PooledLayer(rngs, *pair) for pair in itertools.pairwise(sizes))
        if pooling == "attention":
            self.key_D = parameter(rngs, normal(0.02), body.width)

    def init_cache(self, rows: int, dtype: DTypeLike) -> PooledCache:
        shape = rows, self.num_vectors, self.width
        vectors_BMD = jnp.zeros(shape, jnp.promote_types(dtype, jnp.float32))
        return PooledCache(vectors_BMD, jnp.zeros(rows, jnp.int32))

    def read(self, cache: PooledCache, dtype: DTypeLike) -> MemoryVectors:
        present_BM = cache.count_B[:, None] > jnp.arange(self.num_vectors)
        return MemoryVectors(cache.vectors_BMD.astype(dtype), present_BM)

    def vectors(self, read: MemoryVectors, layer: int) -> MemoryVectors | None:
        return read if self.layer_index in (None, layer) else None

    def summary(self, outputs: Sequence[jax.Array], positions: Positions) -> PooledSums:
        mixed_BTD = self.mixture(outputs)
        pooled_BT = positions.real_BT
        if self.pooled == "unrepeated":
            pooled_BT = pooled_BT & ~positions.again_BT
        if self.pooling == "max":
            pooled_BTD = jnp.where(pooled_BT[..., None], mixed_BTD, LOWEST)
            # By index: the gradient of `max` is lost if XLA recomputes x with other rounding, as on
            # a mesh.
            index_B1D = pooled_BTD.argmax(axis=1, keepdims=True)
            highest_BD = jnp.take_along_axis(pooled_BTD, index_B1D, axis=1)[:, 0]
            count_B = pooled_BT.sum(axis=1).astype(mixed_BTD.dtype)
            return PooledSums(highest_BD, count_B, jnp.zeros_like(count_B))
        scores_BT = jnp.zeros(pooled_BT.shape, mixed_BTD.dtype)
        if self.pooling == "attention":
            scores_BT = mixed_BTD @ self.key_D[...] / jnp.sqrt(self.width)
        scores_BT = jnp.where(pooled_BT, scores_BT, LOWEST)
        highest_B = jax.lax.stop_gradient(scores_BT.max(axis=1))
        weights_BT = jnp.where(pooled_BT, jnp.exp(scores_BT - highest_B[:, None]), 0)
        sum_BD = jnp.einsum("BT,BTD->BD", weights_BT, mixed_BTD)
        return PooledSums(sum_BD, weights_BT.sum(axis=1), highest_B)

    def mixture(self, outputs: Sequence[jax.Array]) -> jax.Array:
        shares_L = jax.nn.softmax(self.mixture_L[...])
        shared = zip(shares_L, outputs, strict=True)
        return jnp.asarray(sum(share * at_least_float32(x_BTD) for share, x_BTD in shared))

    def combined(self, first: PooledSums, second: PooledSums) -> PooledSums:
        if self.pooling == "max":
            pooled_BD = jnp.maximum(first.pooled_BD, second.pooled_BD)
            return PooledSums(pooled_BD, first.weight_B + second.weight_B, first.highest_B)
        highest_B = jnp.maximum(first.highest_B, second.highest_B)
        scales = [jnp.exp(part.highest_B - highest_B) for part in (first, second)]
        pooled_BD = scales[0][:, None] * first.pooled_BD + scales[1][:, None] * second.pooled_BD
        weight_B = scales[0] * first.weight_B + scales[1] * second.weight_B
        return PooledSums(pooled_BD, weight_B, highest_B)

    def update(self, cache: PooledCache, segment: Window) -> tuple[PooledCache, Metrics]:
        """Returns the vectors of a window, and pooled_norm, their root mean square.

        A window without pooled positions leaves no vector.
        """
        vectors_BMD = self.computed(self.pooled_vector(segment.summary)).astype(
            cache.vectors_BMD.dtype
        )
        pooled_B = segment.summary.weight_B > 0
        count_B = jnp.where(pooled_B, self.num_vectors, 0).astype(jnp.int32)
        vectors_BMD = jnp.where(pooled_B[:, None, None], vectors_BMD, 0)
        norm = jnp.sqrt(jnp.mean(jnp.square(vectors_BMD)))
        return PooledCache(vectors_BMD, count_B), {"pooled_norm": jax.lax.stop_gradient(norm)}

    def pooled_vector(self, summary: PooledSums) -> jax.Array:
        pooled_B1 = summary.weight_B[:, None] > 0
        pooled_BD = jnp.where(pooled_B1, summary.pooled_BD, 0)
        if self.pooling == "max":
            return pooled_BD
        return pooled_BD / jnp.where(pooled_B1, summary.weight_B[:, None], 1)

    def computed(self, z_BD: jax.Array) -> jax.Array:
        *inner, last = self.network
        x_BI = z_BD
        for layer in inner:
            x_BI = ACTIVATIONS[self.activation](layer(x_BI))
        return last(x_BI).reshape(len(z_BD), self.num_vectors, self.width)

    def flops_per_segment(self, positions: int) -> float:
        network = sum(2.0 * layer.matrix_IU.size for layer in self.network)
        keys_values = 4.0 * self.width * self.attention_size * self.num_vectors * self.in_layers
        mixing = 2.0 * positions * self.width * self.mixture_L.size if self.mixed else 0.0
        return network + keys_values + mixing

    def flops_per_position(self) -> float:
        return 4.0 * self.attention_size * self.num_vectors * self.in_layers


@configurable(denylist=["rngs", "body"])
class FinalLayerMemory(PooledMemory):
    """`PooledMemory` of the last layer's outputs alone, their mean over all positions.

    Source: section 5.4.
    """

    mixed = False

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer_index: Index = 1,
        hidden: tuple[Count, ...] = (768,),
    ):
        super().__init__(rngs, body, layer_index, hidden)

    def mixture(self, outputs: Sequence[jax.Array]) -> jax.Array:
        return at_least_float32(outputs[-1])
