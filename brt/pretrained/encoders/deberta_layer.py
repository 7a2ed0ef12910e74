"""Layers of DeBERTa, versions 2 and 3, whose scores have terms by distance."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import zeros
from numpy.typing import ArrayLike

from brt.models.layers.initializers import normal, parameter
from brt.models.layers.precision import at_least_float32
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import STD, Norm, Seen, linear, split_heads
from brt.pretrained.encoders.bert import BertLayer

TERMS = ("c2p", "p2c")
"""Terms of the scores besides content to content: content to position, and the reverse."""


def distance_buckets(distance: ArrayLike, buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance, int32: itself when near, and by its logarithm beyond.

    Args:
        distance: query position minus key position.
        buckets: S; distances below S / 2 either way have buckets of their own.
        longest: distance from which the last bucket is used.
    """
    distance = np.asarray(distance)
    half = buckets // 2
    far = np.maximum(np.abs(distance), half)
    growth = np.log(far / half) / math.log((longest - 1) / half)
    coarse = np.ceil(growth * (half - 1)) + half
    near = np.abs(distance) <= half
    return np.where(near, distance, coarse * np.sign(distance)).astype(np.int32)


class Relative(NamedTuple):
    """What all layers share.

    entered_BTD, real_BT: inputs of the first layer, and which are no padding.
    vectors_RD: of distances, or None. rows_TT: the row of each pair of positions.
    """

    entered_BTD: jax.Array
    real_BT: Any
    vectors_RD: jax.Array | None = None
    rows_TT: np.ndarray | None = None


class DebertaLayer(BertLayer):
    """A layer whose scores have terms by distance."""

    def __init__(self, rngs: nnx.Rngs, settings: Any):
        super().__init__(rngs, settings)
        D, A = self.sizes.width, self.sizes.attention_size
        self.terms = settings.terms
        self.shared_keys = settings.shared_keys
        self.score_scale = 1 / math.sqrt(self.sizes.head_size * (1 + len(self.terms)))
        if not self.shared_keys and "c2p" in self.terms:
            self.position_keys_DA = parameter(rngs, normal(STD), D, A)
            self.position_keys_bias_A = parameter(rngs, zeros, A)
        if not self.shared_keys and "p2c" in self.terms:
            self.position_queries_DA = parameter(rngs, normal(STD), D, A)
            self.position_queries_bias_A = parameter(rngs, zeros, A)

    def attention_bias(self, queries_BTHK: jax.Array, seen: Seen, shared: Any) -> jax.Array:
        bias_BHTJ = super().attention_bias(queries_BTHK, seen, shared)
        if not self.terms:
            return bias_BHTJ
        return bias_BHTJ + self.score_scale * self._by_distance(queries_BTHK, seen.keys, shared)

    def _by_distance(self, queries_BTHK, keys, shared):
        """Returns the terms by distance, not scaled, (B, H, T, T)."""
        rows, H = jnp.asarray(shared.rows_TT), self.sizes.num_heads
        total = 0.0
        if "c2p" in self.terms:
            matrix_DA, bias_A = self.keys_DA, self.keys_bias_A
            if not self.shared_keys:
                matrix_DA, bias_A = self.position_keys_DA, self.position_keys_bias_A
            keys_RHK = split_heads(linear(shared.vectors_RD, matrix_DA, bias_A), H)
            scores_BHTR = at_least_float32(jnp.einsum("bthk,rhk->bhtr", queries_BTHK, keys_RHK))
            total += jnp.take_along_axis(scores_BHTR, rows[None, None], axis=3)
        if "p2c" in self.terms:
            matrix_DA, bias_A = self.queries_DA, self.queries_bias_A
            if not self.shared_keys:
                matrix_DA, bias_A = self.position_queries_DA, self.position_queries_bias_A
            queries_RHK = split_heads(linear(shared.vectors_RD, matrix_DA, bias_A), H)
            scores_BHJR = at_least_float32(
                jnp.einsum("bjhk,rhk->bhjr", keys.keys_BJGK, queries_RHK)
            )
            scores_BHJT = jnp.take_along_axis(scores_BHJR, rows.T[None, None], axis=3)
            total += jnp.swapaxes(scores_BHJT, 2, 3)
        return total


class Convolution(nnx.Module):
    """A convolution over an odd number of positions, added to the first layer's outputs."""

    def __init__(self, rngs: nnx.Rngs, width: int, kernel: int, activation: str, epsilon: float):
        # As on disk: out, in, position.
        self.matrix_DIW = parameter(rngs, normal(STD), width, width, kernel)
        self.bias_D = parameter(rngs, zeros, width)
        self.norm = Norm(rngs, width, epsilon)
        self.activation = activation

    def __call__(self, x_BTD: jax.Array, entered_BTD: jax.Array, real_BT: jax.Array) -> jax.Array:
        """Returns the outputs, 0 in padding; x and entered: outputs and inputs of the layer."""
        matrix_DIW = self.matrix_DIW[...].astype(x_BTD.dtype)
        y_BTD = jax.lax.conv_general_dilated(
            entered_BTD, matrix_DIW, (1,), "SAME", dimension_numbers=("NWC", "OIW", "NWC")
        )
        y_BTD = y_BTD + self.bias_D[...].astype(x_BTD.dtype)
        y_BTD = jnp.where(real_BT[..., None], y_BTD, 0)
        return self.norm(x_BTD + ACTIVATIONS[self.activation](y_BTD)) * real_BT[..., None]
