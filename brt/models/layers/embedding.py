"""The embedding matrix: from ids to vectors, and from vectors to logits."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.axis_rules import constrain
from brt.models.layers.precision import at_least_float32
from brt.token_ids import BEGIN


def embedded(
    tokens_BT: jax.Array, embedding_VD: jax.Array, begin_D: jax.Array, dtype: DTypeLike
) -> jax.Array:
    """Returns (B, T, D) vectors of (B, T) ids, of which `BEGIN` has its own."""
    x_BTD = embedding_VD.astype(dtype)[jnp.maximum(tokens_BT, 0)]
    begins_BT1 = (tokens_BT == BEGIN)[..., None]
    return constrain(jnp.where(begins_BT1, begin_D.astype(dtype), x_BTD), "BTD")


def tied_logits(x_BTD: jax.Array, embedding_VD: jax.Array, divisor: float) -> jax.Array:
    """Maps (..., D) outputs to (..., V) logits by the embedding matrix, at least float32."""
    x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
    logits_BTV = jnp.einsum(
        "...D,VD->...V",
        x_BTD,
        embedding_VD.astype(x_BTD.dtype),
        preferred_element_type=at_least_float32(x_BTD).dtype,
    )
    return logits_BTV / divisor
