"""DeBERTa, versions 2 and 3: attention by what is read and by how far it is away.

Source: He et al. 2021, arXiv:2006.03654, and arXiv:2111.09543; sizes, names and settings as in
folders of `model_type` deberta-v2.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import Count, CountFrom0, Index, OneOf, Positive, Share, check_choice, configurable
from brt.models.counts import matrix_size
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.pretrained.backbone import REMATS
from brt.pretrained.backbone_layer import BackboneLayer, Heads, Norm, Seen
from brt.pretrained.config_values import ConfigValues
from brt.pretrained.encoders.bert import (
    BERT_ACTIVATIONS,
    ignored,
    layer_tensors,
    refuse_variants,
)
from brt.pretrained.encoders.deberta_layer import (
    TERMS,
    Convolution,
    DebertaLayer,
    Relative,
    distance_buckets,
)
from brt.pretrained.encoders.encoder import OLD_NORMS, Encoder, HeadNames
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names, Tensor, matrix_tensors, norm_tensors
from brt.pretrained.source import number_of_layers

CONVOLUTION_ACTIVATIONS = ("tanh", *BERT_ACTIVATIONS)
DEFAULTS = dict(
    activation="gelu",
    epsilon=1e-7,
    padding_id=0,
    num_positions=512,
    num_types=0,
    absolute_positions=True,
    terms=TERMS,
    buckets=0,
    longest_distance=512,
    shared_keys=False,
    norm_relative=False,
    convolution=0,
    convolution_activation="tanh",
    head_activation="gelu",
)


@configurable(denylist=["rngs", "folder"])
class DeBERTa(Encoder):
    """DeBERTa v2 and v3. Sizes are bound, or read from a folder, as of `BERT`.

    Args:
        vocabulary_size, num_layers, width, num_heads, feed_forward_size: V, n, D, H, F; K = D / H.
        num_positions: positions of a segment at most, where they are told absolutely.
        num_types: rows of the table of types; 0 for none.
        absolute_positions: whether a table of positions is added to the words.
        terms: of the scores, of "c2p" and "p2c".
        buckets: S, of distances; 0: as many as the longest distance.
        longest_distance: beyond which all are the same.
        shared_keys: whether vectors of distances go through the projections of queries and keys.
        norm_relative: whether they are normed.
        convolution: positions that a convolution after the first layer reads; 0 for none.
        convolution_activation, head_activation, activation: by their names.
        epsilon, padding_id, dropout, activation_dtype, remat, folder: as of `BERT`.

    Raises:
        FileNotFoundError, ValueError: as `BERT`.
    """

    model_types = ("deberta-v2",)
    defaults = DEFAULTS
    architecture = "DebertaV2"
    classes_names = HeadNames("pooler.dense", "classifier")
    spans_name = "qa_outputs"
    takes_extras = False

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
        absolute_positions: bool | None = None,
        terms: Sequence[str] | None = None,
        buckets: Index | None = None,
        longest_distance: Index | None = None,
        shared_keys: bool | None = None,
        norm_relative: bool | None = None,
        convolution: CountFrom0 | None = None,
        convolution_activation: str | None = None,
        head_activation: str | None = None,
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
            absolute_positions=absolute_positions,
            terms=None if terms is None else tuple(sorted(terms)),
            buckets=buckets,
            longest_distance=longest_distance,
            shared_keys=shared_keys,
            norm_relative=norm_relative,
            convolution=convolution,
            convolution_activation=convolution_activation,
            head_activation=head_activation,
            activation=activation,
            epsilon=epsilon,
            padding_id=padding_id,
        )
        said = self.settle(
            bound, dropout=dropout, activation_dtype=activation_dtype, remat=remat, folder=folder
        )
        self.said = said
        D = said["width"]
        V = said["vocabulary_size"]
        check_choice("DeBERTa.activation", said["activation"], BERT_ACTIVATIONS)
        K = self.divided_width(said)
        if not set(said["terms"]) <= set(TERMS):
            raise ValueError(f'DeBERTa.terms = {said["terms"]} must be some of "c2p" and "p2c".')
        sizes = Sizes(D, said["num_heads"], K, said["feed_forward_size"])
        self.take_encoder(said, sizes, said["activation"])
        self.head_activation = said["head_activation"]
        self.num_positions = said["num_positions"] if said["absolute_positions"] else None
        drawn = functools.partial(
            parameter, rngs, normal(self.std), purpose="embedding", multiplied=False
        )
        self.embedding_VD = drawn(V, D)
        if said["absolute_positions"]:
            self.positions_RD = drawn(said["num_positions"], D)
        if said["num_types"]:
            self.types_RD = drawn(said["num_types"], D)
        self.embedding_norm = Norm(rngs, D, self.epsilon)
        self.layers = nnx.List(
            DebertaLayer(
                rngs,
                self.sizes,
                self.activation_name,
                self.epsilon,
                said["terms"],
                not said["shared_keys"],
            )
            for _ in range(said["num_layers"])
        )
        if said["terms"]:
            self.distances_RD = parameter(
                rngs, normal(self.std), 2 * self.span, D, purpose="layers", multiplied=False
            )
            if said["norm_relative"]:
                self.distances_norm = Norm(rngs, D, self.epsilon)
        if said["convolution"]:
            kernel, activation = said["convolution"], said["convolution_activation"]
            self.convolution = Convolution(rngs, D, kernel, activation, self.epsilon)
        self.check_folder()

    @property
    def span(self) -> int:
        """S, rows of the table of distances either way."""
        return self.said["buckets"] or self.said["longest_distance"]

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        if self.said["absolute_positions"]:
            x_BTD = x_BTD + self.positions_RD[...].astype(x_BTD.dtype)[: x_BTD.shape[1]]
        if self.said["num_types"]:
            types_BT = jnp.zeros(real_BT.shape, int) if types_BT is None else types_BT
            x_BTD = x_BTD + self.types_RD[...].astype(x_BTD.dtype)[types_BT]
        return self.embedding_norm(x_BTD) * real_BT[..., None]

    def shared(self, length: int) -> Relative | None:
        if not self.said["terms"]:
            return None
        vectors_RD = self.distances_RD[...].astype(self.dtype)
        if self.said["norm_relative"]:
            vectors_RD = self.distances_norm(vectors_RD)
        distance_TT = np.arange(length)[:, None] - np.arange(length)
        if self.said["buckets"]:
            longest = self.said["longest_distance"]
            distance_TT = distance_buckets(distance_TT, self.said["buckets"], longest)
        rows_TT = np.clip(distance_TT + self.span, 0, 2 * self.span - 1)
        return Relative(vectors_RD, rows_TT)

    def attended(
        self,
        layer: BackboneLayer,
        heads: Heads,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None,
        shared: Any,
    ) -> jax.Array:
        assert isinstance(layer, DebertaLayer)
        return layer.attend_relative(heads, seen, keep_HTJ, shared)

    def after_layer(
        self, number: int, x_BTD: jax.Array, entered_BTD: jax.Array, real_BT: jax.Array
    ) -> jax.Array:
        if number or not self.said["convolution"]:
            return x_BTD
        return self.convolution(x_BTD, entered_BTD, real_BT)

    def flops_of_layers(self, keys_seen: float) -> float:
        A = self.sizes.attention_size
        per_layer = 4 * A * keys_seen + 2 * A * 2 * self.span * len(self.said["terms"])
        return sum(2 * matrix_size(layer) + per_layer for layer in self.layers)

    # On disk.

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        values = folder.values()
        refuse_variants(values)
        width, num_heads = (
            values.whole("hidden_size", 1536),
            values.whole("num_attention_heads", 24),
        )
        if width % num_heads:
            raise values.refused("hidden_size", f"is not divided by {num_heads} attention heads.")
        values.only("attention_head_size", width // num_heads, "is not hidden_size over the heads.")
        values.only("embedding_size", width, "is not hidden_size: brt reads such folders only.")
        values.only("conv_groups", 1, "groups of a convolution are not computed: only 1 is.")
        values.only("pooler_hidden_size", width, "is not hidden_size: brt reads such folders only.")
        norms = values.get("norm_rel_ebd", "none")
        if norms not in ("none", "layer_norm"):
            raise values.refused("norm_rel_ebd", "is not computed: none and layer_norm are.")
        vocabulary_size = values.whole("vocab_size", 128100)
        padding_id = values.token("pad_token_id", vocabulary_size)
        num_positions = values.whole("max_position_embeddings", 512)
        longest = values.whole("max_relative_positions", -1, minimum=-1)
        return dict(
            vocabulary_size=vocabulary_size,
            num_layers=number_of_layers(values, "num_hidden_layers", 24, folder),
            width=width,
            num_heads=num_heads,
            feed_forward_size=values.whole("intermediate_size", 6144),
            num_positions=num_positions,
            num_types=values.whole("type_vocab_size", 0, minimum=0),
            absolute_positions=values.flag("position_biased_input", True),
            terms=_terms(values),
            buckets=max(values.whole("position_buckets", -1, minimum=-1), 0),
            longest_distance=num_positions if longest < 1 else longest,
            shared_keys=values.flag("share_att_key", False),
            norm_relative=norms == "layer_norm",
            convolution=values.whole("conv_kernel_size", 0, minimum=0),
            convolution_activation=values.choice("conv_act", CONVOLUTION_ACTIVATIONS, "tanh"),
            head_activation=values.choice("pooler_hidden_act", CONVOLUTION_ACTIVATIONS, "gelu"),
            activation=values.choice("hidden_act", BERT_ACTIVATIONS, "gelu"),
            epsilon=values.number("layer_norm_eps", 1e-7),
            padding_id=0 if padding_id is None else padding_id,
        )

    def names(self) -> Names:
        disk = "deberta.embeddings."
        tensors = [
            Tensor(f"{disk}word_embeddings.weight", ("embedding_VD",)),
            *norm_tensors(f"{disk}LayerNorm", "embedding_norm"),
        ]
        if self.said["absolute_positions"]:
            tensors.append(Tensor(f"{disk}position_embeddings.weight", ("positions_RD",)))
        if self.said["num_types"]:
            tensors.append(Tensor(f"{disk}token_type_embeddings.weight", ("types_RD",)))
        terms = self.said["terms"]
        for i in range(len(self.layers)):
            disk, ours = f"deberta.encoder.layer.{i}.", f"layers.{i}."
            tensors += layer_tensors(disk, ours, ("query_proj", "key_proj", "value_proj"))
            for term, part, name in (
                ("c2p", "position_keys", "pos_key_proj"),
                ("p2c", "position_queries", "pos_query_proj"),
            ):
                if term in terms and not self.said["shared_keys"]:
                    of_part = f"{ours}{part}_DA", f"{ours}{part}_bias_A"
                    tensors += matrix_tensors(f"{disk}attention.self.{name}", *of_part)
        if terms:
            tensors.append(Tensor("deberta.encoder.rel_embeddings.weight", ("distances_RD",)))
            if self.said["norm_relative"]:
                tensors += norm_tensors("deberta.encoder.LayerNorm", "distances_norm")
        if self.said["convolution"]:
            disk = "deberta.encoder.conv."
            tensors += [
                Tensor(f"{disk}conv.weight", ("convolution.matrix_DIW",)),
                Tensor(f"{disk}conv.bias", ("convolution.bias_D",)),
                *norm_tensors(f"{disk}LayerNorm", "convolution.norm"),
            ]
        return Names(tuple(tensors), "deberta.", ignored("deberta."), OLD_NORMS)

    def new_config(self) -> dict[str, Any]:
        said = self.said
        return {
            "model_type": "deberta-v2",
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.width,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": self.sizes.num_heads,
            "intermediate_size": self.sizes.feed_forward_size,
            "max_position_embeddings": said["num_positions"],
            "type_vocab_size": said["num_types"],
            "position_biased_input": said["absolute_positions"],
            "relative_attention": bool(said["terms"]),
            "pos_att_type": list(said["terms"]),
            "position_buckets": said["buckets"] or -1,
            "max_relative_positions": said["longest_distance"],
            "share_att_key": said["shared_keys"],
            "norm_rel_ebd": "layer_norm" if said["norm_relative"] else "none",
            "conv_kernel_size": said["convolution"],
            "conv_act": said["convolution_activation"],
            "hidden_act": self.activation_name,
            "pooler_hidden_act": self.head_activation,
            "pooler_hidden_size": self.width,
            "layer_norm_eps": self.epsilon,
            "pad_token_id": self.padding_id,
        }


def _terms(values: ConfigValues) -> tuple[str, ...]:
    """Returns the terms by distance that config.json says: a list, or one text with bars."""
    if not values.flag("relative_attention", False):
        return ()
    said = values.get("pos_att_type", [])
    if isinstance(said, str):
        said = [part.strip() for part in said.lower().split("|") if part.strip()]
    if not isinstance(said, list) or not all(term in TERMS for term in said):
        raise values.refused("pos_att_type", "is not computed: c2p and p2c are.")
    return tuple(sorted(set(said)))
