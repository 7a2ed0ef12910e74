"""T5, versions 1.0 and 1.1: an encoder, and a decoder that writes answers.

Source: Raffel et al. 2020, arXiv:1910.10683; sizes, names and settings as in folders of
`model_type` t5.
"""

import functools
from collections.abc import Callable
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import ones
from numpy.typing import ArrayLike

from brt.checks import check_choice, check_share
from brt.models.counts import matrix_size
from brt.models.layers.attention import attend
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import wide
from brt.models.layers.positions_t5 import t5_buckets
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.pretrained.activations import ACTIVATIONS
from brt.models.pretrained.body import (
    HIDDEN,
    REMATS,
    BodyLayer,
    Drop,
    Heads,
    LayerKeys,
    Seen,
    linear,
)
from brt.models.pretrained.encoders.encoder import Encoder
from brt.models.pretrained.folder import HubFolder
from brt.models.pretrained.names import Names, Tensor
from brt.models.pretrained.source import number_of_layers, open_folder, settle
from brt.models.shape_letters import constrain

NETWORKS = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}
"""Kinds of feed-forward networks: activation, and whether a second matrix is multiplied in."""
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


def two_sided_buckets(key_minus_query: ArrayLike, buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance of an encoder: one half of them each way.

    Args:
        key_minus_query: positions between them, integers of any shape.
        buckets: their number, even.
        longest: distance from which the last of a side is used.
    """
    distance = np.asarray(key_minus_query)
    half = buckets // 2
    return t5_buckets(np.abs(distance), half, longest) + half * (distance > 0).astype(np.int32)


class ScaleNorm(nnx.Module):
    """x / rms(x) * scale, with an epsilon of its own.

    Args:
        width: D.
        epsilon: added to the mean square.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float):
        self.scale_D = parameter(rngs, ones, width)
        self.epsilon = epsilon

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """(..., D) of any float type; the same shape and type."""
        x = wide(x_BTD)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return (x * self.scale_D[...]).astype(x_BTD.dtype)


class Attention(nnx.Module):
    """Attention without biases and without a scale.

    Args:
        sizes: D, H, K.
    """

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes):
        D, A, K = sizes.width, sizes.attention_size, sizes.head_size
        self.num_heads = sizes.num_heads
        self.queries_DA = parameter(rngs, normal((D * K) ** -0.5), D, A)
        self.keys_DA = parameter(rngs, normal(D**-0.5), D, A)
        self.values_DA = parameter(rngs, normal(D**-0.5), D, A)
        self.output_AD = parameter(rngs, normal(A**-0.5), A, D)

    def queries(self, x_BTD: jax.Array) -> jax.Array:
        """Returns (B, T, H, K)."""
        return self._heads(linear(x_BTD, self.queries_DA))

    def keys(self, x_BTD: jax.Array) -> LayerKeys:
        """Returns keys and values, (B, T, H, K)."""
        keys_BTHK = self._heads(linear(x_BTD, self.keys_DA))
        return LayerKeys(keys_BTHK, self._heads(linear(x_BTD, self.values_DA)))

    def output(self, attended_BTHK: jax.Array) -> jax.Array:
        """Returns (B, T, D)."""
        attended_BTA = attended_BTHK.reshape(*attended_BTHK.shape[:-2], -1)
        return linear(attended_BTA, self.output_AD)

    def read(
        self, queries_BTHK: jax.Array, keys: LayerKeys, table: jax.Array, keep: jax.Array | None
    ) -> jax.Array:
        """Returns what queries read, (B, T, H, K).

        Args:
            table: added to the scores, (B, H, T, J) or axes of 1.
            keep: multiplies the weights, or None.
        """
        scale_H = jnp.ones(self.num_heads, wide(queries_BTHK).dtype)
        return attend(queries_BTHK, keys.keys_BJGK, keys.values_BJGK, scale_H, table, keep)

    def _heads(self, y_BTA):
        return y_BTA.reshape(*y_BTA.shape[:-1], self.num_heads, -1)


