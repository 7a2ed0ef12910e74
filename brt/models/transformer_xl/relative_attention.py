"""Attention whose scores know distances: the four terms, at a cost linear in the distance.

    (a) q.k   (b) q.r   (c) u.k   (d) v.r        r: what is known of the distance

Both encodings have this form. Transformer-XL: r is a projected sinusoid, u and v are learned.
Shaw: r is a row of a table, and so is the number instead of v.r. Letters as in `brt.models`.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.fast.attention import (
    heads_first,
    softmax_gradients,
    summed_to,
    weighted_values,
)
from brt.models.layers.norms import wide


class Positions(NamedTuple):
    """Vectors and numbers of the distances J - 1, J - 2, ... in this order.

    keys_CHK: r of each distance, (C, H, K). bias_CH: term (d), v.r or a learned number.
    """

    keys_CHK: jax.Array
    bias_CH: jax.Array


class Terms(NamedTuple):
    """The four parts of the scores, scaled as these are, each (B, H, T, J) or broadcast to it.

    content, position, content_bias, position_bias: (a), (b), (c), (d); their sum is the score.
    Where a key lies in a query's future, (b) and (d) are without meaning if it is hidden.
    """

    content_BHTJ: jax.Array
    position_BHTJ: jax.Array
    content_bias_BHTJ: jax.Array
    position_bias_BHTJ: jax.Array


def distances(T: int, J: int, future: bool = False) -> jax.Array:
    """Returns the distances `shift` needs for T queries at the end of J keys: J - 1 ... 0, as (C,).

    future: also those to keys behind a query, -1 ... 1 - T.
    """
    return jnp.arange(J - 1, -T if future else -1, -1)


def shift(x_TC: jax.Array, J: int) -> jax.Array:
    """Turns scores by distance into scores by key: row i moved left by T - 1 - i, in one reshape.

    Args:
        x_TC: (..., T, C), column c holds distance J - 1 - c.
        J: keys; query i stands at key J - T + i.

    Returns:
        (..., T, J). With C = J + T - 1 every entry is that of its distance, negative ones too.
        With C = J those of keys behind the query are what the row below happens to hold: a
        zero for the next key, then distances of the next query (the released code's artefact).

    Source: Transformer-XL, appendix B.
    """
    return _moved(jnp.pad(x_TC, [(0, 0)] * (x_TC.ndim - 1) + [(1, 0)]), J)


def _moved(padded_TC, J):
    """`shift` of scores that have a column of zeros in front."""
    *leading, T, C = padded_TC.shape
    flat = padded_TC.reshape(*leading, T * C)[..., T:]
    return flat.reshape(*leading, T, C - 1)[..., :J]


def scores(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    content_bias_HK: jax.Array | None = None,
    positions: Positions | None = None,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Returns the sum of all terms over the root of K.

    Args:
        q_BTHK, k_BJHK: queries (B, T, H, K) and keys (B, J, H, K), J >= T.
        content_bias_HK: u, or None.
        positions: of `distances(T, J)`; None if positions are in the inputs.
        dtype: of the scores; None: float32 or wider.

    Returns:
        (B, H, T, J).

    Source: Transformer-XL, section 3.3.
    """
    dtype = dtype or wide(q_BTHK).dtype
    keys_CHK = None if positions is None else positions.keys_CHK
    s_BHTJ = _products(q_BTHK, k_BJHK, content_bias_HK, keys_CHK, dtype)
    if positions is not None:
        T, J = q_BTHK.shape[1], k_BJHK.shape[1]
        s_BHTJ = s_BHTJ + _bias_table(positions.bias_CH, T, J, q_BTHK.shape[-1]).astype(dtype)
    return s_BHTJ


def _products(q_BTHK, k_BJHK, content_bias_HK, keys_CHK, dtype):
    """Returns the terms (a) to (c) over the root of K."""
    biased = q_BTHK if content_bias_HK is None else q_BTHK + content_bias_HK.astype(q_BTHK.dtype)
    s_BHTJ = jnp.einsum("BTHK,BJHK->BHTJ", biased, k_BJHK, preferred_element_type=dtype)
    if keys_CHK is not None:
        # The column of zeros for `_moved` is the product with a key of zeros: no scores are copied.
        padded_CHK = jnp.pad(keys_CHK, [(1, 0), (0, 0), (0, 0)])
        # Not as an einsum, which would turn the products in memory.
        p_HBTC = jax.lax.dot_general(
            q_BTHK, padded_CHK, (((3,), (2,)), ((2,), (1,))), preferred_element_type=dtype
        )
        s_BHTJ = s_BHTJ + jnp.swapaxes(_moved(p_HBTC, k_BJHK.shape[1]), 0, 1)
    return s_BHTJ / math.sqrt(q_BTHK.shape[-1])


def _bias_table(bias_CH, T, J, K):
    """Returns the term (d) over the root of K, the same in all rows, (H, T, J)."""
    C, H = bias_CH.shape
    return shift(jnp.broadcast_to(bias_CH.T[:, None], (H, T, C)), J) / math.sqrt(K)


def score_terms(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    content_bias_HK: jax.Array | None = None,
    positions: Positions | None = None,
) -> Terms:
    """Returns the same scores as their four parts; arguments as `scores`. What is missing is zero.

    Source: Transformer-XL, section 3.3, terms (a) to (d).
    """
    T, J, root = q_BTHK.shape[1], k_BJHK.shape[1], math.sqrt(q_BTHK.shape[-1])
    content = scores(q_BTHK, k_BJHK)
    position = content_bias = position_bias = jnp.zeros((1, 1, 1, 1), content.dtype)
    if content_bias_HK is not None:
        content_bias = jnp.einsum("HK,BJHK->BHJ", content_bias_HK, k_BJHK)[:, :, None] / root
    if positions is not None:
        p_BHTC = jnp.einsum("BTHK,CHK->BHTC", q_BTHK, positions.keys_CHK)
        position = shift(p_BHTC, J) / root
        position_bias = _bias_table(positions.bias_CH, T, J, q_BTHK.shape[-1])
    parts = (content, position, content_bias, position_bias)
    return Terms(*(jnp.broadcast_to(part, content.shape) for part in parts))


def weights(
    scores_BHTJ: jax.Array, visible_BTJ: jax.Array, keep_BHTJ: jax.Array | None = None
) -> jax.Array:
    """Returns the softmax over the visible keys; hidden ones get exactly zero.

    visible_BTJ: (B, T, J) bool; every query must see a key. keep_BHTJ: dropout, or None.
    """
    hidden = jnp.finfo(scores_BHTJ.dtype).min
    w_BHTJ = jax.nn.softmax(jnp.where(visible_BTJ[:, None], scores_BHTJ, hidden), axis=-1)
    return w_BHTJ if keep_BHTJ is None else w_BHTJ * keep_BHTJ


def read_values(weights_BHTJ: jax.Array, v_BJHK: jax.Array) -> jax.Array:
    """Returns weighted sums of values, (B, T, H, K) in their type."""
    return jnp.einsum("BHTJ,BJHK->BTHK", weights_BHTJ.astype(v_BJHK.dtype), v_BJHK)


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def attend_by_distance(
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    v_BJHK: jax.Array,
    content_bias_HK: jax.Array | None,
    positions: Positions | None,
    visible_BTJ: jax.Array,
    kept_BHTJ: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Returns `read_values(weights(scores(...)))`, without weights kept for the backward pass.

    The backward pass computes them again, as that of `brt.models.layers.attention.attend`; it has
    derivatives in reverse only (no `jax.jvp`).

    Args:
        q_BTHK, k_BJHK, content_bias_HK, positions: as `scores` takes them.
        v_BJHK: values, (B, J, H, K).
        visible_BTJ: (B, T, J) bool; every query must see a key.
        kept_BHTJ: bool, weights that dropout keeps, or None.
        rate: of dropout; what is kept is multiplied by 1 / (1 - rate).

    Returns:
        (B, T, H, K) in the values' type.

    Source: Transformer-XL, section 3.3.
    """
    operands = q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ
    return _forward(*operands, rate)[0]


def _visible_scores(q_BTHK, k_BJHK, content_bias_HK, positions, visible_BTJ, dtype=None):
    s_BHTJ = scores(q_BTHK, k_BJHK, content_bias_HK, positions, dtype)
    return jnp.where(visible_BTJ[:, None], s_BHTJ, jnp.finfo(s_BHTJ.dtype).min)


def _keep(kept_BHTJ, rate, dtype):
    return None if kept_BHTJ is None else kept_BHTJ.astype(dtype) / (1.0 - rate)


def _forward(
    q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ=None, rate=0.0
):
    s_BHTJ = _visible_scores(q_BTHK, k_BJHK, content_bias_HK, positions, visible_BTJ)
    keep_BHTJ = _keep(kept_BHTJ, rate, s_BHTJ.dtype)
    softmax = weighted_values(s_BHTJ, heads_first(v_BJHK), keep_BHTJ)
    operands = q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ
    return heads_first(softmax.output_HQK), (operands, softmax)


def _backward(rate, residuals, gradient_BTHK):
    # As in `attend`: the forward pass's scores shall not be held in memory until now.
    operands, softmax, gradient_BTHK = jax.lax.optimization_barrier((*residuals, gradient_BTHK))
    q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ = operands
    asked = q_BTHK, k_BJHK, content_bias_HK, positions
    s_BHTJ = _visible_scores(*asked, visible_BTJ)
    keep_BHTJ = _keep(kept_BHTJ, rate, s_BHTJ.dtype)
    ds_BHTJ, dv_BHJK = softmax_gradients(
        softmax, s_BHTJ, heads_first(v_BJHK), keep_BHTJ, heads_first(gradient_BTHK)
    )
    # What reaches a hidden key is exactly zero. Products are in the activations' type.
    ds_BHTJ = ds_BHTJ.astype(q_BTHK.dtype)
    dpositions = keys_CHK = None
    if positions is not None:
        keys_CHK, bias_CH = positions
        T, J, K = q_BTHK.shape[1], k_BJHK.shape[1], q_BTHK.shape[-1]
        table_HTJ, bias_back = jax.vjp(lambda bias_CH: _bias_table(bias_CH, T, J, K), bias_CH)
        (dbias_CH,) = bias_back(summed_to(ds_BHTJ, table_HTJ))
    products = functools.partial(_products, dtype=q_BTHK.dtype)
    _, back = jax.vjp(products, q_BTHK, k_BJHK, content_bias_HK, keys_CHK)
    dq_BTHK, dk_BJHK, dbias_HK, dkeys_CHK = back(ds_BHTJ)
    if positions is not None:
        dpositions = Positions(dkeys_CHK, dbias_CH)
    dv_BJHK = heads_first(dv_BHJK).astype(v_BJHK.dtype)
    return dq_BTHK, dk_BJHK, dv_BJHK, dbias_HK, dpositions, None, None


attend_by_distance.defvjp(_forward, _backward)
