"""BERT and RoBERTa: learned positions, norms after attention and network.

Source: Devlin et al. 2019, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; sizes, names and
settings as in folders of `model_type` bert and roberta.
"""

import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros

from brt.checks import Count, CountFrom0, OneOf, Positive, Share, check_choice, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.shape_letters import constrain
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone import REMATS
from brt.pretrained.backbone_layer import (
    BackboneLayer,
    Drop,
    Heads,
    Norm,
    attention_scale,
    linear,
    unchanged,
)
from brt.pretrained.config_values import ConfigValues
from brt.pretrained.encoders.encoder import (
    OLD_NORMS,
    Encoder,
    HeadNames,
    without_gradient_at,
)
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names, Tensor, matrix_tensors, norm_tensors
from brt.pretrained.source import number_of_layers

BERT_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh")
DEFAULTS = dict(num_types=2, activation="gelu", epsilon=1e-12, padding_id=0)


class BertLayer(BackboneLayer):
    """One layer: attention, residual, norm, network, residual, norm.

    Args:
        sizes: D, H, K, F.
        activation: of the network.
        epsilon: of the norms.
        std: of matrices as they are drawn.
    """

    def __init__(
        self, rngs: nnx.Rngs, sizes: Sizes, activation: str, epsilon: float, std: float = 0.02
    ):
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        drawn = functools.partial(parameter, rngs, normal(std))
        bias = functools.partial(parameter, rngs, zeros)
        self.sizes = sizes
        self.activation = activation
        self.score_scale = attention_scale(sizes.head_size)
        self.queries_DA = drawn(D, A)
        self.queries_bias_A = bias(A)
        self.keys_DA = drawn(D, A)
        self.keys_bias_A = bias(A)
        self.values_DA = drawn(D, A)
        self.values_bias_A = bias(A)
        self.output_AD = drawn(A, D)
        self.output_bias_D = bias(D)
        self.attention_norm = Norm(rngs, D, epsilon)
        self.hidden_DF = drawn(D, F)
        self.hidden_bias_F = bias(F)
        self.output_FD = drawn(F, D)
        self.feed_forward_bias_D = bias(D)
        self.feed_forward_norm = Norm(rngs, D, epsilon)

    def heads(self, x_BTD: jax.Array) -> Heads:
        return self.project_heads(x_BTD)

    def finish(
        self,
        x_BTD: jax.Array,
        heads: Heads,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop = unchanged,
    ) -> jax.Array:
        y_BTD = self.written(attended_BTHK, added_BTD)
        x_BTD = constrain(self.attention_norm(x_BTD + drop(y_BTD)), "BTD")
        with jax.named_scope("feed_forward"):
            h_BTF = linear(x_BTD, self.hidden_DF, self.hidden_bias_F)
            h_BTF = ACTIVATIONS[self.activation](h_BTF)
            y_BTD = linear(h_BTF, self.output_FD, self.feed_forward_bias_D)
            return constrain(self.feed_forward_norm(x_BTD + drop(y_BTD)), "BTD")


