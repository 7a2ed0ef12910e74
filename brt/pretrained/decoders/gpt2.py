"""GPT-2: learned positions, norms before attention and MLP, biases everywhere.

Source: Radford et al. 2019; folders of `model_type` gpt2.
"""

import dataclasses
import math

import jax
from flax import nnx

from brt.checks import Count, CountFrom0, Positive, configurable
from brt.models.layers.initializers import normal, parameter
from brt.pretrained.activations import Activation
from brt.pretrained.backbone_layer import STD, DenseLayer
from brt.pretrained.decoders.decoder import Decoder, DecoderSettings, begin_of_text
from brt.pretrained.names import Tensor, norm_tensors
from brt.pretrained.settings import hub

END_OF_TEXT = 50256


@dataclasses.dataclass(frozen=True)
class GPT2Settings(DecoderSettings):
    """The settings of GPT-2.

    scale_scores: divide scores by the root of K.
    inverse_layer_scale: divide them by the layer's number, from 1, too.
    """

    model_type = "gpt2"
    prefix = "transformer."
    embedding_name = "transformer.wte.weight"
    fixed = {"add_cross_attention": False, "is_encoder_decoder": False}

    vocabulary_size: Count = hub("vocab_size", absent=50257)
    num_layers: Count = hub("n_layer", absent=12)
    width: Count = hub("n_embd", absent=768)
    num_heads: Count = hub("n_head", absent=12)
    feed_forward_size: Count | None = hub("n_inner", default=None)
    num_positions: Count = hub("n_positions", absent=1024)
    activation: Activation = hub("activation_function", default="gelu_new")
    epsilon: Positive = hub("layer_norm_epsilon", default=1e-5)
    scale_scores: bool = hub("scale_attn_weights", default=True)
    inverse_layer_scale: bool = hub("scale_attn_by_inverse_layer_idx", default=False)
    tied: bool = hub("tie_word_embeddings", default=True)
    begin_id: CountFrom0 | None = begin_of_text(END_OF_TEXT)


class GPT2Layer(DenseLayer):
    def __init__(self, rngs: nnx.Rngs, settings: GPT2Settings, number: int):
        super().__init__(rngs, settings, STD / math.sqrt(2 * settings.num_layers))
        scale = self.score_scale if settings.scale_scores else 1.0
        self.score_scale = scale / number if settings.inverse_layer_scale else scale


@configurable(denylist=["rngs", "folder"])
class GPT2(Decoder):
    """GPT-2, with the parameters of `GPT2Settings`."""

    settings_type = GPT2Settings
    model_types = {"gpt2": "GPT2LMHeadModel"}
    layer_type = GPT2Layer
    layers_name, norm_name = "transformer.h", "transformer.ln_f"
    ignored = (
        r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
        *(r"multiple_choice_head\..*", r"score\.weight", r"classifier\.(weight|bias)"),
    )

    def build_positions(self, rngs: nnx.Rngs) -> None:
        self.positions_RD = parameter(
            *(rngs, normal(STD), self.num_positions, self.width),
            purpose="embedding",
            multiplied=False,
        )

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return x_BTD + self.positions_RD[...].astype(x_BTD.dtype)[positions_BT]

    def position_tensors(self) -> list[Tensor]:
        return [Tensor("transformer.wpe.weight", ("positions_RD",))]

    def one_layer(self) -> list[Tensor]:
        return [
            *norm_tensors("ln_1", "attention_norm"),
            *norm_tensors("ln_2", "feed_forward_norm"),
            Tensor("attn.c_attn.weight", ("queries_DA", "keys_DA", "values_DA")),
            Tensor("attn.c_attn.bias", ("queries_bias_A", "keys_bias_A", "values_bias_A")),
            Tensor("attn.c_proj.weight", ("output_AD",)),
            Tensor("attn.c_proj.bias", ("output_bias_D",)),
            Tensor("mlp.c_fc.weight", ("hidden_DF",)),
            Tensor("mlp.c_fc.bias", ("hidden_bias_F",)),
            Tensor("mlp.c_proj.weight", ("output_FD",)),
            Tensor("mlp.c_proj.bias", ("feed_forward_bias_D",)),
        ]
