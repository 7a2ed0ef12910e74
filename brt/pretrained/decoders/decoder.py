"""The base of decoders."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.axis_rules import constrain, vectors
from brt.models.layers.embedding import TiedEmbedding
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.models.model import Predictions
from brt.pretrained.backbone import PretrainedBackbone, Reading
from brt.pretrained.backbone_layer import (
    NOTHING,
    STD,
    BackboneLayer,
    LayerKeys,
    Reads,
    RootNorm,
    Seen,
)
from brt.pretrained.names import Names, Tensor, layer_tensors, norm_tensors
from brt.pretrained.settings import HubConfig, Settings, first_id, hub
from brt.token_ids import BEGIN


def begin_of_text(default: int | None) -> Any:
    def absent(settings):
        known = default is not None and default < settings["vocabulary_size"]
        return default if known else None

    names = "bos_token_id", "eos_token_id"
    return hub(*names, default=None, absent=absent, read=first_id, written=names)


@dataclasses.dataclass(frozen=True)
class DecoderSettings(Settings):
    """The settings of a decoder.

    A family adds num_positions; tied, whether logits are products with the embedding matrix; and
    begin_id, the BOS token of a document.
    """

    head_name: ClassVar[str] = "lm_head.weight"
    embedding_name: ClassVar[str]
    prefix: ClassVar[str]

    @classmethod
    def adjust(cls, settings: dict[str, Any], config: HubConfig) -> None:
        short = cls.embedding_name.removeprefix(cls.prefix)
        settings["tied"] &= is_tied(config.folder, cls.head_name, cls.embedding_name, short)

    def resolved(self) -> Self:
        own: Any = super().resolved()
        begin_id = own.vocabulary_size - 1 if own.begin_id is None else own.begin_id
        F = own.feed_forward_size or 4 * own.width
        return dataclasses.replace(own, begin_id=begin_id, feed_forward_size=F)


def is_tied(folder: Any, head: str, *embeddings: str) -> bool:
    embedding = next((name for name in embeddings if name in folder.tensors), None)
    if head not in folder.tensors or embedding is None:
        return True
    if folder.tensors[head].shape != folder.tensors[embedding].shape:
        return False
    return bool((folder.read(head) == folder.read(embedding)).all())


class Decoder(PretrainedBackbone, TiedEmbedding, Predictions):
    """A backbone in which a position sees those before it.

    layer_type: builds a layer from rngs, settings and the layer's number, from 1.
    relative: whether its attention depends on differences of positions only.
    layers_name, norm_name: names on disk. ignored, old_endings: as in `Names`.
    """

    layer_type: ClassVar[Callable[..., BackboneLayer]]
    norm_type: ClassVar[type[LayerNorm | RootNorm]] = LayerNorm
    relative: ClassVar[bool] = False
    layers_name: ClassVar[str]
    norm_name: ClassVar[str]
    ignored: ClassVar[tuple[str, ...]]
    old_endings: ClassVar[tuple[tuple[str, str], ...]] = ()
    num_positions: int
    head_VD: nnx.Param
    final_norm: Callable[[jax.Array], jax.Array]

    @property
    def num_key_heads(self) -> int:
        return getattr(self.settings, "num_key_heads", self.sizes.num_heads)

    def build(self, rngs: nnx.Rngs) -> None:
        settings = self.settings
        self.embedding_VD = self.word_matrix(rngs)
        self.build_positions(rngs)
        count = settings.num_layers
        self.layers = nnx.List(self.layer_type(rngs, settings, i + 1) for i in range(count))
        self.final_norm = self.norm_type(rngs, self.width, epsilon=settings.epsilon)
        if not settings.tied:
            self.head_VD = self.word_matrix(rngs)

    def build_positions(self, rngs: nnx.Rngs) -> None:
        """Draws the embeddings of positions, if any."""

    def word_matrix(self, rngs: nnx.Rngs) -> nnx.Param:
        shape = self.vocabulary_size, self.width
        return parameter(rngs, normal(STD), *shape, purpose="embedding")

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        ids_BT = jnp.where(tokens_BT == BEGIN, self.settings.begin_id, jnp.maximum(tokens_BT, 0))
        return constrain(vectors(self.embedding_VD[...].astype(self.dtype), ids_BT), "BTD")

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return x_BTD

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        return self.final_norm(x_BTD)

    @property
    def head(self) -> nnx.Param:
        return self.embedding_VD if self.settings.tied else self.head_VD

    def read(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        seen: Callable[[int, LayerKeys], Seen],
        reads: Reads = NOTHING,
        key: jax.Array | None = None,
    ) -> Reading:
        """Runs all layers.

        seen: from a layer's number and its keys of these positions to the keys seen there, besides
        `Reads.extra`. With n * B batch elements, the queries of each form n blocks.
        """
        with jax.named_scope("embedding"):
            x_BTD = self.enter(x_BTD, positions_BT)
        return self.run(x_BTD, positions_BT, seen, reads, key)

    def names(self) -> Names:
        settings, count = self.settings, len(self.layers)
        tensors = [
            Tensor(settings.embedding_name, ("embedding_VD",)),
            *self.position_tensors(),
            *layer_tensors(count, "layers", self.layers_name, self.one_layer()),
            *norm_tensors(self.norm_name, "final_norm", bias=self.norm_type is LayerNorm),
        ]
        ignored = self.ignored
        if settings.tied:
            ignored = (*ignored, settings.head_name.replace(".", r"\."))
        else:
            tensors.append(Tensor(settings.head_name, ("head_VD",)))
        return Names(tuple(tensors), settings.prefix, ignored, self.old_endings)

    def position_tensors(self) -> list[Tensor]:
        return []

    def one_layer(self) -> list[Tensor]:
        """Returns the tensors of one layer, with names relative to it."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        config = super().config()
        tied, key = self.settings.tied, "tie_word_embeddings"
        config["architectures"] = [self.model_types[config["model_type"]]]
        if key in config or tied != self.settings.fields()["tied"].metadata["key"].absent:
            config[key] = tied
        return config
