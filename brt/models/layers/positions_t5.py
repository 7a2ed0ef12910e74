"""Relative position bias of T5, causal form: one learned number per head and bucket."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import ArrayLike

from brt.checks import Count, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.ops import HIDDEN


def t5_buckets(distance: ArrayLike, num_buckets: int = 32, max_distance: int = 128) -> np.ndarray:
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


@configurable(denylist=["rngs", "num_heads"])
class RelativeBias(WindowMask):
    """The bias of a window of W tokens; R buckets, the last from `max_distance` tokens on.

    Source: Block-Recurrent, section 3.2.
    """

    def __init__(
        self, rngs: nnx.Rngs, num_heads: Count, num_buckets: Count = 32, max_distance: Count = 128
    ):
        if not 1 <= num_buckets // 2 < max_distance:  # or buckets would not grow with distance
            raise ValueError(
                f"RelativeBias.num_buckets = {num_buckets} must be 2 or more, and half of it below "
                f"RelativeBias.max_distance = {max_distance}."
            )
        self.max_distance = max_distance
        self.table_HR = parameter(
            rngs, normal(num_buckets**-0.5), num_heads, num_buckets, multiplied=False
        )

    def by_distance(self, scale_H: jax.Array, window: int) -> jax.Array:
        buckets = t5_buckets(np.arange(1, window + 1), self.table_HR.shape[1], self.max_distance)
        return self.table_HR[...][:, buckets] * scale_H[:, None]
