"""GPT-NeoX, the form of Pythia: rotary positions on a part of each head, parallel residuals.

Source: Black et al. 2022, arXiv:2204.06745; folders of `model_type` gpt_neox.
"""

import dataclasses
from typing import Self

from flax import nnx

from brt.checks import Count, CountFrom0, Part, Positive, configurable
from brt.pretrained.activations import Activation
from brt.pretrained.backbone_layer import DenseLayer
from brt.pretrained.decoders.decoder import Decoder, DecoderSettings, begin_of_text
from brt.pretrained.decoders.rotary import RotaryLayer
from brt.pretrained.names import Tensor, matrix_tensors, norm_tensors
from brt.pretrained.settings import Misfit, hub


@dataclasses.dataclass(frozen=True)
class GPTNeoXSettings(DecoderSettings):
    """The settings of GPT-NeoX.

    rotary_base, rotary_share: of the angles; the part of a head that is rotated.
    """

    model_type = "gpt_neox"
    prefix = "gpt_neox."
    embedding_name = "gpt_neox.embed_in.weight"
    head_name = "embed_out.weight"
    fixed = {
        f"{key}.{kind}": "default"
        for key in ("rope_parameters", "rope_scaling")
        for kind in ("rope_type", "type")
    }

    vocabulary_size: Count = hub("vocab_size", absent=50_432)
    num_layers: Count = hub("num_hidden_layers", absent=44)
    width: Count = hub("hidden_size", absent=6144)
    num_heads: Count = hub("num_attention_heads", absent=64)
    feed_forward_size: Count | None = hub("intermediate_size", default=None, absent=24_576)
    num_positions: Count = hub("max_position_embeddings", absent=2048)
    activation: Activation = hub("hidden_act", default="gelu")
    epsilon: Positive = hub("layer_norm_eps", default=1e-5)
    rotary_base: Positive = hub(
        "rope_parameters.rope_theta", "rotary_emb_base", "rope_theta", default=10_000.0
    )
    rotary_share: Part = hub(
        *("rope_parameters.partial_rotary_factor", "rotary_pct", "partial_rotary_factor"),
        default=0.25,
    )
    parallel: bool = hub("use_parallel_residual", default=True)
    biases: bool = hub("attention_bias", default=True)
    tied: bool = hub("tie_word_embeddings", default=False)
    begin_id: CountFrom0 | None = begin_of_text(0)

    @property
    def rotated(self) -> int:
        return int(self.sizes().head_size * self.rotary_share)

    def resolved(self) -> Self:
        settings = super().resolved()
        K = settings.sizes().head_size
        if settings.rotated % 2 or not 0 < settings.rotated <= K:
            raise Misfit(
                "rotary_share",
                f"rotates {settings.rotated} of the {K} entries of a head: it must be an even "
                "number of them",
            )
        return settings


class GPTNeoXLayer(DenseLayer, RotaryLayer):
    def __init__(self, rngs: nnx.Rngs, settings: GPTNeoXSettings, number: int = 1):
        super().__init__(rngs, settings, attention_biases=settings.biases)
        self.rotated = settings.rotated
        self.rotary_base = settings.rotary_base
        self.parallel = settings.parallel


@configurable(denylist=["rngs", "folder"])
class GPTNeoX(Decoder):
    """GPT-NeoX, with the parameters of `GPTNeoXSettings`."""

    settings_type = GPTNeoXSettings
    model_types = {"gpt_neox": "GPTNeoXForCausalLM"}
    layer_type = GPTNeoXLayer
    relative = True
    layers_name, norm_name = "gpt_neox.layers", "gpt_neox.final_layer_norm"
    ignored = (
        r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
        r"score\.weight",
    )
    old_endings = (("lm_head.weight", "embed_out.weight"),)

    def one_layer(self) -> list[Tensor]:
        biases, heads = self.settings.biases, self.sizes.num_heads
        qkv = "attention.query_key_value"
        matrices = "queries_DA", "keys_DA", "values_DA"
        tensors = [
            Tensor(f"{qkv}.weight", matrices, transposed=True, heads=heads),
            *matrix_tensors("attention.dense", "output_AD", "output_bias_D" if biases else ""),
            *matrix_tensors("mlp.dense_h_to_4h", "hidden_DF", "hidden_bias_F"),
            *matrix_tensors("mlp.dense_4h_to_h", "output_FD", "feed_forward_bias_D"),
            *norm_tensors("input_layernorm", "attention_norm"),
            *norm_tensors("post_attention_layernorm", "feed_forward_norm"),
        ]
        if biases:
            of_heads = "queries_bias_A", "keys_bias_A", "values_bias_A"
            tensors.append(Tensor(f"{qkv}.bias", of_heads, heads=heads))
        return tensors
