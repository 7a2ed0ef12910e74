"""From ids to vectors, by a table and a vector for a document's beginning."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.shape_letters import constrain
from brt.token_ids import BEGIN


def embedded(
    tokens_BT: jax.Array, table_VD: jax.Array, begin_D: jax.Array, dtype: DTypeLike
) -> jax.Array:
    """Maps (B, T) ids to (B, T, D): rows of the table, or the vector of `BEGIN`."""
    x_BTD = table_VD.astype(dtype)[jnp.maximum(tokens_BT, 0)]
    begins_BT1 = (tokens_BT == BEGIN)[..., None]
    return constrain(jnp.where(begins_BT1, begin_D.astype(dtype), x_BTD), "BTD")