@configurable(denylist=["rngs", "folder"])
class BERT(Encoder):
    """BERT. Sizes are bound, or read from a folder; a binding that says otherwise is refused.

    Args:
        vocabulary_size, num_layers, width, num_heads, feed_forward_size: V, n, D, H, F; K = D / H.
        num_positions: rows of the table of positions.
        num_types: rows of the table of types, of which the first is added to every position.
        activation: of the network: "gelu" (the default), "relu", "silu", "gelu_new" or
            "gelu_pytorch_tanh".
        epsilon: of norms.
        padding_id: the word that stands where there is none.
        dropout: rate on embeddings, attention weights, and what enters the residual stream.
        activation_dtype: "float32" or "bfloat16"; parameters stay float32.
        remat: "none", or "layer" to recompute each layer in the backward pass.
        folder: path of a folder, before `Pretrained.folder`.

    Raises:
        FileNotFoundError, ValueError: a folder that is refused; sizes that are missing or do not
            fit together.
    """

    model_types = ("bert",)
    prefix = "bert."
    architecture = "Bert"
    classes_names = HeadNames("bert.pooler.dense", "classifier")
    words_names = HeadNames(
        "cls.predictions.transform.dense",
        "cls.predictions.decoder",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    )
    spans_name = "qa_outputs"
    defaults = DEFAULTS

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count | None = None,
        num_layers: Count | None = None,
        width: Count | None = None,
        num_heads: Count | None = None,
        feed_forward_size: Count | None = None,
        num_positions: Count | None = None,
        num_types: CountFrom0 | None = None,
        activation: str | None = None,
        epsilon: Positive | None = None,
        padding_id: CountFrom0 | None = None,
        dropout: Share = 0.0,
        activation_dtype: Annotated[str, OneOf(DTYPES)] = "float32",
        remat: Annotated[str, OneOf(REMATS)] = "none",
        folder: str | None = None,
    ):
        bound = dict(
            vocabulary_size=vocabulary_size,
            num_layers=num_layers,
            width=width,
            num_heads=num_heads,
            feed_forward_size=feed_forward_size,
            num_positions=num_positions,
            num_types=num_types,
            activation=activation,
            epsilon=epsilon,
            padding_id=padding_id,
        )
        said = self.settle(
            bound, dropout=dropout, activation_dtype=activation_dtype, remat=remat, folder=folder
        )
        name = type(self).__name__
        D = said["width"]
        V = said["vocabulary_size"]
        check_choice(f"{name}.activation", said["activation"], BERT_ACTIVATIONS)
        K = self.divided_width(said)
        sizes = Sizes(D, said["num_heads"], K, said["feed_forward_size"])
        self.take_encoder(said, sizes, said["activation"])
        self.rows = said["num_positions"]
        self.num_positions = self.rows - self.first_row
        if self.num_positions < 1 or not 0 <= self.padding_id < V:
            raise ValueError(
                f"{name}.num_positions = {self.rows} and {name}.padding_id = {self.padding_id} "
                "leave no room: bind more positions, and a word of the vocabulary."
            )
        drawn = functools.partial(parameter, rngs, normal(self.std), purpose="embedding")
        self.embedding_VD = drawn(V, D, multiplied=False)
        self.positions_RD = drawn(self.rows, D, multiplied=False)
        self.types_RD = drawn(said["num_types"], D, multiplied=False)
        self.embedding_norm = Norm(rngs, D, self.epsilon)
        self.layers = nnx.List(
            BertLayer(rngs, self.sizes, self.activation_name, self.epsilon, self.std)
            for _ in range(said["num_layers"])
        )
        self.check_folder()

    @property
    def first_row(self) -> int:
        """The row of the table of positions that the first token has."""
        return 0

    def rows_of_positions(self, real_BT: jax.Array) -> jax.Array:
        """Returns the row of the table of positions of each position, (B, T)."""
        return jnp.broadcast_to(jnp.arange(real_BT.shape[1]), real_BT.shape)

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        types_BT = jnp.zeros(real_BT.shape, int) if types_BT is None else types_BT
        rows_BT = self.rows_of_positions(real_BT)
        positions_BTD = self.positions_RD[...].astype(x_BTD.dtype)[rows_BT]
        if self.first_row:  # the row before it is that of the padding
            positions_BTD = without_gradient_at(rows_BT < self.first_row, positions_BTD)
        types_BTD = self.types_RD[...].astype(x_BTD.dtype)[types_BT]
        return self.embedding_norm(x_BTD + positions_BTD + types_BTD)

    # On disk.

    def names(self) -> Names:
        disk = f"{self.prefix}embeddings."
        tensors = [
            Tensor(f"{disk}word_embeddings.weight", ("embedding_VD",)),
            Tensor(f"{disk}position_embeddings.weight", ("positions_RD",)),
            Tensor(f"{disk}token_type_embeddings.weight", ("types_RD",)),
            *norm_tensors(f"{disk}LayerNorm", "embedding_norm"),
        ]
        for i in range(len(self.layers)):
            tensors += layer_tensors(f"{self.prefix}encoder.layer.{i}.", f"layers.{i}.")
        return Names(tuple(tensors), self.prefix, ignored(self.prefix), OLD_NORMS)

    def new_config(self) -> dict[str, Any]:
        return {
            "model_type": self.model_types[0],
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.width,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": self.sizes.num_heads,
            "intermediate_size": self.sizes.feed_forward_size,
            "max_position_embeddings": self.rows,
            "type_vocab_size": self.types_RD.shape[0],
            "hidden_act": self.activation_name,
            "layer_norm_eps": self.epsilon,
            "pad_token_id": self.padding_id,
        }

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        values = folder.values()
        refuse_variants(values)
        width, num_heads = values.whole("hidden_size", 768), values.whole("num_attention_heads", 12)
        if width % num_heads:
            raise values.refused("hidden_size", f"is not divided by {num_heads} attention heads.")
        vocabulary_size = values.whole("vocab_size", 30522)
        padding_id = values.token("pad_token_id", vocabulary_size)
        return dict(
            vocabulary_size=vocabulary_size,
            num_layers=number_of_layers(values, "num_hidden_layers", 12, folder),
            width=width,
            num_heads=num_heads,
            feed_forward_size=values.whole("intermediate_size", 3072),
            num_positions=values.whole("max_position_embeddings", 512),
            num_types=values.whole("type_vocab_size", 2),
            activation=values.choice("hidden_act", BERT_ACTIVATIONS, "gelu"),
            epsilon=values.number("layer_norm_eps", 1e-12),
            padding_id=self.defaults["padding_id"] if padding_id is None else padding_id,
        )


