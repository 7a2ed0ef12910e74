"""The base of GPT-2, Llama and GPT-NeoX: backbones in which a position sees those before it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.layers.dropout import independent_dropout, keep_mask
from brt.models.layers.norms import wide
from brt.models.layers.sizes import Sizes
from brt.models.shape_letters import constrain
from brt.pretrained.backbone import PretrainedBackbone, Reading
from brt.pretrained.backbone_layer import NOTHING, LayerKeys, Reads, Seen, drops, with_extras
from brt.token_ids import BEGIN


class Decoder(PretrainedBackbone):
    """A body that reads from left to right: the base of GPT-2, Llama and GPT-NeoX.

    Class attributes:
        relative: whether its attention depends on differences of positions only.

    Attributes:
        num_positions: R, a number.
        num_key_heads: G.
        begin_id: the row of the table that stands before a document's first token.
        embedding_VD: the table of words. tied: whether logits are products with it; else with
            head_VD.
        final_norm: of the last layer's outputs.
    """

    relative: ClassVar[bool] = False
    num_positions: int
    num_key_heads: int
    begin_id: int
    embedding_VD: nnx.Param
    head_VD: nnx.Param
    tied: bool
    final_norm: Callable[[jax.Array], jax.Array]

    def take_decoder(
        self, said: Mapping[str, Any], sizes: Sizes, activation_name: str, num_key_heads: int
    ) -> None:
        """Takes over settings that every decoder has as attributes.

        Raises:
            ValueError: the word before a document is none of the vocabulary.
        """
        self.take(said, sizes, activation_name)
        self.num_key_heads = num_key_heads
        self.num_positions = said["num_positions"]
        self.tied = said["tied"]
        begin_id = said["begin_id"]
        self.begin_id = self.vocabulary_size - 1 if begin_id is None else begin_id
        if not 0 <= self.begin_id < self.vocabulary_size:
            raise ValueError(
                f"{type(self).__name__}.begin_id = {begin_id} lies beyond the "
                f"{self.vocabulary_size} words."
            )

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Maps (B, T) ids to (B, T, D) vectors of words, without positions."""
        rows_BT = jnp.where(tokens_BT == BEGIN, self.begin_id, jnp.maximum(tokens_BT, 0))
        return constrain(self.embedding_VD[...].astype(self.dtype)[rows_BT], "BTD")

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Returns what enters the first layer."""
        return x_BTD

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the last layer's outputs after the final norm."""
        return self.final_norm(x_BTD)

    @property
    def head(self) -> nnx.Param:
        """The matrix of the logits, (V, D)."""
        return self.embedding_VD if self.tied else self.head_VD

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Maps (..., D) to (..., V), float32 or wider."""
        x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
        table_VD = self.head[...].astype(x_BTD.dtype)
        return jnp.einsum(
            "...D,VD->...V", x_BTD, table_VD, preferred_element_type=wide(x_BTD).dtype
        )

    def read(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        seen: Callable[[int, LayerKeys], Seen],
        reads: Reads = NOTHING,
        key: jax.Array | None = None,
    ) -> Reading:
        """Reads positions through all layers.

        Args:
            x_BTD: (B, T, D), from `embed`, or vectors of memory.
            positions_BT: (B, T) int32.
            seen: from a layer's number and the keys of these positions in it to what the
                positions see there, besides the extra vectors of `reads`. With a multiple of B
                rows each row of queries is cut into as many blocks, which see keys of their own.
            reads: what memories add.
            key: dropout key or None.
        """
        keys = self.dropout_keys(key)
        with jax.named_scope("embedding"):
            x_BTD = self.enter(x_BTD, positions_BT)
            x_BTD = independent_dropout(x_BTD, self.dropout, keys[0])
        outputs = []
        own = []
        kept = []
        for i, (layer, layer_key) in enumerate(zip(self.layers, keys[1:], strict=True)):
            run: Callable[..., Any] = functools.partial(
                self._layer, i, layer, seen=seen, reads=reads
            )
            run = jax.checkpoint(run) if self.remat == "layer" else run
            with jax.named_scope(f"layer{i}"):
                x_BTD, layer_keys, layer_kept = run(x_BTD, positions_BT, key=layer_key)
            outputs.append(x_BTD)
            own.append(layer_keys)
            kept.append(layer_kept)
        outputs[-1] = self.leave(x_BTD)
        return Reading(tuple(outputs), tuple(own), tuple(kept))

    def _layer(self, i, layer, x_BTD, positions_BT, seen, reads, key):
        of_weights, of_outputs = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            heads = layer.heads(x_BTD)
            found = with_extras(layer, seen(i, heads.keys), i, reads)
            blocks, J = found.positions_BJ.shape
            q_BTHK = heads.queries_BTHK
            # A row's queries in several blocks, each of which sees keys of its own.
            q_GTHK = q_BTHK.reshape(blocks, -1, *q_BTHK.shape[2:])
            positions_GT = positions_BT.reshape(q_GTHK.shape[:2])
            shape = layer.sizes.num_heads, q_GTHK.shape[1], J
            keep_HTJ = keep_mask(of_weights, self.dropout, shape, jnp.float32)
            attended = layer.attend(q_GTHK, positions_GT, found, keep_HTJ).reshape(q_BTHK.shape)
        with jax.named_scope("memory"):
            attended = reads.attended(i, heads, attended)
            added_BTD, kept = reads.added(i, heads)
        drop = drops(of_outputs, self.dropout)
        return layer.finish(x_BTD, heads, attended, added_BTD, drop), heads.keys, kept
