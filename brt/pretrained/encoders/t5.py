"""T5, versions 1.0 and 1.1: an encoder, and a decoder that writes answers.

Source: Raffel et al. 2020, arXiv:1910.10683; sizes, names and settings as in folders of
`model_type` t5.
"""

import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import Count, CountFrom0, Index, OneOf, Positive, Share, check_choice, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import wide
from brt.models.layers.positions_t5 import t5_buckets
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.pretrained.backbone import REMATS
from brt.pretrained.backbone_layer import HIDDEN, BackboneLayer, Heads, Seen
from brt.pretrained.encoders.encoder import Encoder
from brt.pretrained.encoders.t5_layers import (
    NETWORKS,
    ScaleNorm,
    T5DecoderLayer,
    T5Layer,
    two_sided_buckets,
)
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names, Tensor, head_tensors
from brt.pretrained.source import number_of_layers

DEFAULTS = dict(
    num_decoder_layers=None,
    network="relu",
    epsilon=1e-6,
    buckets=32,
    longest_distance=128,
    tied=True,
    start_id=0,
    padding_id=0,
)


@configurable(denylist=["rngs", "folder"])
class T5(Encoder):
    """T5. Sizes are bound, or read from a folder, as of `BERT`; dropout is in the encoder only.

    Args:
        vocabulary_size, num_layers, width, num_heads, head_size, feed_forward_size: V, n, D, H, K,
            F; K need not be D / H.
        num_decoder_layers: n where nothing is said.
        network: "relu" (version 1.0), "gated-gelu" (1.1) or "gated-silu".
        buckets, longest_distance: of the bias by distance.
        tied: whether the logits are products with the table of words, divided by the root of D.
        start_id: the word that an answer begins with, unwritten.
        epsilon, padding_id, dropout, activation_dtype, remat, folder: as of `BERT`.

    Raises:
        FileNotFoundError, ValueError: as `BERT`.
    """

    model_types = ("t5",)
    defaults = DEFAULTS
    architecture = "T5"
    takes_extras = False
    padding_learns = True
    memory_after = 0

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count | None = None,
        num_layers: Count | None = None,
        width: Count | None = None,
        num_heads: Count | None = None,
        head_size: Count | None = None,
        feed_forward_size: Count | None = None,
        num_decoder_layers: Count | None = None,
        network: str | None = None,
        epsilon: Positive | None = None,
        buckets: Index | None = None,
        longest_distance: Index | None = None,
        tied: bool | None = None,
        start_id: CountFrom0 | None = None,
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
            head_size=head_size,
            feed_forward_size=feed_forward_size,
            num_decoder_layers=num_decoder_layers,
            network=network,
            epsilon=epsilon,
            buckets=buckets,
            longest_distance=longest_distance,
            tied=tied,
            start_id=start_id,
            padding_id=padding_id,
        )
        said = self.settle(
            bound, dropout=dropout, activation_dtype=activation_dtype, remat=remat, folder=folder
        )
        self.said = said
        check_choice("T5.network", said["network"], tuple(NETWORKS))
        D = said["width"]
        V = said["vocabulary_size"]
        sizes = Sizes(D, said["num_heads"], said["head_size"], said["feed_forward_size"])
        self.take_encoder(said, sizes, NETWORKS[said["network"]][0])
        self.start_id = said["start_id"]
        self.tied = said["tied"]
        self.num_positions = None
        self.embedding_VD = parameter(rngs, normal(1.0), V, D, purpose="embedding")
        bias = functools.partial(
            parameter, rngs, normal(D**-0.5), said["buckets"], said["num_heads"], multiplied=False
        )
        of_layers = rngs, self.sizes, said["network"], said["epsilon"]
        self.distances_RH = bias()
        self.layers = nnx.List(T5Layer(*of_layers) for _ in range(said["num_layers"]))
        self.final_norm = ScaleNorm(rngs, D, said["epsilon"])
        self.decoder_distances_RH = bias()
        decoder_layers = said["num_decoder_layers"] or said["num_layers"]
        self.decoder_layers = nnx.List(T5DecoderLayer(*of_layers) for _ in range(decoder_layers))
        self.decoder_norm = ScaleNorm(rngs, D, said["epsilon"])
        if not self.tied:
            self.head_VD = parameter(rngs, normal(1.0), V, D, purpose="embedding")
        self.check_folder()

    def enter(
        self, x_BTD: jax.Array, real_BT: jax.Array, types_BT: jax.Array | None = None
    ) -> jax.Array:
        return x_BTD

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        return self.final_norm(x_BTD)

    def shared(self, length: int) -> jax.Array:
        """Returns what is added to the scores of all layers, (H, T, T)."""
        away_TT = np.arange(length) - np.arange(length)[:, None]
        rows = two_sided_buckets(away_TT, self.said["buckets"], self.said["longest_distance"])
        return jnp.moveaxis(self.distances_RH[...][rows], -1, 0)

    def attended(
        self,
        layer: BackboneLayer,
        heads: Heads,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None,
        shared: Any,
    ) -> jax.Array:
        assert isinstance(layer, T5Layer)
        table = seen.table_BQJ[:, None] + shared
        return layer.attention.read(heads.queries_BTHK, seen.keys, table, keep_HTJ)

    # The decoder.

    def decode(
        self, words_BW: jax.Array, read_BJD: jax.Array, real_BJ: jax.Array
    ) -> list[jax.Array]:
        """Returns what the decoder makes of an answer's words: before and after each layer.

        Args:
            words_BW: (B, W) ids, the start word first.
            read_BJD: what the encoder gave, memory too.
            real_BJ: bool, false where there is padding.
        """
        W = words_BW.shape[1]
        away_WW = np.arange(W)[:, None] - np.arange(W)
        rows = t5_buckets(away_WW, self.said["buckets"], self.said["longest_distance"])
        bias_HWW = jnp.moveaxis(self.decoder_distances_RH[...][rows], -1, 0)
        table_1HWW = (bias_HWW + jnp.where(away_WW >= 0, 0.0, HIDDEN))[None]
        hidden_B11J = jnp.where(real_BJ, 0.0, HIDDEN)[:, None, None]
        x_BWD = self.embed(words_BW)
        states = [x_BWD]
        for layer in self.decoder_layers:
            x_BWD = layer(x_BWD, table_1HWW, read_BJD, hidden_B11J)
            states.append(x_BWD)
        states[-1] = self.decoder_norm(x_BWD)
        return states

    def word_logits(self, x_BWD: jax.Array, words_VD: jax.Array | None = None) -> jax.Array:
        """Maps (B, W, D) outputs of the decoder to (B, W, V), float32 or wider.

        words_VD: another table of words than the model's.
        """
        if self.tied:
            x_BWD = x_BWD * self.width**-0.5
        if words_VD is None:
            words_VD = (self.embedding_VD if self.tied else self.head_VD)[...]
        return wide(jnp.einsum("bwd,vd->bwv", x_BWD, words_VD.astype(x_BWD.dtype)))

    def shifted(self, words_BW: jax.Array) -> jax.Array:
        """Returns an answer's words as the decoder reads them: the start word, all but the last."""
        start_B1 = jnp.full_like(words_BW[:, :1], self.start_id)
        return jnp.concatenate([start_B1, words_BW[:, :-1]], axis=1)

    def write(self, length: int, read_BJD: jax.Array, real_BJ: jax.Array) -> jax.Array:
        """Returns the likeliest words, one after the other, int32 (B, length).

        Each is found by reading those before it again.
        """
        written_BW = jnp.zeros((len(read_BJD), length), jnp.int32)

        def step(number, written_BW):
            states = self.decode(self.shifted(written_BW), read_BJD, real_BJ)
            logits_BWV = self.word_logits(states[-1])
            best_B = jnp.argmax(logits_BWV[:, number], axis=-1).astype(jnp.int32)
            return written_BW.at[:, number].set(best_B)

        return jax.lax.fori_loop(0, length, step, written_BW)

    # On disk.

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        values = folder.values()
        values.only("is_encoder_decoder", True, "says one half of T5: brt reads both.")
        values.only("is_decoder", False, "says a decoder alone: brt reads both halves.")
        if not any(name.startswith("decoder.") for name in folder.tensors):
            raise ValueError(f"{folder.path} holds an encoder alone: brt reads both halves of T5.")
        vocabulary_size = values.whole("vocab_size", 32128)
        num_layers = number_of_layers(values, "num_layers", 6, folder)
        buckets = values.whole("relative_attention_num_buckets", 32)
        if buckets % 4:
            raise values.refused("relative_attention_num_buckets", "is not divided by 4.")
        padding_id = values.token("pad_token_id", vocabulary_size) or 0
        start_id = values.token("decoder_start_token_id", vocabulary_size)
        tied = values.flag("tie_word_embeddings", True)
        return dict(
            vocabulary_size=vocabulary_size,
            num_layers=num_layers,
            width=values.whole("d_model", 512),
            num_heads=values.whole("num_heads", 8),
            head_size=values.whole("d_kv", 64),
            feed_forward_size=values.whole("d_ff", 2048),
            num_decoder_layers=number_of_layers(values, "num_decoder_layers", num_layers, folder),
            network=values.choice("feed_forward_proj", tuple(NETWORKS), "relu"),
            epsilon=values.number("layer_norm_epsilon", 1e-6),
            buckets=buckets,
            longest_distance=values.whole("relative_attention_max_distance", 128),
            # Newer files say so in another key.
            tied=tied and values.flag("scale_decoder_outputs", True),
            start_id=padding_id if start_id is None else start_id,
            padding_id=padding_id,
        )

    def names(self) -> Names:
        tensors = [
            Tensor("shared.weight", ("embedding_VD",)),
            *_stack("encoder", "layers", len(self.layers), self.said["network"]),
            Tensor("encoder.final_layer_norm.weight", ("final_norm.scale_D",)),
            Tensor(_distances("encoder"), ("distances_RH",)),
            *_stack("decoder", "decoder_layers", len(self.decoder_layers), self.said["network"]),
            Tensor("decoder.final_layer_norm.weight", ("decoder_norm.scale_D",)),
            Tensor(_distances("decoder"), ("decoder_distances_RH",)),
        ]
        # The table of words may be stored again, under the names of its users.
        unread = (
            r"(encoder|decoder)\.embed_tokens\.weight",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        )
        head, also_unread = head_tensors("lm_head.weight", self.tied)
        return Names((*tensors, *head), "", (*unread, *also_unread))

    def config(self) -> dict[str, Any]:
        config = super().config()
        # Readers of the folder disagree on scale_decoder_outputs; all of them know this one.
        config.pop("scale_decoder_outputs", None)
        if not self.tied or "tie_word_embeddings" in config:
            config["tie_word_embeddings"] = self.tied
        return config

    def new_config(self) -> dict[str, Any]:
        said = self.said
        return {
            "model_type": "t5",
            "vocab_size": self.vocabulary_size,
            "d_model": self.width,
            "d_kv": self.sizes.head_size,
            "d_ff": self.sizes.feed_forward_size,
            "num_layers": len(self.layers),
            "num_decoder_layers": len(self.decoder_layers),
            "num_heads": self.sizes.num_heads,
            "relative_attention_num_buckets": said["buckets"],
            "relative_attention_max_distance": said["longest_distance"],
            "feed_forward_proj": said["network"],
            "layer_norm_epsilon": self.epsilon,
            "is_encoder_decoder": True,
            "pad_token_id": self.padding_id,
            "eos_token_id": 1,
            "decoder_start_token_id": self.start_id,
        }


