"""T5, versions 1.0 and 1.1: an encoder, and a decoder that writes answers.

Source: Raffel et al. 2020, arXiv:1910.10683; folders of `model_type` t5.
"""

import dataclasses
import functools
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import Count, CountFrom0, OneOf, Positive, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.positions_t5 import t5_buckets
from brt.models.ops import at_least_float32
from brt.pretrained.backbone_layer import RootNorm, attention_bias
from brt.pretrained.encoders.encoder import Encoder
from brt.pretrained.encoders.t5_layers import NETWORKS, T5DecoderLayer, T5Layer, two_sided_buckets
from brt.pretrained.names import (
    Names,
    Tensor,
    layer_tensors,
    matrix_tensors,
    norm_tensors,
    prefixed,
)
from brt.pretrained.settings import HubConfig, Misfit, Settings, first_id, hub


@dataclasses.dataclass(frozen=True)
class T5Settings(Settings):
    """The settings of T5; dropout is in the encoder only.

    network: "relu" (version 1.0), "gated-gelu" (1.1) or "gated-silu".
    buckets, longest_distance: of the attention bias by distance.
    tied: whether logits are products with the embedding matrix, divided by the root of D.
    """

    model_type = "t5"
    fixed = {"is_encoder_decoder": True, "is_decoder": False}

    vocabulary_size: Count = hub("vocab_size", absent=32_128)
    num_layers: Count = hub("num_layers", absent=6)
    width: Count = hub("d_model", absent=512)
    num_heads: Count = hub("num_heads", absent=8)
    head_size: Count = hub("d_kv", absent=64)
    feed_forward_size: Count = hub("d_ff", absent=2048)
    num_decoder_layers: Count | None = hub("num_decoder_layers", default=None)
    network: Annotated[str, OneOf(tuple(NETWORKS))] = hub("feed_forward_proj", default="relu")
    epsilon: Positive = hub("layer_norm_epsilon", default=1e-6)
    buckets: Count = hub("relative_attention_num_buckets", default=32)
    longest_distance: Count = hub("relative_attention_max_distance", default=128)
    tied: bool = hub("tie_word_embeddings", default=True)
    padding_id: CountFrom0 = hub("pad_token_id", default=0, read=first_id)
    start_id: CountFrom0 = hub(
        "decoder_start_token_id",
        default=0,
        absent=lambda settings: settings["padding_id"],
        read=first_id,
    )

    @classmethod
    def adjust(cls, settings: dict[str, Any], config: HubConfig) -> None:
        folder = config.folder
        if not any(name.startswith("decoder.") for name in folder.tensors):
            raise ValueError(f"{folder.path} holds an encoder alone: brt reads both halves of T5.")
        # The key of newer files.
        settings["tied"] &= config.flag("scale_decoder_outputs", True)

    @property
    def activation(self) -> str:
        return NETWORKS[self.network][0]

    def resolved(self) -> Self:
        if self.buckets % 4:
            raise Misfit("buckets", "is not divided by 4")
        if self.longest_distance <= self.buckets // 2:
            raise Misfit("longest_distance", f"is not above half of {self.buckets} buckets")
        decoder_layers = self.num_decoder_layers or self.num_layers
        return dataclasses.replace(super().resolved(), num_decoder_layers=decoder_layers)

    def config(self) -> dict[str, Any]:
        return super().config() | {"is_encoder_decoder": True, "eos_token_id": 1}


