"""The embedding matrix."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from brt.models.axis_rules import constrain, vectors
from brt.models.fast.chunked_losses import chunked_losses, weighted_losses
from brt.models.layers.initializers import normal, parameter
from brt.models.ops import at_least_float32
from brt.token_ids import BEGIN


class TiedEmbedding(nnx.Module):
    """The base of models whose logits are products with a matrix, over a divisor.

    head: the matrix, (V, D): the embedding, unless a subclass has another.
    """

    embedding_VD: nnx.Param
    begin_D: nnx.Param
    logits_divisor: float = 1.0
    dtype: np.dtype

    @property
    def head(self) -> nnx.Param:
        return self.embedding_VD

    def add_embedding(self, rngs: nnx.Rngs, rows: int, width: int, divisor: float) -> None:
        self.embedding_VD = parameter(rngs, normal(1.0), rows, width, purpose="embedding")
        self.begin_D = parameter(rngs, normal(1.0), width, purpose="embedding")
        self.logits_divisor = divisor

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        return embedded(tokens_BT, self.embedding_VD[...], self.begin_D[...], self.dtype)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        return tied_logits(x_BTD, self.head[...], self.logits_divisor)

    def token_losses(self, x_BTD: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        return chunked_losses(x_BTD, self.head[...], targets_BT, self.logits_divisor)

    def weighted_losses(
        self, x_KBTD: jax.Array, targets_KBT: jax.Array, weights_KBT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        head_VD, divisor = self.head[...], self.logits_divisor
        return weighted_losses(x_KBTD, head_VD, targets_KBT, weights_KBT, divisor)


def embedded(
    tokens_BT: jax.Array, embedding_VD: jax.Array, begin_D: jax.Array, dtype: DTypeLike
) -> jax.Array:
    x_BTD = vectors(embedding_VD.astype(dtype), jnp.maximum(tokens_BT, 0))
    begins_BT1 = (tokens_BT == BEGIN)[..., None]
    return constrain(jnp.where(begins_BT1, begin_D.astype(dtype), x_BTD), "BTD")


def tied_logits(x_BTD: jax.Array, embedding_VD: jax.Array, divisor: float) -> jax.Array:
    x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
    logits_BTV = jnp.einsum(
        "...D,VD->...V",
        x_BTD,
        embedding_VD.astype(x_BTD.dtype),
        preferred_element_type=at_least_float32(x_BTD).dtype,
    )
    return logits_BTV / divisor