def _distances(stack):
    return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def _attention(disk, ours):
    parts = {"q": "queries_DA", "k": "keys_DA", "v": "values_DA", "o": "output_AD"}
    return [
        Tensor(f"{disk}.{name}.weight", (f"{ours}.{part}",), turned=True)
        for name, part in parts.items()
    ]


def _stack(stack, layers, count, network):
    """Tensors of the layers of the encoder or the decoder."""
    tensors = []
    for i in range(count):
        disk, ours = f"{stack}.block.{i}.layer", f"{layers}.{i}"
        tensors.append(Tensor(f"{disk}.0.layer_norm.weight", (f"{ours}.attention_norm.scale_D",)))
        tensors += _attention(f"{disk}.0.SelfAttention", f"{ours}.attention")
        last = 1
        if stack == "decoder":
            last = 2
            tensors.append(Tensor(f"{disk}.1.layer_norm.weight", (f"{ours}.cross_norm.scale_D",)))
            tensors += _attention(f"{disk}.1.EncDecAttention", f"{ours}.cross")
        scale = f"{ours}.feed_forward_norm.scale_D"
        tensors.append(Tensor(f"{disk}.{last}.layer_norm.weight", (scale,)))
        matrices = {"wi": "hidden_DF", "wo": "output_FD"}
        if NETWORKS[network][1]:
            matrices = {"wi_0": "hidden_DF", "wi_1": "factor_DF", "wo": "output_FD"}
        for name, part in matrices.items():
            dense = f"{disk}.{last}.DenseReluDense.{name}.weight"
            tensors.append(Tensor(dense, (f"{ours}.{part}",), turned=True))
    return tensors
