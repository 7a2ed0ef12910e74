"""A model of labelled documents that sums what it has read: the least that answers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.losses import token_losses
from brt.models.reader import Reader
from brt.token_ids import PADDING


class SumCache(NamedTuple):
    """The sum of all that was read of a document, (B, D); empty: zeros."""

    sum_BD: jax.Array


@configurable(denylist=["rngs"])
class SummingReader(Reader):
    """Scores classes by the sum of the embeddings of a document, all its segments."""

    dropout = 0.0
    dtype = np.dtype("float32")
    targets = "classes"

    def __init__(self, rngs: nnx.Rngs, vocabulary_size: int = 16, classes: int = 2):
        self.vocabulary_size = vocabulary_size
        self.classes = classes
        self.table_VD = parameter(rngs, normal(0.1), vocabulary_size, 8, purpose="embedding")
        self.classes_DC = parameter(rngs, normal(0.1), 8, classes, purpose="layers")

    def init_caches(self, rows: int) -> tuple:
        return (SumCache(jnp.zeros((rows, 8))),)

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        real_BT = tokens_BT != PADDING
        return self.table_VD[...][jnp.maximum(tokens_BT, 0)] * real_BT[..., None]

    def stack(self, x_BTD, caches, key=None):
        ((sum_BD,),) = caches
        sum_BD = sum_BD + x_BTD.sum(1)
        return jnp.broadcast_to(sum_BD[:, None], x_BTD.shape), (SumCache(sum_BD),), {}

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD @ self.classes_DC[...]

    def token_losses(self, x_BTD, targets_BT):
        inside_BT = jnp.minimum(targets_BT, self.classes - 1)
        return token_losses(self.logits(x_BTD), inside_BT)

    def answers(self, x_BTD: jax.Array) -> jax.Array:
        return self.logits(x_BTD[:, 0])

    def flops_per_token(self) -> float:
        return 16.0 * self.classes

    def divided_sizes(self) -> dict[str, int]:
        return {}