class T5Layer(BodyLayer):
    """One layer of the encoder: norm, attention, residual, norm, network, residual.

    Args:
        sizes: D, H, K, F.
        network: one of `NETWORKS`.
        epsilon: of the norms.
    """

    score_scale = 1.0

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, network: str, epsilon: float):
        D, F = sizes.width, sizes.feed_forward_size
        self.sizes = sizes
        self.network = network
        self.attention_norm = ScaleNorm(rngs, D, epsilon)
        self.attention = Attention(rngs, sizes)
        self.feed_forward_norm = ScaleNorm(rngs, D, epsilon)
        self.hidden_DF = parameter(rngs, normal(D**-0.5), D, F)
        if NETWORKS[network][1]:
            self.factor_DF = parameter(rngs, normal(D**-0.5), D, F)
        self.output_FD = parameter(rngs, normal(F**-0.5), F, D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        x_BTD = self.attention_norm(x_BTD)
        return Heads(self.attention.queries(x_BTD), self.attention.keys(x_BTD), x_BTD)

    def finish(
        self,
        x_BTD: jax.Array,
        heads: Heads,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop | None = None,
    ) -> jax.Array:
        y_BTD = self.attention.output(attended_BTHK)
        if added_BTD is not None:
            y_BTD = y_BTD + added_BTD
        x_BTD = x_BTD + (y_BTD if drop is None else drop(y_BTD))
        return self.feed_forward(constrain(x_BTD, "BTD"), drop)

    def feed_forward(self, x_BTD: jax.Array, drop: Drop | None = None) -> jax.Array:
        """Returns x + network(norm(x))."""
        activation, gated = NETWORKS[self.network]
        with jax.named_scope("feed_forward"):
            normed_BTD = self.feed_forward_norm(x_BTD)
            h_BTF = ACTIVATIONS[activation](linear(normed_BTD, self.hidden_DF))
            if gated:
                h_BTF = h_BTF * linear(normed_BTD, self.factor_DF)
            y_BTD = linear(h_BTF, self.output_FD)
            return constrain(x_BTD + (y_BTD if drop is None else drop(y_BTD)), "BTD")


class T5DecoderLayer(T5Layer):
    """One layer of the decoder: as `T5Layer`, with attention to the encoder before the network."""

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, network: str, epsilon: float):
        super().__init__(rngs, sizes, network, epsilon)
        self.cross_norm = ScaleNorm(rngs, sizes.width, epsilon)
        self.cross = Attention(rngs, sizes)

    def __call__(
        self, x_BTD: jax.Array, table: jax.Array, read_BJD: jax.Array, hidden_B11J: jax.Array
    ) -> jax.Array:
        """Returns the layer's outputs, (B, T, D).

        Args:
            x_BTD: its inputs.
            table: added to the scores among them.
            read_BJD: what the encoder gave.
            hidden_B11J: added to the scores of it.
        """
        heads = self.heads(x_BTD)
        attended = self.attention.read(heads.queries_BTHK, heads.keys, table, None)
        x_BTD = x_BTD + self.attention.output(attended)
        queries = self.cross.queries(self.cross_norm(x_BTD))
        attended = self.cross.read(queries, self.cross.keys(read_BJD), hidden_B11J, None)
        return self.feed_forward(x_BTD + self.cross.output(attended))


@gin.configurable(denylist=["rngs", "folder"])
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
    takes_extras = False
    padding_learns = True
    memory_after = 0

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: int | None = None,
        num_layers: int | None = None,
        width: int | None = None,
        num_heads: int | None = None,
        head_size: int | None = None,
        feed_forward_size: int | None = None,
        num_decoder_layers: int | None = None,
        network: str | None = None,
        epsilon: float | None = None,
        buckets: int | None = None,
        longest_distance: int | None = None,
        tied: bool | None = None,
        start_id: int | None = None,
        padding_id: int | None = None,
        dropout: float = 0.0,
        activation_dtype: str = "float32",
        remat: str = "none",
        folder: str | None = None,
    ):
        check_choice("T5.activation_dtype", activation_dtype, DTYPES)
        check_choice("T5.remat", remat, REMATS)
        check_share("T5.dropout", dropout)
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
        self.folder = open_folder(folder, "T5", self.model_types)
        found = settings_of(self.folder) if self.folder else None
        said = settle("T5", bound, found, DEFAULTS, self.folder)
        self.said = said
        check_choice("T5.network", said["network"], tuple(NETWORKS))
        D, V = said["width"], said["vocabulary_size"]
        self.width = D
        self.vocabulary_size = V
        sizes = said["num_heads"], said["head_size"], said["feed_forward_size"]
        self.sizes = Sizes(D, *sizes)
        self.activation_name = NETWORKS[said["network"]][0]
        self.epsilon = said["epsilon"]
        self.padding_id = said["padding_id"]
        self.start_id = said["start_id"]
        self.tied = said["tied"]
        self.num_positions = None
        self.dropout = dropout
        self.dtype = jnp.dtype(activation_dtype)
        self.remat = remat
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
        if self.folder:
            self.names().check(self.folder, nnx.to_pure_dict(nnx.state(self, nnx.Param)))

    @property
    def activation(self) -> Callable[[jax.Array], jax.Array]:
        return ACTIVATIONS[self.activation_name]

    @property
    def words(self) -> nnx.Param:
        return self.embedding_VD

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
        layer: BodyLayer,
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

    def flops_of_layers(self, keys_seen: float) -> float:
        A = self.sizes.attention_size
        return sum(2 * matrix_size(layer) + 4 * A * keys_seen for layer in self.layers)

    # On disk.

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
        unread: tuple[str, ...] = (
            r"(encoder|decoder)\.embed_tokens\.weight",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        )
        if self.tied:
            unread += (r"lm_head\.weight",)
        else:
            tensors.append(Tensor("lm_head.weight", ("head_VD",)))
        return Names(tuple(tensors), "", unread)

    def config(self) -> dict[str, Any]:
        if self.folder:
            config = dict(self.folder.config)
        else:
            said = self.said
            config = {
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
        for key in ("dtype", "torch_dtype"):
            if key in config:
                config[key] = "float32"
        # Readers of the folder disagree on scale_decoder_outputs; all of them know this one.
        config.pop("scale_decoder_outputs", None)
        if not self.tied or "tie_word_embeddings" in config:
            config["tie_word_embeddings"] = self.tied
        return config


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


def settings_of(folder: HubFolder) -> dict[str, Any]:
    """Returns the settings of `T5` that a folder's config.json says.

    Raises:
        ValueError: a value of another type, or that brt does not compute; naming the key.
    """
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
