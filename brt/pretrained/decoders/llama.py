"""Llama, and families of its form: Qwen2, SmolLM, Mistral without a window.

Rotary positions, root-mean-square norms, grouped keys, a gated MLP; only Qwen2 has biases.

Source: Touvron et al. 2023, arXiv:2302.13971; folders of `model_type` llama, qwen2 and mistral.
"""

import dataclasses
import functools
import math
from typing import Annotated, Any, ClassVar, Self

import jax
from flax import nnx
from jax.nn.initializers import zeros

from brt.checks import Count, CountFrom0, OneOf, Positive, configurable
from brt.models.layers.initializers import normal, parameter
from brt.pretrained.backbone_layer import STD, Heads, LayerKeys, RootNorm, linear, split_heads
from brt.pretrained.decoders.decoder import Decoder, DecoderSettings, begin_of_text
from brt.pretrained.decoders.rotary import Llama3Scaling, RotaryLayer, Scaling
from brt.pretrained.names import Tensor, matrix_tensors, norm_tensors
from brt.pretrained.settings import HubConfig, Misfit, hub


def by_model_type(**values: Any) -> Any:
    return lambda settings: values.get(settings["model_type"], values.get("others"))


@dataclasses.dataclass(frozen=True)
class LlamaSettings(DecoderSettings):
    """The settings of Llama.

    num_key_heads: G; None: H. head_size: K; None: D / H.
    rotary_scaling: as `Llama3Scaling`; None for none.
    biases: "heads" (of queries, keys and values, Qwen2) or "all" (of the output too).
    """

    prefix = "model."
    embedding_name = "model.embed_tokens.weight"
    fixed = {
        "hidden_act": "silu",
        "mlp_bias": False,
        "pretraining_tp": 1,
        "use_sliding_window": False,
        "partial_rotary_factor": 1,
        "rope_parameters.partial_rotary_factor": 1,
    }
    activation: ClassVar[str] = "silu"

    vocabulary_size: Count = hub("vocab_size", absent=by_model_type(qwen2=151_936, others=32_000))
    num_layers: Count = hub("num_hidden_layers", absent=32)
    width: Count = hub("hidden_size", absent=4096)
    num_heads: Count = hub("num_attention_heads", absent=32)
    num_key_heads: Count | None = hub(
        "num_key_value_heads", default=None, absent=by_model_type(mistral=8)
    )
    head_size: Count | None = hub("head_dim", default=None)
    feed_forward_size: Count = hub(
        "intermediate_size", absent=by_model_type(llama=11_008, qwen2=22_016, mistral=14_336)
    )
    num_positions: Count = hub(
        "max_position_embeddings", absent=by_model_type(llama=2048, qwen2=32_768, mistral=131_072)
    )
    epsilon: Positive = hub("rms_norm_eps", default=1e-6)
    rotary_base: Positive = hub("rope_parameters.rope_theta", "rope_theta", default=10_000.0)
    rotary_scaling: Scaling | None = hub(
        *("rope_parameters", "rope_scaling"),
        default=None,
        read=Llama3Scaling.read,
        write=lambda scaling: scaling and scaling.written(),
        written=("rope_scaling",),
    )
    biases: Annotated[str, OneOf(("none", "heads", "all"))] = hub(
        "attention_bias",
        default="none",
        read={False: "none", True: "all"}.__getitem__,
        write={"all": True}.get,
    )
    tied: bool = hub("tie_word_embeddings", default=False)
    begin_id: CountFrom0 | None = begin_of_text(1)

    @property
    def model_type(self) -> str:  # type: ignore[override]
        return "qwen2" if self.biases == "heads" else "llama"

    @classmethod
    def adjust(cls, settings: dict[str, Any], config: HubConfig) -> None:
        super().adjust(settings, config)
        types = config.get("layer_types") or []
        if not isinstance(types, list) or any(kind != "full_attention" for kind in types):
            raise config.refused("layer_types", "has layers other than full_attention")
        # null means no window, and an absent key 4096.
        window = config.folder.config.get("sliding_window", 4096)
        shortest = settings["num_positions"] if config.model_type == "mistral" else 0
        if window is not None and not (isinstance(window, int) and window >= shortest):
            raise config.refused(
                "sliding_window", f"hides keys of {shortest} positions, which is not supported"
            )
        if config.model_type == "qwen2":
            settings["biases"] = "heads"

    def resolved(self) -> Self:
        settings = super().resolved()
        K = settings.sizes().head_size
        G = self.num_key_heads or self.num_heads
        if self.num_heads % G:
            raise Misfit("num_key_heads", f"does not divide num_heads = {self.num_heads}")
        if K % 2:
            raise Misfit("head_size", f"gives heads of {K}, which must be even: halves are rotated")
        scaling = Llama3Scaling(*self.rotary_scaling) if self.rotary_scaling else None
        return dataclasses.replace(settings, num_key_heads=G, head_size=K, rotary_scaling=scaling)

    def config(self) -> dict[str, Any]:
        return super().config() | {"hidden_act": "silu"}


