"""DeBERTa, versions 2 and 3: attention by content and by distance.

Source: He et al. 2021, arXiv:2006.03654, and arXiv:2111.09543; folders of `model_type` deberta-v2.
"""

import dataclasses
import math
from typing import Annotated, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import zeros
from numpy.typing import ArrayLike

from brt.checks import Count, CountFrom0, OneOf, Positive, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.models.ops import at_least_float32
from brt.pretrained.activations import ACTIVATIONS, Activation
from brt.pretrained.backbone_layer import STD, Seen, linear, split_heads
from brt.pretrained.encoders.bert import BERT, BertLayer, BertSettings
from brt.pretrained.encoders.encoder import HeadNames
from brt.pretrained.names import Names, Tensor, matrix_tensors, norm_tensors
from brt.pretrained.settings import HubConfig, Misfit, hub

TERMS = ("c2p", "p2c")
"""Terms of the scores besides content to content: content to position, and the reverse."""


def _terms(value):
    if isinstance(value, str):
        value = [part.strip() for part in value.lower().split("|") if part.strip()]
    return tuple(sorted(set(value)))


@dataclasses.dataclass(frozen=True)
class DebertaSettings(BertSettings):
    """The settings of DeBERTa besides those of BERT.

    terms: of the scores besides content to content: "c2p", "p2c".
    buckets: S, of distances; 0: as many as the longest distance.
    longest_distance: all distances from here are the same; None: num_positions.
    shared_keys: whether vectors of distances go through the projections of queries and keys.
    convolution: width of a convolution after the first layer; 0 for none.
    """

    model_type = "deberta-v2"
    fixed = {**BertSettings.fixed, "conv_groups": 1}

    vocabulary_size: Count = hub("vocab_size", absent=128_100)
    num_layers: Count = hub("num_hidden_layers", absent=24)
    width: Count = hub("hidden_size", absent=1536)
    num_heads: Count = hub("num_attention_heads", absent=24)
    feed_forward_size: Count = hub("intermediate_size", absent=6144)
    num_positions: Count = hub("max_position_embeddings", default=512)
    num_types: CountFrom0 = hub("type_vocab_size", default=0)
    absolute_positions: bool = hub("position_biased_input", default=True)
    terms: tuple[Annotated[str, OneOf(TERMS)], ...] = hub(
        "pos_att_type", default=TERMS, absent=(), read=_terms, write=list
    )
    buckets: CountFrom0 = hub(
        "position_buckets", default=0, read=lambda n: max(n, 0), write=lambda n: n or -1
    )
    longest_distance: Count | None = hub(
        "max_relative_positions", default=512, absent=None, read=lambda n: n if n > 0 else None
    )
    shared_keys: bool = hub("share_att_key", default=False)
    norm_relative: bool = hub(
        "norm_rel_ebd",
        default=False,
        read={"none": False, "layer_norm": True}.__getitem__,
        write=lambda normed: "layer_norm" if normed else "none",
    )
    convolution: CountFrom0 = hub("conv_kernel_size", default=0)
    convolution_activation: Activation = hub("conv_act", default="tanh")
    head_activation: Activation = hub("pooler_hidden_act", default="gelu")
    epsilon: Positive = hub("layer_norm_eps", default=1e-7)

    @property
    def span(self) -> int:
        """S, rows of the vectors of distances either way."""
        return self.buckets or self.longest_distance or self.num_positions

    @classmethod
    def adjust(cls, settings: dict[str, Any], config: HubConfig) -> None:
        config.only("attention_head_size", settings["width"] // settings["num_heads"])
        config.only("embedding_size", settings["width"])
        config.only("pooler_hidden_size", settings["width"])
        if not config.flag("relative_attention", False):
            settings["terms"] = ()

    def resolved(self) -> Self:
        longest = self.longest_distance or self.num_positions
        if self.buckets and not 1 <= self.buckets // 2 < longest - 1:
            raise Misfit("buckets", f"must be 2 or more, and half of it below {longest} - 1")
        return dataclasses.replace(
            super().resolved(), longest_distance=longest, terms=tuple(sorted(self.terms))
        )

    def config(self) -> dict[str, Any]:
        further = {"relative_attention": bool(self.terms), "pooler_hidden_size": self.width}
        return super().config() | further


def distance_buckets(distance: ArrayLike, buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance (query minus key), int32: coarser beyond buckets / 2.

    longest: distance at which the last bucket begins.
    """
    distance = np.asarray(distance)
    half = buckets // 2
    far = np.maximum(np.abs(distance), half)
    growth = np.log(far / half) / math.log((longest - 1) / half)
    coarse = np.ceil(growth * (half - 1)) + half
    near = np.abs(distance) <= half
    return np.where(near, distance, coarse * np.sign(distance)).astype(np.int32)


class Relative(NamedTuple):
    """The inputs that all layers share.

    inputs_BTD, real_BT: of the first layer, and whether each is a token. vectors_RD: of distances,
    or None. rows_TT: the row of each pair of positions.
    """

    inputs_BTD: jax.Array
    real_BT: Any
    vectors_RD: jax.Array | None = None
    rows_TT: np.ndarray | None = None


class DebertaLayer(BertLayer):
    def __init__(self, rngs: nnx.Rngs, settings: Any):
        super().__init__(rngs, settings)
        D, A = self.sizes.width, self.sizes.attention_size
        self.terms = settings.terms
        self.shared_keys = settings.shared_keys
        self.score_scale = 1 / math.sqrt(self.sizes.head_size * (1 + len(self.terms)))
        if not self.shared_keys and "c2p" in self.terms:
            self.position_keys_DA = parameter(rngs, normal(STD), D, A)
            self.position_keys_bias_A = parameter(rngs, zeros, A)
        if not self.shared_keys and "p2c" in self.terms:
            self.position_queries_DA = parameter(rngs, normal(STD), D, A)
            self.position_queries_bias_A = parameter(rngs, zeros, A)

    def attention_bias(self, queries_BTHK: jax.Array, seen: Seen, shared: Any) -> jax.Array:
        bias_BHTJ = super().attention_bias(queries_BTHK, seen, shared)
        if not self.terms:
            return bias_BHTJ
        return bias_BHTJ + self.score_scale * self._by_distance(queries_BTHK, seen.keys, shared)

    def _by_distance(self, queries_BTHK, keys, shared):
        rows, prefix = jnp.asarray(shared.rows_TT), "" if self.shared_keys else "position_"

        def term(x_BTHK, name, rows):
            matrix_DA, bias_A = (
                getattr(self, f"{prefix}{name}_{part}") for part in ("DA", "bias_A")
            )
            y_RHK = split_heads(linear(shared.vectors_RD, matrix_DA, bias_A), self.sizes.num_heads)
            scores_BHTR = at_least_float32(jnp.einsum("bthk,rhk->bhtr", x_BTHK, y_RHK))
            return jnp.take_along_axis(scores_BHTR, rows[None, None], axis=3)

        total: Any = 0.0
        if "c2p" in self.terms:
            total += term(queries_BTHK, "keys", rows)
        if "p2c" in self.terms:
            total += jnp.swapaxes(term(keys.keys_BJGK, "queries", rows.T), 2, 3)
        return total


class Convolution(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, width: int, kernel: int, activation: str, epsilon: float):
        # As on disk: out, in, position.
        self.matrix_DIW = parameter(rngs, normal(STD), width, width, kernel)
        self.bias_D = parameter(rngs, zeros, width)
        self.norm = LayerNorm(rngs, width, epsilon=epsilon)
        self.activation = activation

    def __call__(self, x_BTD: jax.Array, inputs_BTD: jax.Array, real_BT: jax.Array) -> jax.Array:
        matrix_DIW = self.matrix_DIW[...].astype(x_BTD.dtype)
        y_BTD = jax.lax.conv_general_dilated(
            inputs_BTD, matrix_DIW, (1,), "SAME", dimension_numbers=("NWC", "OIW", "NWC")
        )
        y_BTD = y_BTD + self.bias_D[...].astype(x_BTD.dtype)
        y_BTD = jnp.where(real_BT[..., None], y_BTD, 0)
        return self.norm(x_BTD + ACTIVATIONS[self.activation](y_BTD)) * real_BT[..., None]


@configurable(denylist=["rngs", "folder"])
class DeBERTa(BERT):
    """DeBERTa v2 and v3, with the parameters of `DebertaSettings`."""

    settings_type = DebertaSettings
    model_types = {"deberta-v2": "DebertaV2"}
    layer_type = DebertaLayer
    prefix = "deberta."
    heads_on_disk = ("query_proj", "key_proj", "value_proj")
    classes_names = HeadNames("pooler.dense", "classifier")
    takes_extras = False

    def build(self, rngs: nnx.Rngs) -> None:
        super().build(rngs)
        settings, D = self.settings, self.width
        if not settings.absolute_positions:
            self.num_positions = None
        if settings.terms:
            self.distances_RD = parameter(
                rngs, normal(self.std), 2 * settings.span, D, multiplied=False
            )
            if settings.norm_relative:
                self.distances_norm = LayerNorm(rngs, D, epsilon=settings.epsilon)
        if settings.convolution:
            activation = settings.convolution_activation
            kernel = settings.convolution
            self.convolution = Convolution(rngs, D, kernel, activation, settings.epsilon)

    @property
    def head_activation(self) -> str:
        return self.settings.head_activation

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        return super().enter(x_BTD, real_BT, types_BT) * real_BT[..., None]

    def shared(self, inputs_BTD: jax.Array, real_BT: jax.Array | None) -> Relative:
        settings = self.settings
        if not settings.terms:
            return Relative(inputs_BTD, real_BT)
        vectors_RD = self.distances_RD[...].astype(self.dtype)
        if settings.norm_relative:
            vectors_RD = self.distances_norm(vectors_RD)
        positions_T = np.arange(inputs_BTD.shape[1])
        distance_TT = positions_T[:, None] - positions_T
        if settings.buckets:
            distance_TT = distance_buckets(distance_TT, settings.buckets, settings.longest_distance)
        rows_TT = np.clip(distance_TT + settings.span, 0, 2 * settings.span - 1)
        return Relative(inputs_BTD, real_BT, vectors_RD, rows_TT)

    def between(self, number: int, x_BTD: jax.Array, shared: Relative) -> jax.Array:
        if number or not self.settings.convolution:
            return x_BTD
        return self.convolution(x_BTD, shared.inputs_BTD, shared.real_BT)

    def flops_of_layers(self, keys_seen: float) -> float:
        return super().flops_of_layers(keys_seen + self.settings.span * len(self.settings.terms))

    def one_layer(self) -> list[Tensor]:
        tensors, terms = super().one_layer(), self.settings.terms
        if self.settings.shared_keys:
            return tensors
        if "c2p" in terms:
            disk = "attention.self.pos_key_proj"
            tensors += matrix_tensors(disk, "position_keys_DA", "position_keys_bias_A")
        if "p2c" in terms:
            disk = "attention.self.pos_query_proj"
            tensors += matrix_tensors(disk, "position_queries_DA", "position_queries_bias_A")
        return tensors

    def names(self) -> Names:
        settings, disk = self.settings, "deberta.encoder."
        names = super().names()
        tensors = list(names.tensors)
        if settings.terms:
            tensors.append(Tensor(f"{disk}rel_embeddings.weight", ("distances_RD",)))
            if settings.norm_relative:
                tensors += norm_tensors(f"{disk}LayerNorm", "distances_norm")
        if settings.convolution:
            tensors += [
                Tensor(f"{disk}conv.conv.weight", ("convolution.matrix_DIW",)),
                Tensor(f"{disk}conv.conv.bias", ("convolution.bias_D",)),
                *norm_tensors(f"{disk}conv.LayerNorm", "convolution.norm"),
            ]
        return dataclasses.replace(names, tensors=tuple(tensors))
