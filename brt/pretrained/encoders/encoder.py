"""The base of encoders: every position sees all others of its segment."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.axis_rules import constrain, vectors
from brt.pretrained.backbone import PretrainedBackbone, Reading
from brt.pretrained.backbone_layer import NOTHING, STD, Reads, Seen, attention_bias
from brt.token_ids import PADDING


class HeadNames(NamedTuple):
    dense: str
    output: str


class Encoder(PretrainedBackbone):
    """A backbone that runs on a whole segment.

    memory_after: positions of a segment in front of memory vectors.
    takes_extras: whether a layer's keys may include vectors without a position.
    padding_learns: whether the embedding of padding has a gradient.
    """

    classes_names: ClassVar[HeadNames | None] = None
    spans_name: ClassVar[str | None] = None
    memory_after: ClassVar[int] = 1
    takes_extras: ClassVar[bool] = True
    padding_learns: ClassVar[bool] = False
    std: ClassVar[float] = STD
    embedding_VD: nnx.Param

    @property
    def head_activation(self) -> str:
        return "tanh"

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Maps (B, T) ids or `PADDING` to (B, T, D) embeddings."""
        padding_id = self.settings.padding_id
        ids_BT = jnp.where(tokens_BT == PADDING, padding_id, jnp.maximum(tokens_BT, 0))
        x_BTD = vectors(self.embedding_VD[...].astype(self.dtype), ids_BT)
        if not self.padding_learns:
            x_BTD = without_gradient_at(ids_BT == padding_id, x_BTD)
        return constrain(x_BTD, "BTD")

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        return x_BTD

    def read(
        self,
        x_BTD: jax.Array,
        real_BT: jax.Array,
        reads: Reads = NOTHING,
        key: jax.Array | None = None,
        types_BT: jax.Array | None = None,
    ) -> Reading:
        """Runs all layers on a segment.

        real_BT: bool; padding is no key, and its outputs are undefined.
        types_BT: int32, which of two texts a position belongs to; None: the first.
        """
        with jax.named_scope("embedding"):
            x_BTD = self.enter(x_BTD, real_BT, types_BT)
        positions_BT = jnp.broadcast_to(jnp.arange(x_BTD.shape[1]), real_BT.shape)
        bias_B1T = attention_bias(real_BT)[:, None]

        def seen(_, keys):
            return Seen(keys, positions_BT, bias_B1T)

        return self.run(x_BTD, positions_BT, seen, reads, key, real_BT)


def without_gradient_at(positions_BT: jax.Array, x_BTD: jax.Array) -> jax.Array:
    """Returns vectors, some as constants: published matrices keep the rows of padding."""
    return jnp.where(positions_BT[..., None], jax.lax.stop_gradient(x_BTD), x_BTD)
