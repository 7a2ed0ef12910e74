"""BERT and RoBERTa: learned positions, norms after attention and MLP.

Source: Devlin et al. 2019, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; folders of
`model_type` bert and roberta.
"""

import dataclasses
import functools
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx

from brt.checks import Count, CountFrom0, Positive, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.pretrained.activations import Activation
from brt.pretrained.backbone_layer import DenseLayer
from brt.pretrained.encoders.encoder import Encoder, HeadNames, without_gradient_at
from brt.pretrained.names import Names, Tensor, layer_tensors, matrix_tensors, norm_tensors
from brt.pretrained.settings import Misfit, Settings, first_id, hub

OLD_NORMS = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))


@dataclasses.dataclass(frozen=True)
class BertSettings(Settings):
    """The settings of BERT.

    num_types: rows of the type embeddings, of which the first is added to every position.
    """

    model_type = "bert"
    fixed = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "pruned_heads": {},
    }

    vocabulary_size: Count = hub("vocab_size", absent=30522)
    num_layers: Count = hub("num_hidden_layers", absent=12)
    width: Count = hub("hidden_size", absent=768)
    num_heads: Count = hub("num_attention_heads", absent=12)
    feed_forward_size: Count = hub("intermediate_size", absent=3072)
    num_positions: Count = hub("max_position_embeddings", absent=512)
    num_types: Count = hub("type_vocab_size", default=2)
    activation: Activation = hub("hidden_act", default="gelu")
    epsilon: Positive = hub("layer_norm_eps", default=1e-12)
    padding_id: CountFrom0 = hub("pad_token_id", default=0, read=first_id)

    @property
    def first_row(self) -> int:
        """The row of the first token's position embedding."""
        return 0

    @property
    def absolute_positions(self) -> bool:
        return True

    def resolved(self) -> Self:
        if self.num_positions <= self.first_row:
            raise Misfit("num_positions", "leaves no position for tokens")
        return super().resolved()


@dataclasses.dataclass(frozen=True)
class RobertaSettings(BertSettings):
    """The settings of RoBERTa; an absent key has the meaning that it has for BERT."""

    model_type = "roberta"
    num_types: Count = hub("type_vocab_size", default=1, absent=2)
    epsilon: Positive = hub("layer_norm_eps", default=1e-5, absent=1e-12)
    padding_id: CountFrom0 = hub("pad_token_id", default=1, read=first_id)

    @property
    def first_row(self) -> int:
        return self.padding_id + 1


class BertLayer(DenseLayer):
    norm_first = False


@configurable(denylist=["rngs", "folder"])
class BERT(Encoder):
    """BERT, with the parameters of `BertSettings`.

    prefix: of its tensors on disk. heads_on_disk: of queries, keys and values.
    """

    settings_type: ClassVar[type[Settings]] = BertSettings
    model_types = {"bert": "Bert"}
    layer_type: ClassVar[type[DenseLayer]] = BertLayer
    prefix = "bert."
    heads_on_disk = ("query", "key", "value")
    classes_names = HeadNames("bert.pooler.dense", "classifier")
    spans_name = "qa_outputs"

    def build(self, rngs: nnx.Rngs) -> None:
        settings, D = self.settings, self.width
        self.num_positions = settings.num_positions - settings.first_row
        drawn = functools.partial(
            parameter, rngs, normal(self.std), purpose="embedding", multiplied=False
        )
        self.embedding_VD = drawn(self.vocabulary_size, D)
        if settings.absolute_positions:
            self.positions_RD = drawn(settings.num_positions, D)
        if settings.num_types:
            self.types_RD = drawn(settings.num_types, D)
        self.embedding_norm = LayerNorm(rngs, D, epsilon=settings.epsilon)
        count = settings.num_layers
        self.layers = nnx.List(self.layer_type(rngs, settings) for _ in range(count))

    def rows_of_positions(self, real_BT: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.arange(real_BT.shape[1]), real_BT.shape)

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        if self.settings.absolute_positions:
            rows_BT = self.rows_of_positions(real_BT)
            positions_BTD = self.positions_RD[...].astype(x_BTD.dtype)[rows_BT]
            if first_row := self.settings.first_row:  # the row before it is the padding's
                positions_BTD = without_gradient_at(rows_BT < first_row, positions_BTD)
            x_BTD = x_BTD + positions_BTD
        if self.settings.num_types:
            types_BT = jnp.zeros(real_BT.shape, int) if types_BT is None else types_BT
            x_BTD = x_BTD + self.types_RD[...].astype(x_BTD.dtype)[types_BT]
        return self.embedding_norm(x_BTD)

    def names(self) -> Names:
        disk, settings = f"{self.prefix}embeddings.", self.settings
        tensors = [
            Tensor(f"{disk}word_embeddings.weight", ("embedding_VD",)),
            *norm_tensors(f"{disk}LayerNorm", "embedding_norm"),
        ]
        if settings.absolute_positions:
            tensors.append(Tensor(f"{disk}position_embeddings.weight", ("positions_RD",)))
        if settings.num_types:
            tensors.append(Tensor(f"{disk}token_type_embeddings.weight", ("types_RD",)))
        layers = f"{self.prefix}encoder.layer"
        tensors += layer_tensors(settings.num_layers, "layers", layers, self.one_layer())
        prefix = self.prefix.replace(".", r"\.")
        heads = "pooler|cls|lm_head|lm_predictions|mask_predictions|classifier|qa_outputs"
        ignored = rf"{prefix}embeddings\.position_ids", rf"({prefix}pooler|{heads})\..*"
        return Names(tuple(tensors), self.prefix, ignored, OLD_NORMS)

    def one_layer(self) -> list[Tensor]:
        q, k, v = self.heads_on_disk
        return [
            *matrix_tensors(f"attention.self.{q}", "queries_DA", "queries_bias_A"),
            *matrix_tensors(f"attention.self.{k}", "keys_DA", "keys_bias_A"),
            *matrix_tensors(f"attention.self.{v}", "values_DA", "values_bias_A"),
            *matrix_tensors("attention.output.dense", "output_AD", "output_bias_D"),
            *matrix_tensors("intermediate.dense", "hidden_DF", "hidden_bias_F"),
            *matrix_tensors("output.dense", "output_FD", "feed_forward_bias_D"),
            *norm_tensors("attention.output.LayerNorm", "attention_norm"),
            *norm_tensors("output.LayerNorm", "feed_forward_norm"),
        ]


@configurable(denylist=["rngs", "folder"])
class RoBERTa(BERT):
    """RoBERTa: positions count tokens, from the row after the padding's."""

    settings_type = RobertaSettings
    model_types = {"roberta": "Roberta"}
    prefix = "roberta."
    classes_names = HeadNames("classifier.dense", "classifier.out_proj")

    def rows_of_positions(self, real_BT: jax.Array) -> jax.Array:
        count_BT = jnp.cumsum(real_BT, axis=1)
        padding_id = self.settings.padding_id
        return jnp.where(real_BT, count_BT + padding_id, padding_id)