class LlamaLayer(RotaryLayer):
    def __init__(self, rngs: nnx.Rngs, settings: LlamaSettings, number: int = 1):
        sizes = settings.sizes()
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        self.num_key_heads = settings.num_key_heads or sizes.num_heads
        E = self.num_key_heads * sizes.head_size
        matrix = functools.partial(parameter, rngs, normal(STD))
        self.sizes = sizes
        self.score_scale = 1 / math.sqrt(sizes.head_size)
        self.rotated = sizes.head_size
        self.rotary_base = settings.rotary_base
        self.rotary_scaling = settings.rotary_scaling  # type: ignore[assignment]
        self.attention_norm = RootNorm(rngs, D, settings.epsilon)
        self.queries_DA = matrix(D, A)
        self.keys_DE = matrix(D, E)
        self.values_DE = matrix(D, E)
        self.output_AD = matrix(A, D)
        biases = settings.biases
        self.queries_bias_A = None if biases == "none" else parameter(rngs, zeros, A)
        self.keys_bias_E = None if biases == "none" else parameter(rngs, zeros, E)
        self.values_bias_E = None if biases == "none" else parameter(rngs, zeros, E)
        self.output_bias_D = parameter(rngs, zeros, D) if biases == "all" else None
        self.feed_forward_norm = RootNorm(rngs, D, settings.epsilon)
        self.gate_DF = matrix(D, F)
        self.hidden_DF = matrix(D, F)
        self.output_FD = matrix(F, D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        x_BTD = self.attention_norm(x_BTD)
        G = self.num_key_heads
        keys_BTGK = split_heads(linear(x_BTD, self.keys_DE, self.keys_bias_E), G)
        values_BTGK = split_heads(linear(x_BTD, self.values_DE, self.values_bias_E), G)
        queries_BTA = linear(x_BTD, self.queries_DA, self.queries_bias_A)
        queries_BTHK = split_heads(queries_BTA, self.sizes.num_heads)
        return Heads(queries_BTHK, LayerKeys(keys_BTGK, values_BTGK), x_BTD)

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = self.feed_forward_norm(x_BTD)
        gate_BTF = jax.nn.silu(linear(x_BTD, self.gate_DF))
        return linear(gate_BTF * linear(x_BTD, self.hidden_DF), self.output_FD)


@configurable(denylist=["rngs", "folder"])
class Llama(Decoder):
    """Llama, with the parameters of `LlamaSettings`."""

    settings_type = LlamaSettings
    model_types = {
        "llama": "LlamaForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "mistral": "MistralForCausalLM",
    }
    layer_type, norm_type = LlamaLayer, RootNorm
    relative = True
    layers_name, norm_name = "model.layers", "model.norm"
    ignored = (
        r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"model\.rotary_emb\.inv_freq",
        r"score\.weight",
    )

    def one_layer(self) -> list[Tensor]:
        heads, output = self.settings.biases != "none", self.settings.biases == "all"
        return [
            *matrix_tensors("self_attn.q_proj", "queries_DA", "queries_bias_A" if heads else ""),
            *matrix_tensors("self_attn.k_proj", "keys_DE", "keys_bias_E" if heads else ""),
            *matrix_tensors("self_attn.v_proj", "values_DE", "values_bias_E" if heads else ""),
            *matrix_tensors("self_attn.o_proj", "output_AD", "output_bias_D" if output else ""),
            *matrix_tensors("mlp.gate_proj", "gate_DF"),
            *matrix_tensors("mlp.up_proj", "hidden_DF"),
            *matrix_tensors("mlp.down_proj", "output_FD"),
            *norm_tensors("input_layernorm", "attention_norm", bias=False),
            *norm_tensors("post_attention_layernorm", "feed_forward_norm", bias=False),
        ]
