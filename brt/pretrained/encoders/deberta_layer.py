"""Layers of DeBERTa, versions 2 and 3, whose scores have terms by distance.

Source: He et al. 2021, arXiv:2006.03654, and arXiv:2111.09543.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import zeros
from numpy.typing import ArrayLike

from brt.models.layers.attention import attend
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import wide
from brt.models.layers.sizes import Sizes
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import Heads, Norm, Seen
from brt.pretrained.encoders.bert import BertLayer

TERMS = ("c2p", "p2c")
"""Terms of the scores besides content to content: content to position, and the reverse."""


def distance_buckets(distance: ArrayLike, buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance: itself when near, and by its logarithm beyond.

    Args:
        distance: query position minus key position, integers of any shape.
        buckets: S; distances below S / 2 either way have buckets of their own.
        longest: distance from which the last bucket is used.

    Returns:
        int32 of the same shape, between -S + 1 and S - 1 for distances up to the longest.
    """
    distance = np.asarray(distance)
    half = buckets // 2
    far = np.maximum(np.abs(distance), half)
    growth = np.log(far / half) / math.log((longest - 1) / half)
    coarse = np.ceil(growth * (half - 1)) + half
    near = np.abs(distance) <= half
    return np.where(near, distance, coarse * np.sign(distance)).astype(np.int32)


class Relative(NamedTuple):
    """What layers share: the vectors of distances, (R, D), and the row of each pair, (T, T)."""

    vectors_RD: jax.Array
    rows_TT: np.ndarray


class DebertaLayer(BertLayer):
    """One layer, whose scores have terms by distance.

    Args:
        terms: of `TERMS`.
        own: whether vectors of distances have projections of their own, and not those of queries
            and keys.
        others: as of `BertLayer`.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        activation: str,
        epsilon: float,
        terms: Sequence[str],
        own: bool,
    ):
        super().__init__(rngs, sizes, activation, epsilon)
        D, A = sizes.width, sizes.attention_size
        self.terms = tuple(terms)
        self.own = own
        self.score_scale = 1 / math.sqrt(sizes.head_size * (1 + len(terms)))
        if own and "c2p" in terms:
            self.position_keys_DA = parameter(rngs, normal(0.02), D, A)
            self.position_keys_bias_A = parameter(rngs, zeros, A)
        if own and "p2c" in terms:
            self.position_queries_DA = parameter(rngs, normal(0.02), D, A)
            self.position_queries_bias_A = parameter(rngs, zeros, A)

    def attend_relative(
        self, heads: Heads, seen: Seen, keep_HTJ: jax.Array | None, relative: Relative | None
    ) -> jax.Array:
        """Returns what queries read, (B, T, H, K).

        Args:
            heads: queries and keys of the same positions.
            seen: these keys.
            keep_HTJ: multiplies the weights, or None.
            relative: None where no term is by distance.
        """
        queries_BTHK, keys = heads.queries_BTHK, seen.keys
        scale_H = jnp.full(queries_BTHK.shape[2], self.score_scale, wide(queries_BTHK).dtype)
        table = seen.table_BQJ[:, None]
        if relative is not None:
            table = table + self.score_scale * self._by_distance(heads, relative)
        return attend(queries_BTHK, keys.keys_BJGK, keys.values_BJGK, scale_H, table, keep_HTJ)

    def _by_distance(self, heads, relative):
        """Returns the terms by distance, not scaled, (B, H, T, T)."""
        rows = jnp.asarray(relative.rows_TT)
        total = 0.0
        if "c2p" in self.terms:
            prefix = "position_keys" if self.own else "keys"
            keys_RHK = self.project(relative.vectors_RD, prefix)
            scores_BHTR = wide(jnp.einsum("bthk,rhk->bhtr", heads.queries_BTHK, keys_RHK))
            total += jnp.take_along_axis(scores_BHTR, rows[None, None], axis=3)
        if "p2c" in self.terms:
            prefix = "position_queries" if self.own else "queries"
            queries_RHK = self.project(relative.vectors_RD, prefix)
            scores_BHJR = wide(jnp.einsum("bjhk,rhk->bhjr", heads.keys.keys_BJGK, queries_RHK))
            turned = jnp.take_along_axis(scores_BHJR, rows.T[None, None], axis=3)
            total += jnp.swapaxes(turned, 2, 3)
        return total


class Convolution(nnx.Module):
    """What is read of the neighbours of each position, added to the first layer's outputs.

    Args:
        width: D.
        kernel: positions it reads, odd.
        activation: by its name.
        epsilon: of the norm.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, kernel: int, activation: str, epsilon: float):
        # As on disk: out, in, place.
        self.matrix_DIW = parameter(rngs, normal(0.02), width, width, kernel)
        self.bias_D = parameter(rngs, zeros, width)
        self.norm = Norm(rngs, width, epsilon)
        self.activation = activation

    def __call__(self, x_BTD: jax.Array, entered_BTD: jax.Array, real_BT: jax.Array) -> jax.Array:
        """Returns the outputs, (B, T, D), 0 in padding.

        Args:
            x_BTD: outputs of the first layer.
            entered_BTD: its inputs.
            real_BT: bool.
        """
        matrix_DIW = self.matrix_DIW[...].astype(x_BTD.dtype)
        y_BTD = jax.lax.conv_general_dilated(
            entered_BTD, matrix_DIW, (1,), "SAME", dimension_numbers=("NWC", "OIW", "NWC")
        )
        y_BTD = y_BTD + self.bias_D[...].astype(x_BTD.dtype)
        y_BTD = jnp.where(real_BT[..., None], y_BTD, 0)
        squash = jnp.tanh if self.activation == "tanh" else ACTIVATIONS[self.activation]
        return self.norm(x_BTD + squash(y_BTD)) * real_BT[..., None]
