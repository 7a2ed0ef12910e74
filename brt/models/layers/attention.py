"""Softmax attention. Axes as in `brt.models`."""

import jax
import jax.numpy as jnp

from brt.models.fast.attention import attend_by_head, heads_first
from brt.models.layers.precision import at_least_float32


def attend(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
    sink_H: jax.Array | None = None,
) -> jax.Array:
    """Returns softmax(|scale| * q.k + bias) v, for any leading axes (batch, blocks).

    Args:
        q_QHK: queries, (..., Q, H, K).
        k_JHK, v_JHK: keys and values, (..., J, H, K).
        scale_H: learned factor of each head, used through its absolute value.
        bias_HQJ: position bias and mask, (..., H, Q, J). All but the last two axes may be 1.
        keep_HQJ: multiplies the weights (dropout), (H, Q, J), without a gradient.
        sink_H: score of one more key for each head, whose value is zero.

    Returns:
        (..., Q, H, K) in the values' type; scores and softmax are at least float32.

    Source: Block-Recurrent, section 3.2.
    """
    heads = map(heads_first, (q_QHK, k_JHK, v_JHK))
    return heads_first(attend_by_head(*heads, scale_H, bias_HQJ, keep_HQJ, sink_H))


def plain_attention(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
    sink_H: jax.Array | None = None,
) -> jax.Array:
    """Returns `attend`, differentiated by JAX: the reference of all other forms."""
    scores = jnp.einsum(
        "...QHK,...JHK->...HQJ", q_QHK, k_JHK, preferred_element_type=at_least_float32(q_QHK).dtype
    )
    scores = scores * jnp.abs(scale_H)[:, None, None]
    if bias_HQJ is not None:
        scores = scores + bias_HQJ
    if sink_H is not None:
        sink = jnp.broadcast_to(sink_H[:, None, None], (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink.astype(scores.dtype)], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : k_JHK.shape[-3]]
    if keep_HQJ is not None:
        weights = weights * keep_HQJ
    return jnp.einsum("...HQJ,...JHK->...QHK", weights.astype(v_JHK.dtype), v_JHK)