@configurable(denylist=["rngs", "folder"])
class RoBERTa(BERT):
    """RoBERTa: BERT whose positions count tokens, from the row behind that of the padding.

    Its bindings are those of `BERT`.
    """

    model_types = ("roberta",)
    prefix = "roberta."
    architecture = "Roberta"
    classes_names = HeadNames("classifier.dense", "classifier.out_proj")
    words_names = HeadNames(
        "lm_head.dense", "lm_head.decoder", "lm_head.layer_norm", "lm_head.bias"
    )
    defaults = DEFAULTS | dict(num_types=1, epsilon=1e-5, padding_id=1)

    @property
    def first_row(self) -> int:
        return self.padding_id + 1

    def rows_of_positions(self, real_BT: jax.Array) -> jax.Array:
        counted_BT = jnp.cumsum(real_BT, axis=1)
        return jnp.where(real_BT, counted_BT + self.padding_id, self.padding_id)


def layer_tensors(disk: str, ours: str, names: tuple[str, ...] = ("query", "key", "value")) -> list:
    """Returns the tensors of one layer of BERT and its like.

    Args:
        disk, ours: what their names begin with, on disk and here.
        names: of queries, keys and values on disk.
    """
    parts = zip(names, ("queries", "keys", "values"), strict=True)
    tensors: list[Tensor] = []
    for name, part in parts:
        of_part = f"{ours}{part}_DA", f"{ours}{part}_bias_A"
        tensors += matrix_tensors(f"{disk}attention.self.{name}", *of_part)
    return [
        *tensors,
        *matrix_tensors(
            f"{disk}attention.output.dense", f"{ours}output_AD", f"{ours}output_bias_D"
        ),
        *norm_tensors(f"{disk}attention.output.LayerNorm", f"{ours}attention_norm"),
        *matrix_tensors(f"{disk}intermediate.dense", f"{ours}hidden_DF", f"{ours}hidden_bias_F"),
        *matrix_tensors(f"{disk}output.dense", f"{ours}output_FD", f"{ours}feed_forward_bias_D"),
        *norm_tensors(f"{disk}output.LayerNorm", f"{ours}feed_forward_norm"),
    ]


def ignored(prefix: str) -> tuple[str, ...]:
    """Returns patterns of tensors that a body does not read: buffers, and heads."""
    base = prefix.replace(".", r"\.")
    return (
        rf"{base}embeddings\.position_ids",
        rf"{base}pooler\..*",
        r"pooler\..*",
        r"cls\..*",
        r"lm_head\..*",
        r"lm_predictions\..*",
        r"mask_predictions\..*",
        r"classifier\..*",
        r"qa_outputs\..*",
    )


def refuse_variants(values: ConfigValues) -> None:
    """Refuses settings of BERT and its like that brt does not compute.

    Raises:
        ValueError: naming the file and the key.
    """
    values.only("position_embedding_type", "absolute", "is not computed: only absolute is.")
    values.only("is_decoder", False, "says a decoder: brt reads it as an encoder.")
    values.only("add_cross_attention", False, "adds attention to an encoder, and there is none.")
    if values.get("pruned_heads"):
        raise values.refused("pruned_heads", "removes heads: save the model without.")