@configurable(denylist=["rngs", "folder"])
class T5(Encoder):
    """T5, with the parameters of `T5Settings`."""

    settings_type = T5Settings
    model_types = {"t5": "T5"}
    takes_extras = False
    padding_learns = True
    memory_after = 0

    def build(self, rngs: nnx.Rngs) -> None:
        settings, D = self.settings, self.width
        self.embedding_VD = self._word_matrix(rngs)
        bias = functools.partial(
            parameter,
            *(rngs, normal(D**-0.5), settings.buckets, settings.num_heads),
            multiplied=False,
        )
        self.distances_RH = bias()
        count = settings.num_layers
        self.layers = nnx.List(T5Layer(rngs, settings) for _ in range(count))
        self.final_norm = RootNorm(rngs, D, settings.epsilon, upcast=True)
        self.decoder_distances_RH = bias()
        count = settings.num_decoder_layers
        self.decoder_layers = nnx.List(T5DecoderLayer(rngs, settings) for _ in range(count))
        self.decoder_norm = RootNorm(rngs, D, settings.epsilon, upcast=True)
        if not settings.tied:
            self.head_VD = self._word_matrix(rngs)

    def _word_matrix(self, rngs):
        return parameter(rngs, normal(1.0), self.vocabulary_size, self.width, purpose="embedding")

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        return self.final_norm(x_BTD)

    def shared(self, inputs_BTD: jax.Array, real_BT: jax.Array | None) -> jax.Array:
        positions_T = np.arange(inputs_BTD.shape[1])
        rows = two_sided_buckets(
            positions_T - positions_T[:, None],
            self.settings.buckets,
            self.settings.longest_distance,
        )
        return jnp.moveaxis(self.distances_RH[...][rows], -1, 0)

    def decode(
        self, words_BW: jax.Array, encoded_BJD: jax.Array, real_BJ: jax.Array
    ) -> list[jax.Array]:
        """Returns the decoder's inputs for an answer, and each layer's outputs, (B, W, D).

        words_BW: ids, the start id first. real_BJ: which encoded positions have a token.
        """
        positions_W = np.arange(words_BW.shape[1])
        away_WW = positions_W[:, None] - positions_W
        rows = t5_buckets(away_WW, self.settings.buckets, self.settings.longest_distance)
        bias_HWW = jnp.moveaxis(self.decoder_distances_RH[...][rows], -1, 0)
        bias_1HWW = (bias_HWW + attention_bias(away_WW >= 0))[None]
        hidden_B11J = attention_bias(real_BJ)[:, None, None]
        states = [self.embed(words_BW)]
        for layer in self.decoder_layers:
            states.append(layer(states[-1], bias_1HWW, encoded_BJD, hidden_B11J))
        states[-1] = self.decoder_norm(states[-1])
        return states

    def word_logits(self, x_BWD: jax.Array, words_VD: jax.Array | None = None) -> jax.Array:
        """Maps (B, W, D) outputs of the decoder to (B, W, V), at least float32."""
        tied = self.settings.tied
        x_BWD = x_BWD * self.width**-0.5 if tied else x_BWD
        if words_VD is None:
            words_VD = (self.embedding_VD if tied else self.head_VD)[...]
        return at_least_float32(jnp.einsum("bwd,vd->bwv", x_BWD, words_VD.astype(x_BWD.dtype)))

    def shifted(self, words_BW: jax.Array) -> jax.Array:
        """Returns the decoder's inputs for an answer: the start id, and all words but the last."""
        start_B1 = jnp.full_like(words_BW[:, :1], self.settings.start_id)
        return jnp.concatenate([start_B1, words_BW[:, :-1]], axis=1)

    def write(self, length: int, encoded_BJD: jax.Array, real_BJ: jax.Array) -> jax.Array:
        """Returns the greedy answer, int32 (B, length); each step decodes all words."""
        written_BW = jnp.zeros((len(encoded_BJD), length), jnp.int32)

        def step(number, written_BW):
            states = self.decode(self.shifted(written_BW), encoded_BJD, real_BJ)
            logits_BWV = self.word_logits(states[-1])
            best_B = jnp.argmax(logits_BWV[:, number], axis=-1).astype(jnp.int32)
            return written_BW.at[:, number].set(best_B)

        return jax.lax.fori_loop(0, length, step, written_BW)

    def names(self) -> Names:
        tensors = [Tensor("shared.weight", ("embedding_VD",))]
        for stack, ours, norm, layers in (
            ("encoder", "", "final_norm", self.layers),
            ("decoder", "decoder_", "decoder_norm", self.decoder_layers),
        ):
            one = self._one_layer(stack == "decoder")
            distances = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            tensors += [
                *norm_tensors(f"{stack}.final_layer_norm", norm, bias=False),
                Tensor(distances, (f"{ours}distances_RH",)),
                *layer_tensors(len(layers), f"{ours}layers", f"{stack}.block", one),
            ]
        # The embedding matrix may be stored again, under the names of its users.
        ignored = [
            r"(encoder|decoder)\.embed_tokens\.weight",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        ]
        if self.settings.tied:
            ignored.append(r"lm_head\.weight")
        else:
            tensors.append(Tensor("lm_head.weight", ("head_VD",)))
        return Names(tuple(tensors), "", tuple(ignored))

    def _one_layer(self, decoder):
        attention = [
            *matrix_tensors("q", "queries_DA"),
            *matrix_tensors("k", "keys_DA"),
            *matrix_tensors("v", "values_DA"),
            *matrix_tensors("o", "output_AD"),
        ]
        tensors = [
            *norm_tensors("layer.0.layer_norm", "attention_norm", bias=False),
            *prefixed(attention, "attention.", "layer.0.SelfAttention."),
        ]
        if decoder:
            tensors += norm_tensors("layer.1.layer_norm", "cross_norm", bias=False)
            tensors += prefixed(attention, "cross.", "layer.1.EncDecAttention.")
        disk = "layer.2" if decoder else "layer.1"
        tensors += norm_tensors(f"{disk}.layer_norm", "feed_forward_norm", bias=False)
        matrices = {"wi": "hidden_DF", "wo": "output_FD"}
        if NETWORKS[self.settings.network][1]:
            matrices = {"wi_0": "hidden_DF", "wi_1": "factor_DF", "wo": "output_FD"}
        for name, matrix in matrices.items():
            tensors += matrix_tensors(f"{disk}.DenseReluDense.{name}", matrix)
        return tensors

    def config(self) -> dict[str, Any]:
        config = super().config()
        # Readers of the folder disagree on scale_decoder_outputs; all know this key.
        config.pop("scale_decoder_outputs", None)
        if not self.settings.tied or "tie_word_embeddings" in config:
            config["tie_word_embeddings"] = self.settings.tied
        return config
