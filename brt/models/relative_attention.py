"""Scores of relative attention: four terms, at a cost linear in the number of distances.

    (a) q.k   (b) q.r   (c) u.k   (d) v.r        r: vector of the distance

Transformer-XL: r is a projected sinusoid; u and v are learned. Shaw: r and, instead of v.r, a bias
are learned for each distance.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.ops import at_least_float32


class Positions(NamedTuple):
    """Keys r, (C, H, K), and term (d), (C, H), of the distances J - 1, J - 2, ..."""

    keys_CHK: jax.Array
    bias_CH: jax.Array


class Terms(NamedTuple):
    """The terms (a) to (d) over sqrt(K), each (B, H, T, J); their sum is the score.

    For keys in a query's future, (b) and (d) are only valid with `future` distances.
    """

    content_BHTJ: jax.Array
    position_BHTJ: jax.Array
    content_bias_BHTJ: jax.Array
    position_bias_BHTJ: jax.Array


def distances(T: int, J: int, future: bool = False) -> jax.Array:
    """Returns the distances, (C,), of T queries at the end of J keys: J - 1 ... 0.

    future: also those of future keys, -1 ... 1 - T.
    """
    return jnp.arange(J - 1, -T if future else -1, -1)


def shift(x_TC: jax.Array, J: int) -> jax.Array:
    """Skews scores by distance into scores by key: row i moves left by T - 1 - i, in one reshape.

    x_TC: (..., T, C), column c has distance J - 1 - c. Query i is at key J - T + i. Returns (...,
    T, J). With C = J + T - 1 all entries are exact; with C = J those of future keys are zeros or of
    the next query, as in the released code.

    Source: Transformer-XL, appendix B.
    """
    return shift_padded(jnp.pad(x_TC, [(0, 0)] * (x_TC.ndim - 1) + [(1, 0)]), J)


def shift_padded(padded_TC: jax.Array, J: int) -> jax.Array:
    *leading, T, C = padded_TC.shape
    flat = padded_TC.reshape(*leading, T * C)[..., T:]
    return flat.reshape(*leading, T, C - 1)[..., :J]


def scores(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    content_bias_HK: jax.Array | None = None,
    positions: Positions | None = None,
) -> jax.Array:
    """Returns the sum of all terms over sqrt(K), (B, H, T, J), at least float32.

    Args:
        q_BTHK, k_BJHK: queries and keys, J >= T.
        positions: of `distances(T, J)`; None if the inputs contain their positions.

    Source: Transformer-XL, section 3.3.
    """
    dtype = at_least_float32(q_BTHK).dtype
    keys_CHK = None if positions is None else positions.keys_CHK
    s_BHTJ = query_terms(q_BTHK, k_BJHK, content_bias_HK, keys_CHK, dtype)
    if positions is not None:
        T, J = q_BTHK.shape[1], k_BJHK.shape[1]
        s_BHTJ += position_bias(positions.bias_CH, T, J, q_BTHK.shape[-1]).astype(dtype)
    return s_BHTJ


def query_terms(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    content_bias_HK: jax.Array | None,
    keys_CHK: jax.Array | None,
    dtype: DTypeLike,
) -> jax.Array:
    """Returns the terms (a) to (c) over sqrt(K)."""
    biased = q_BTHK if content_bias_HK is None else q_BTHK + content_bias_HK.astype(q_BTHK.dtype)
    s_BHTJ = jnp.einsum("BTHK,BJHK->BHTJ", biased, k_BJHK, preferred_element_type=dtype)
    if keys_CHK is not None:
        # A key of zeros gives the column of zeros of `shift` without a copy of the scores.
        padded_CHK = jnp.pad(keys_CHK, [(1, 0), (0, 0), (0, 0)])
        # An einsum would transpose the products in memory.
        p_HBTC = jax.lax.dot_general(
            q_BTHK, padded_CHK, (((3,), (2,)), ((2,), (1,))), preferred_element_type=dtype
        )
        s_BHTJ = s_BHTJ + jnp.swapaxes(shift_padded(p_HBTC, k_BJHK.shape[1]), 0, 1)
    return s_BHTJ / math.sqrt(q_BTHK.shape[-1])


def position_bias(bias_CH: jax.Array, T: int, J: int, K: int) -> jax.Array:
    """Returns the term (d) over sqrt(K), (H, T, J)."""
    C, H = bias_CH.shape
    return shift(jnp.broadcast_to(bias_CH.T[:, None], (H, T, C)), J) / math.sqrt(K)


def score_terms(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    content_bias_HK: jax.Array | None = None,
    positions: Positions | None = None,
) -> Terms:
    T, J, root = q_BTHK.shape[1], k_BJHK.shape[1], math.sqrt(q_BTHK.shape[-1])
    content = scores(q_BTHK, k_BJHK)
    position = content_bias = bias = jnp.zeros((1, 1, 1, 1), content.dtype)
    if content_bias_HK is not None:
        content_bias = jnp.einsum("HK,BJHK->BHJ", content_bias_HK, k_BJHK)[:, :, None] / root
    if positions is not None:
        p_BHTC = jnp.einsum("BTHK,CHK->BHTC", q_BTHK, positions.keys_CHK)
        position = shift(p_BHTC, J) / root
        bias = position_bias(positions.bias_CH, T, J, q_BTHK.shape[-1])
    parts = (content, position, content_bias, bias)
    return Terms(*(jnp.broadcast_to(part, content.shape) for part in parts))


def visible_scores(scores_BHTJ: jax.Array, visible_BTJ: jax.Array) -> jax.Array:
    return jnp.where(visible_BTJ[:, None], scores_BHTJ, jnp.finfo(scores_BHTJ.dtype).min)


def weights(
    scores_BHTJ: jax.Array, visible_BTJ: jax.Array, keep_BHTJ: jax.Array | None = None
) -> jax.Array:
    """Returns the softmax over the visible keys; every query must have one."""
    w_BHTJ = jax.nn.softmax(visible_scores(scores_BHTJ, visible_BTJ), axis=-1)
    return w_BHTJ if keep_BHTJ is None else w_BHTJ * keep_BHTJ


def read_values(weights_BHTJ: jax.Array, v_BJHK: jax.Array) -> jax.Array:
    return jnp.einsum("BHTJ,BJHK->BTHK", weights_BHTJ.astype(v_BJHK.dtype), v_BJHK)


def plain_attend_by_distance(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    v_BJHK: jax.Array,
    content_bias_HK: jax.Array | None,
    positions: Positions | None,
    visible_BTJ: jax.Array,
    kept_BHTJ: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Returns relative attention, (B, T, H, K), differentiated by JAX.

    visible_BTJ: bool; every query must see a key. kept_BHTJ: bool, weights that dropout keeps.
    """
    s_BHTJ = scores(q_BTHK, k_BJHK, content_bias_HK, positions)
    keep_BHTJ = None if kept_BHTJ is None else kept_BHTJ / (1.0 - rate)
    return read_values(weights(s_BHTJ, visible_BTJ, keep_BHTJ), v_BJHK)
