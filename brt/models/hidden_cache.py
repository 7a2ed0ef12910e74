"""What Transformer-XL remembers: the inputs of each layer at the last M positions.

The buffer's size is fixed; how much of it is filled is counted, per row. Letters as in
`brt.models`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from brt.models.caches import select_rows


class HiddenCache(NamedTuple):
    """A layer's inputs at the last M positions, the newest last.

    x_BMD: (B, M, D) in the activations' type, zeros where nothing is remembered yet.
    count_B: (B,) int32, how many of the last places are filled, 0 ... M. Empty: 0, and
        what is not filled is not seen.
    """

    x_BMD: jax.Array
    count_B: jax.Array

    def clear_state(self, empty):
        return self  # a window, if a long one


class DecodingHidden(NamedTuple):
    """The cache and the segment being filled.

    x_BJD: (B, M + P, D), the M positions before the segment, then those of the segment,
        zeros beyond the fill.
    count_B: (B,) int32, as in `HiddenCache`. fill_B: (B,) int32, tokens of the segment read
        so far, 0 ... P - 1.
    """

    x_BJD: jax.Array
    count_B: jax.Array
    fill_B: jax.Array


def empty_cache(rows: int, M: int, D: int, dtype) -> HiddenCache:
    """Nothing remembered yet."""
    return HiddenCache(jnp.zeros((rows, M, D), dtype), jnp.zeros(rows, jnp.int32))


def remember(cache: HiddenCache, x_BTD) -> HiddenCache:
    """The last M positions of the old cache and the new inputs, without gradient.

    Source: Transformer-XL, section 3.2 (h = [SG(m), h]) and the released code's update.
    """
    M, T = cache.x_BMD.shape[1], x_BTD.shape[1]
    x_BJD = jnp.concatenate([cache.x_BMD, x_BTD.astype(cache.x_BMD.dtype)], axis=1)
    return HiddenCache(jax.lax.stop_gradient(x_BJD[:, T:]), jnp.minimum(cache.count_B + T, M))


def visible_keys(count_B, distance_TJ, M: int, same_length: bool = False):
    """Which keys, of a cache of M places and a segment, each query sees.

    Args:
        count_B: (B,) int32, filled places of the cache.
        distance_TJ: (T, J) or (B, T, J) int, from key to query.
        M: places of the cache, which are the first M keys.
        same_length: a query sees the last M keys only, itself included.

    Returns:
        (B, T, J) bool.

    Source: Transformer-XL's released PyTorch code, for the count of `same_length`.
    """
    seen = distance_TJ >= 0
    if same_length:
        seen &= distance_TJ < M
    filled_BJ = jnp.arange(distance_TJ.shape[-1]) >= M - count_B[:, None]
    return filled_BJ[:, None] & seen


def open_segment(cache: HiddenCache, P: int, x_BPD=None, fill_B=None) -> DecodingHidden:
    """The decoding form: the cache, and room for a segment of P tokens.

    x_BPD, fill_B: of a segment of which each row has read the first `fill_B` tokens only.
    """
    B, _, D = cache.x_BMD.shape
    if x_BPD is None:
        x_BPD, fill_B = jnp.zeros((B, P, D), cache.x_BMD.dtype), jnp.zeros(B, jnp.int32)
    read_BP = jnp.arange(P) < fill_B[:, None]
    x_BPD = jnp.where(read_BP[..., None], x_BPD.astype(cache.x_BMD.dtype), 0)
    return DecodingHidden(jnp.concatenate([cache.x_BMD, x_BPD], axis=1), cache.count_B, fill_B)


def write(cache: DecodingHidden, x_BD, M: int, reads_B=True) -> DecodingHidden:
    """Puts one token's input at each row's fill; `advance` counts it later."""
    rows, place = jnp.arange(cache.fill_B.shape[0]), M + cache.fill_B
    x_BD = x_BD.astype(cache.x_BJD.dtype)
    if reads_B is not True:
        x_BD = select_rows(reads_B, x_BD, cache.x_BJD[rows, place])
    return cache._replace(x_BJD=cache.x_BJD.at[rows, place].set(x_BD))


def advance(cache: DecodingHidden, M: int, reads_B=True) -> DecodingHidden:
    """Counts the token just written; the inputs of a full segment move into the cache."""
    P = cache.x_BJD.shape[1] - M
    counted = cache._replace(fill_B=cache.fill_B + jnp.asarray(reads_B, jnp.int32))
    full_B = counted.fill_B == P

    def move(cache):
        x_BJD = jnp.concatenate([cache.x_BJD[:, P:], jnp.zeros_like(cache.x_BJD[:, :P])], axis=1)
        count_B = jnp.minimum(cache.count_B + P, M)
        moved = DecodingHidden(x_BJD, count_B, jnp.zeros_like(cache.fill_B))
        return select_rows(full_B, moved, cache)

    return jax.lax.cond(jnp.any(full_B), move, lambda cache: cache, counted)


def close_segment(cache: DecodingHidden, M: int) -> HiddenCache:
    """The segment form of a cache whose rows all stand at a segment's end (fill 0)."""
    return HiddenCache(cache.x_BJD[:, :M], cache.count_B)
