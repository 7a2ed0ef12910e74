"""GPT-2: learned positions, norms before attention and network, biases everywhere.

Source: Radford et al. 2019; sizes, names and settings as in folders of `model_type` gpt2.
"""

import functools
import math
from typing import Annotated, Any

import jax
from flax import nnx
from jax.nn.initializers import zeros

from brt.checks import Count, CountFrom0, OneOf, Positive, Share, check_choice, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.shape_letters import constrain
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone import REMATS
from brt.pretrained.backbone_layer import BackboneLayer, Drop, Heads, Norm, linear, unchanged
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names, Tensor, head_tensors, norm_tensors
from brt.pretrained.source import begin_of, is_tied, number_of_layers

GPT2_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu")
END_OF_TEXT = 50256
"""The id of `<|endoftext|>` where a folder names none."""
DEFAULTS = dict(
    feed_forward_size=None,
    activation="gelu_new",
    epsilon=1e-5,
    scale_scores=True,
    inverse_layer_scale=False,
    tied=True,
    begin_id=None,
)
STD = 0.02
WORDS = ("transformer.wte.weight", "wte.weight")
"""Names on disk of the table of words."""
OTHER_HEADS = (r"multiple_choice_head\..*", r"score\.weight", r"classifier\.(weight|bias)")
"""Heads of other tasks that a folder may hold."""


