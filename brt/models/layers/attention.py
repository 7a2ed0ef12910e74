"""Softmax attention, the one plain form that every direction of every model uses."""

import jax
import jax.numpy as jnp

from brt.models.layers.norms import wide


def attend(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    table_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
) -> jax.Array:
    """Returns softmax(scale * q.k + table) v, for any leading axes (rows, blocks).

    A fused kernel may replace this function; it must agree in outputs and gradients.

    Args:
        q_QHK: queries, (..., Q, H, K).
        k_JHK: keys, (..., J, H, K).
        v_JHK: values, (..., J, H, K).
        scale_H: learned factor of each head, used through its absolute value.
        table_HQJ: added after the scaling: position bias and mask, (..., H, Q, J).
        keep_HQJ: multiplies the weights (dropout), (H, Q, J).

    Returns:
        (..., Q, H, K) in the values' type; scores and softmax are float32 or wider.

    Source: Block-Recurrent, section 3.2 (normalised queries and keys, learned scale).
    """
    scores = jnp.einsum(
        "...QHK,...JHK->...HQJ", q_QHK, k_JHK, preferred_element_type=wide(q_QHK).dtype
    )
    scores = scores * jnp.abs(scale_H)[:, None, None]
    if table_HQJ is not None:
        scores = scores + table_HQJ
    weights = jax.nn.softmax(scores, axis=-1)
    if keep_HQJ is not None:
        weights = weights * keep_HQJ
    return jnp.einsum("...HQJ,...JHK->...QHK", weights.astype(v_JHK.dtype), v_JHK)
