"""Relative position bias of T5, causal form: one learned number per head and bucket."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import ArrayLike

from brt.checks import Count, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.sizes import tile_size

HIDDEN = -1e6


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
    """The mask of a window of W tokens, for blocks of W queries and 2W keys; no bias."""

    def window_table(
        self, scale_H: jax.Array, window: int, queries: int | None = None
    ) -> jax.Array:
        """Returns the attention bias of a block, (H, W, 2W): the scaled bias, or `HIDDEN`.

        Query i of a block and key j of [previous block, block] are W + i - j tokens apart; a token
        sees distances 1 ... W, never itself. scale_H: the factor of scores and bias. queries: only
        the first so many, a multiple of `TILE`, and as many keys of their block.
        """
        W, N = window, queries or window
        Q = tile_size(W)
        bias_HW = self._by_distance(scale_H, W)[:, ::-1]
        # Skews the bias of each distance into the rows of the first Q queries (the Toeplitz trick),
        # so that the gradient is a sum and not a scatter.
        before, behind = (
            jnp.full((len(bias_HW), columns), HIDDEN, bias_HW.dtype) for columns in (N - Q, N + 1)
        )
        row = jnp.concatenate([before, bias_HW, behind], axis=1)
        columns = row.shape[1] - 1
        rows_HQJ = jnp.tile(row, (1, Q))[:, : Q * columns].reshape(-1, Q, columns)
        # The next Q queries see the same, Q columns further right.
        starts = range(N - Q, -1, -Q)
        return jnp.concatenate([rows_HQJ[..., start : start + W + N] for start in starts], axis=1)

    def token_table(self, scale_H: jax.Array, window: int, fill_B: jax.Array) -> jax.Array:
        """Returns the bias of each batch element's next token while decoding, (B, H, 1, 2W).

        fill_B: (B,) int32, the token's position in its block.
        """
        distance_BJ = window + fill_B[:, None] - jnp.arange(2 * window)
        visible_BJ = (distance_BJ >= 1) & (distance_BJ <= window)
        bias_HW = self._by_distance(scale_H, window)
        bias_HBJ = bias_HW[:, jnp.clip(distance_BJ - 1, 0, window - 1)]
        return jnp.moveaxis(jnp.where(visible_BJ, bias_HBJ, HIDDEN), 0, 1)[:, :, None]

    def _by_distance(self, scale_H, window):
        return jnp.zeros((len(scale_H), window), scale_H.dtype)


@configurable
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

    def _by_distance(self, scale_H, window):
        buckets = t5_buckets(np.arange(1, window + 1), self.table_HR.shape[1], self.max_distance)
        return self.table_HR[...][:, buckets] * scale_H[:, None]
