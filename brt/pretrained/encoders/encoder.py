"""The contract of an encoder: a body in which every position sees all others of its segment."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.layers.dropout import independent_dropout, keep_mask
from brt.models.layers.sizes import Sizes
from brt.models.shape_letters import constrain
from brt.pretrained.backbone import PretrainedBackbone, Reading
from brt.pretrained.backbone_layer import (
    HIDDEN,
    NOTHING,
    BackboneLayer,
    Heads,
    Reads,
    Seen,
    drops,
    with_extras,
)
from brt.pretrained.names import Tensor
from brt.token_ids import PADDING


class HeadNames(NamedTuple):
    """Names on disk of a head's matrices, without `.weight`.

    dense, output: of its two matrices. norm: between them, where there is one. bias: of its words.
    """

    dense: str
    output: str
    norm: str = ""
    bias: str = ""


class Encoder(PretrainedBackbone):
    """A body that reads a segment as a whole: the base of all encoders.

    Class attributes:
        architecture: how plain transformers calls the family, in names of its classes.
        classes_names, words_names, spans_name: of the heads in folders of its family.
        memory_after: positions of a segment that stand before memory vectors.
        takes_extras: whether vectors without a position may stand among a layer's keys.
        padding_learns: whether the word that stands for none takes a gradient where it is read.

    Attributes:
        embedding_VD: the table of words.
        padding_id: the row of the table that stands for no token.
        std: of matrices as they are drawn.
        head_activation: of the head for classes, by its name.
    """

    architecture: ClassVar[str]
    classes_names: ClassVar[HeadNames | None] = None
    words_names: ClassVar[HeadNames | None] = None
    spans_name: ClassVar[str | None] = None
    memory_after: ClassVar[int] = 1
    takes_extras: ClassVar[bool] = True
    padding_learns: ClassVar[bool] = False
    embedding_VD: nnx.Param
    padding_id: int
    std: float = 0.02
    head_activation: str = "tanh"

    def take_encoder(self, said: Mapping[str, Any], sizes: Sizes, activation_name: str) -> None:
        """Takes over settings that every encoder has as attributes."""
        self.take(said, sizes, activation_name)
        self.padding_id = said["padding_id"]

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Maps (B, T) ids, `PADDING` where there is none, to (B, T, D) vectors of words."""
        rows_BT = jnp.where(tokens_BT == PADDING, self.padding_id, jnp.maximum(tokens_BT, 0))
        x_BTD = self.embedding_VD[...].astype(self.dtype)[rows_BT]
        if not self.padding_learns:
            x_BTD = without_gradient_at(rows_BT == self.padding_id, x_BTD)
        return constrain(x_BTD, "BTD")

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        """Returns what enters the first layer.

        Args:
            x_BTD: vectors of words, or of memory.
            real_BT: bool, false where there is padding.
            types_BT: int32, which of two texts a position is of; None for the first.
        """
        raise NotImplementedError

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the last layer's outputs after the final norm, where there is one."""
        return x_BTD

    def shared(self, length: int) -> Any:
        """Returns what all layers share, computed once a segment of so many positions."""
        return None

    def attended(
        self,
        layer: BackboneLayer,
        heads: Heads,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None,
        shared: Any,
    ) -> jax.Array:
        """Returns what a layer's queries read, (B, T, H, K)."""
        return layer.attend(heads.queries_BTHK, positions_BT, seen, keep_HTJ)

    def after_layer(
        self, number: int, x_BTD: jax.Array, entered_BTD: jax.Array, real_BT: jax.Array
    ) -> jax.Array:
        """Returns a layer's outputs with what stands between it and the next."""
        return x_BTD

    def read(
        self,
        x_BTD: jax.Array,
        real_BT: jax.Array,
        reads: Reads = NOTHING,
        key: jax.Array | None = None,
        types_BT: jax.Array | None = None,
    ) -> Reading:
        """Reads a segment through all layers.

        Args:
            x_BTD: (B, T, D), from `embed`, or vectors of memory.
            real_BT: bool; what is padding is no key, and its outputs mean nothing.
            reads: what memories add.
            key: dropout key or None.
            types_BT: as of `enter`.
        """
        keys = self.dropout_keys(key)
        T = x_BTD.shape[1]
        with jax.named_scope("embedding"):
            x_BTD = self.enter(x_BTD, real_BT, types_BT)
            x_BTD = independent_dropout(x_BTD, self.dropout, keys[0])
            shared = self.shared(T)
        entered_BTD = x_BTD
        positions_BT = jnp.broadcast_to(jnp.arange(T), real_BT.shape)
        table_B1T = jnp.where(real_BT, 0.0, HIDDEN).astype(jnp.float32)[:, None]
        outputs = []
        own = []
        for i, (layer, layer_key) in enumerate(zip(self.layers, keys[1:], strict=True)):
            run: Callable[..., Any] = functools.partial(self._layer, i, layer, reads=reads)
            run = jax.checkpoint(run) if self.remat == "layer" else run
            with jax.named_scope(f"layer{i}"):
                x_BTD, layer_keys = run(x_BTD, positions_BT, table_B1T, shared, layer_key)
                x_BTD = self.after_layer(i, x_BTD, entered_BTD, real_BT)
            outputs.append(x_BTD)
            own.append(layer_keys)
        outputs[-1] = self.leave(x_BTD)
        return Reading(tuple(outputs), tuple(own))

    def _layer(self, i, layer, x_BTD, positions_BT, table_B1T, shared, key, reads):
        of_weights, of_outputs = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            heads = layer.heads(x_BTD)
            seen = with_extras(layer, Seen(heads.keys, positions_BT, table_B1T), i, reads)
            shape = layer.sizes.num_heads, x_BTD.shape[1], seen.positions_BJ.shape[1]
            keep_HTJ = keep_mask(of_weights, self.dropout, shape, jnp.float32)
            attended = self.attended(layer, heads, positions_BT, seen, keep_HTJ, shared)
        with jax.named_scope("memory"):
            attended = reads.attended(i, heads, attended)
            added_BTD, _ = reads.added(i, heads)
        drop = drops(of_outputs, self.dropout)
        return layer.finish(x_BTD, heads, attended, added_BTD, drop), heads.keys


def without_gradient_at(places_BT: jax.Array, x_BTD: jax.Array) -> jax.Array:
    """Returns vectors, those of some places as constants: a published table keeps those rows."""
    return jnp.where(places_BT[..., None], jax.lax.stop_gradient(x_BTD), x_BTD)


OLD_NORMS = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
"""Endings of names in old files, and what they are now."""


def optional(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors that a folder may lack."""
    return [tensor._replace(optional=True) for tensor in tensors]