class GPT2Layer(BackboneLayer):
    """One layer: norm, attention, residual, norm, network, residual.

    Args:
        sizes: D, H, K, F.
        activation: of the network.
        epsilon: of the norms.
        score_scale: factor of the scores.
        num_layers: of the body; matrices that write into the residual stream begin smaller by
            sqrt(2 * num_layers).
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        activation: str,
        epsilon: float,
        score_scale: float,
        num_layers: int,
    ):
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        matrix = functools.partial(parameter, rngs, normal(STD))
        writes = functools.partial(parameter, rngs, normal(STD / math.sqrt(2 * num_layers)))
        bias = functools.partial(parameter, rngs, zeros)
        self.sizes = sizes
        self.activation = activation
        self.score_scale = score_scale
        self.attention_norm = Norm(rngs, D, epsilon)
        self.queries_DA = matrix(D, A)
        self.queries_bias_A = bias(A)
        self.keys_DA = matrix(D, A)
        self.keys_bias_A = bias(A)
        self.values_DA = matrix(D, A)
        self.values_bias_A = bias(A)
        self.output_AD = writes(A, D)
        self.output_bias_D = bias(D)
        self.feed_forward_norm = Norm(rngs, D, epsilon)
        self.hidden_DF = matrix(D, F)
        self.hidden_bias_F = bias(F)
        self.output_FD = writes(F, D)
        self.feed_forward_bias_D = bias(D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        return self.project_heads(self.attention_norm(x_BTD))

    def finish(
        self,
        x_BTD: jax.Array,
        heads: Heads,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop = unchanged,
    ) -> jax.Array:
        y_BTD = self.written(attended_BTHK, added_BTD)
        x_BTD = constrain(x_BTD + drop(y_BTD), "BTD")
        with jax.named_scope("feed_forward"):
            h_BTF = linear(self.feed_forward_norm(x_BTD), self.hidden_DF, self.hidden_bias_F)
            h_BTF = ACTIVATIONS[self.activation](h_BTF)
            y_BTD = linear(h_BTF, self.output_FD, self.feed_forward_bias_D)
            return constrain(x_BTD + drop(y_BTD), "BTD")


@configurable(denylist=["rngs", "folder"])
class GPT2(Decoder):
    """GPT-2. Sizes are bound, or read from a folder; a binding that says otherwise is refused.

    Args:
        vocabulary_size, num_layers, width, num_heads: V, n, D, H; K = D / H.
        feed_forward_size: F; 4 D where nothing is said.
        num_positions: R, positions of a window at most.
        activation: "gelu_new" (the default), "gelu_pytorch_tanh", "gelu" or "relu".
        epsilon: of norms, 1e-5.
        scale_scores: whether scores are divided by the root of K.
        inverse_layer_scale: whether they are divided by the layer's number, from 1, too.
        tied: whether logits are products with the table of words.
        begin_id: the word that stands before a document; the folder's beginning of a text, or its
            end, or the last word.
        dropout: rate on embeddings, attention weights, and what enters the residual stream. A
            folder's own rates are of its pretraining and are not taken.
        activation_dtype: "float32" or "bfloat16"; parameters stay float32.
        remat: "none", or "layer" to recompute each layer in the backward pass.
        folder: path of a folder, before `Pretrained.folder`.

    Raises:
        FileNotFoundError, ValueError: a folder that is refused; sizes that are missing or do not
            fit together.
    """

    model_types = ("gpt2",)
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
        activation: str | None = None,
        epsilon: Positive | None = None,
        scale_scores: bool | None = None,
        inverse_layer_scale: bool | None = None,
        tied: bool | None = None,
        begin_id: CountFrom0 | None = None,
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
            activation=activation,
            epsilon=epsilon,
            scale_scores=scale_scores,
            inverse_layer_scale=inverse_layer_scale,
            tied=tied,
            begin_id=begin_id,
        )
        said = self.settle(
            bound, dropout=dropout, activation_dtype=activation_dtype, remat=remat, folder=folder
        )
        self._set(said)
        D, V = self.width, self.vocabulary_size
        self.embedding_VD = parameter(rngs, normal(STD), V, D, purpose="embedding")
        self.positions_RD = parameter(
            *(rngs, normal(STD), self.num_positions, D), purpose="embedding", multiplied=False
        )
        self.layers = nnx.List(
            GPT2Layer(
                rngs,
                self.sizes,
                said["activation"],
                said["epsilon"],
                self._score_scale(number),
                said["num_layers"],
            )
            for number in range(1, said["num_layers"] + 1)
        )
        self.final_norm = Norm(rngs, D, said["epsilon"])
        if not self.tied:
            self.head_VD = parameter(rngs, normal(STD), V, D, purpose="embedding")
        self.check_folder()

    def _set(self, said):
        """Takes settings over as attributes, and checks that they fit together."""
        check_choice("GPT2.activation", said["activation"], GPT2_ACTIVATIONS)
        K = self.divided_width(said)
        D = said["width"]
        H = said["num_heads"]
        sizes = Sizes(D, H, K, said["feed_forward_size"] or 4 * D)
        self.take_decoder(said, sizes, said["activation"], num_key_heads=H)
        self.scale_scores = said["scale_scores"]
        self.inverse_layer_scale = said["inverse_layer_scale"]

    def _score_scale(self, number):
        scale = 1 / math.sqrt(self.sizes.head_size) if self.scale_scores else 1.0
        return scale / number if self.inverse_layer_scale else scale

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return x_BTD + self.positions_RD[...].astype(x_BTD.dtype)[positions_BT]

    # On disk.

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        values = folder.values()
        values.only(
            "add_cross_attention", False, "adds attention to an encoder, and there is none."
        )
        values.only("is_encoder_decoder", False, "says an encoder and a decoder: GPT-2 has none.")
        width = values.whole("n_embd", 768)
        num_heads = values.whole("n_head", 12)
        if width % num_heads:
            raise values.refused("n_embd", f"is not divided by n_head = {num_heads}.")
        vocabulary_size = values.whole("vocab_size", 50257)
        return dict(
            vocabulary_size=vocabulary_size,
            num_layers=number_of_layers(values, "n_layer", 12, folder),
            width=width,
            num_heads=num_heads,
            feed_forward_size=values.whole("n_inner", 4 * width),
            num_positions=values.whole("n_positions", 1024),
            activation=values.choice("activation_function", GPT2_ACTIVATIONS, "gelu_new"),
            epsilon=values.number("layer_norm_epsilon", 1e-5),
            scale_scores=values.flag("scale_attn_weights", True),
            inverse_layer_scale=values.flag("scale_attn_by_inverse_layer_idx", False),
            tied=is_tied(values, folder, True, "lm_head.weight", WORDS),
            begin_id=begin_of(values, vocabulary_size, END_OF_TEXT),
        )

    def names(self) -> Names:
        tensors = [
            Tensor("transformer.wte.weight", ("embedding_VD",)),
            Tensor("transformer.wpe.weight", ("positions_RD",)),
        ]
        for i in range(len(self.layers)):
            disk, ours = f"transformer.h.{i}.", f"layers.{i}."
            heads = [f"{ours}{part}" for part in ("queries", "keys", "values")]
            tensors += [
                *norm_tensors(f"{disk}ln_1", f"{ours}attention_norm"),
                Tensor(f"{disk}attn.c_attn.weight", tuple(f"{head}_DA" for head in heads)),
                Tensor(f"{disk}attn.c_attn.bias", tuple(f"{head}_bias_A" for head in heads)),
                Tensor(f"{disk}attn.c_proj.weight", (f"{ours}output_AD",)),
                Tensor(f"{disk}attn.c_proj.bias", (f"{ours}output_bias_D",)),
                *norm_tensors(f"{disk}ln_2", f"{ours}feed_forward_norm"),
                Tensor(f"{disk}mlp.c_fc.weight", (f"{ours}hidden_DF",)),
                Tensor(f"{disk}mlp.c_fc.bias", (f"{ours}hidden_bias_F",)),
                Tensor(f"{disk}mlp.c_proj.weight", (f"{ours}output_FD",)),
                Tensor(f"{disk}mlp.c_proj.bias", (f"{ours}feed_forward_bias_D",)),
            ]
        tensors += norm_tensors("transformer.ln_f", "final_norm")
        ignored = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)", *OTHER_HEADS)
        head, unread = head_tensors("lm_head.weight", self.tied)
        return Names((*tensors, *head), "transformer.", (*ignored, *unread))

    def config(self) -> dict[str, Any]:
        config = super().config()
        config["architectures"] = ["GPT2LMHeadModel"]
        if not self.tied or "tie_word_embeddings" in config:
            config["tie_word_embeddings"] = self.tied
        return config

    def new_config(self) -> dict[str, Any]:
        return {
            "model_type": "gpt2",
            "vocab_size": self.vocabulary_size,
            "n_positions": self.num_positions,
            "n_embd": self.width,
            "n_layer": len(self.layers),
            "n_head": self.sizes.num_heads,
            "n_inner": self.sizes.feed_forward_size,
            "activation_function": self.activation_name,
            "layer_norm_epsilon": self.epsilon,
            "scale_attn_weights": self.scale_scores,
            "scale_attn_by_inverse_layer_idx": self.inverse_layer_scale,
            "tie_word_embeddings": self.tied,
            "bos_token_id": self.begin_id,
            "eos_token_id": self.begin_id,
        }
