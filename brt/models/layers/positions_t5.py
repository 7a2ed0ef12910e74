"""Relative position bias of T5, causal form: one learned number per head and bucket."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import ArrayLike

from brt.models.layers.initializers import normal, parameter
from brt.models.ops import HIDDEN

BUCKETS = 32


def t5_buckets(
    distance: ArrayLike, num_buckets: int = BUCKETS, max_distance: int = 128
) -> np.ndarray:
    """Returns the bucket of each query-key distance in tokens, causal form, int32 of its shape.

    Half of the buckets hold one distance each, the rest grow geometrically. Future keys (negative)
    are in bucket 0, distances of `max_distance` or more in the last.

    Source: Raffel et al. 2020, section 2.1, arXiv:1910.10683.
    """
    tokens = np.maximum(np.asarray(distance), 0)
    exact = num_buckets // 2
    growth = np.log(np.maximum(tokens, exact) / exact) / np.log(max_distance / exact)
    coarse = exact + (growth * (num_buckets - exact)).astype(np.int32)
    buckets = np.where(tokens < exact, tokens, np.minimum(coarse, num_buckets - 1))
    return buckets.astype(np.int32)


class WindowMask(nnx.Module):
    """A window of W tokens without a bias of positions."""

    def by_distance(self, scale_H: jax.Array, window: int) -> jax.Array:
        """Returns the bias of distances 1 ... W, (H, W).

        scale_H: the factor of the scores and of the bias.
        """
        return jnp.zeros((len(scale_H), window), scale_H.dtype)

    def token_table(self, scale_H: jax.Array, window: int, fill_B: jax.Array) -> jax.Array:
        """Returns the bias of each batch element's next token while decoding, (B, H, 1, 2W).

        fill_B: (B,) int32, the token's position in its block.
        """
        distance_BJ = window + fill_B[:, None] - jnp.arange(2 * window)
        visible_BJ = (distance_BJ >= 1) & (distance_BJ <= window)
        bias_HW = self.by_distance(scale_H, window)
        bias_HBJ = bias_HW[:, jnp.clip(distance_BJ - 1, 0, window - 1)]
        return jnp.moveaxis(jnp.where(visible_BJ, bias_HBJ, HIDDEN), 0, 1)[:, :, None]


class RelativeBias(WindowMask):
    """The bias of a window of W tokens: a number for each head and each of R = 32 buckets.

    Source: Block-Recurrent, section 3.2.
    """

    def __init__(self, rngs: nnx.Rngs, num_heads: int):
        draw = normal(BUCKETS**-0.5)
        self.table_HR = parameter(rngs, draw, num_heads, BUCKETS, multiplied=False)

    def by_distance(self, scale_H: jax.Array, window: int) -> jax.Array:
        return self.table_HR[...][:, t5_buckets(np.arange(1, window + 1))] * scale_H[:, None]
