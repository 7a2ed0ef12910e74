"""Llama, and what has its form: Qwen2, SmolLM, Mistral without a window.

Rotary positions, root-mean-square norms, grouped keys, a gated network, no biases but those of
Qwen2's queries, keys and values. Letters as in `brt.pretrained`.

Source: Touvron et al. 2023, arXiv:2302.13971; folders of `model_type` llama, qwen2 and mistral.
"""

import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros

from brt.checks import (
    Count,
    CountFrom0,
    OneOf,
    Positive,
    Share,
    check,
    check_choice,
    configurable,
)
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import wide
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.shape_letters import constrain
from brt.pretrained.backbone import REMATS
from brt.pretrained.backbone_layer import (
    Drop,
    Heads,
    LayerKeys,
    attention_scale,
    linear,
    split_heads,
    unchanged,
)
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.decoders.llama_settings import settings_of
from brt.pretrained.decoders.rotary import Llama3Scaling, RotaryLayer
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names, Tensor, head_tensors, matrix_tensors, norm_tensors

BIASES = ("none", "heads", "all")
STD = 0.02
DEFAULTS = dict(
    num_key_heads=None,
    head_size=None,
    epsilon=1e-6,
    rotary_base=10_000.0,
    rotary_scaling=None,
    biases="none",
    tied=False,
    begin_id=None,
)


class RootNorm(nnx.Module):
    """x / rms(x) * scale, with an epsilon of its own; the product in the type of x."""

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float):
        self.scale_D = parameter(rngs, ones, width)
        self.epsilon = epsilon

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """(..., D) of any float type; the same shape and type."""
        x = wide(x_BTD)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x.astype(x_BTD.dtype) * self.scale_D[...].astype(x_BTD.dtype)


class LlamaLayer(RotaryLayer):
    """One layer: norm, attention, residual, norm, gated network, residual.

    Args:
        sizes: D, H, K, F.
        num_key_heads: G.
        epsilon: of the norms.
        rotary_base, rotary_scaling: as of `brt.pretrained.decoders.rotary.frequencies`.
        biases: of "none", of queries, keys and values ("heads"), or of the output too ("all").
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        num_key_heads: int,
        epsilon: float,
        rotary_base: float,
        rotary_scaling: Llama3Scaling | None,
        biases: str,
    ):
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        E = num_key_heads * sizes.head_size
        matrix = functools.partial(parameter, rngs, normal(STD))
        self.sizes = sizes
        self.num_key_heads = num_key_heads
        self.score_scale = attention_scale(sizes.head_size)
        self.turned = sizes.head_size
        self.rotary_base = rotary_base
        self.rotary_scaling = rotary_scaling
        self.attention_norm = RootNorm(rngs, D, epsilon)
        self.queries_DA = matrix(D, A)
        self.keys_DE = matrix(D, E)
        self.values_DE = matrix(D, E)
        self.output_AD = matrix(A, D)
        if biases != "none":
            self.queries_bias_A = parameter(rngs, zeros, A)
            self.keys_bias_E = parameter(rngs, zeros, E)
            self.values_bias_E = parameter(rngs, zeros, E)
        if biases == "all":
            self.output_bias_D = parameter(rngs, zeros, D)
        self.feed_forward_norm = RootNorm(rngs, D, epsilon)
        self.gate_DF = matrix(D, F)
        self.hidden_DF = matrix(D, F)
        self.output_FD = matrix(F, D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        x_BTD = self.attention_norm(x_BTD)
        keys_BTE = linear(x_BTD, self.keys_DE, getattr(self, "keys_bias_E", None))
        values_BTE = linear(x_BTD, self.values_DE, getattr(self, "values_bias_E", None))
        keys_values = (split_heads(x_BTE, self.num_key_heads) for x_BTE in (keys_BTE, values_BTE))
        return Heads(self.project(x_BTD, "queries"), LayerKeys(*keys_values), x_BTD)

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
            normed_BTD = self.feed_forward_norm(x_BTD)
            gate_BTF = jax.nn.silu(linear(normed_BTD, self.gate_DF))
            y_BTD = linear(gate_BTF * linear(normed_BTD, self.hidden_DF), self.output_FD)
            return constrain(x_BTD + drop(y_BTD), "BTD")


@configurable(denylist=["rngs", "folder"])
class Llama(Decoder):
    """Llama. Sizes are bound, or read from a folder; a binding that says otherwise is refused.

    Args:
        vocabulary_size, num_layers, width, num_heads, feed_forward_size: V, n, D, H, F.
        num_key_heads: G; H where nothing is said.
        head_size: K; D / H where nothing is said.
        num_positions: R, positions of a window at most.
        epsilon: of norms, 1e-6.
        rotary_base: of the angles, 10,000.
        rotary_scaling: (factor, low, high, original positions), as `Llama3Scaling`; None for none.
        biases: "none", "heads" (of queries, keys and values, Qwen2) or "all" (of the output too).
        tied: whether logits are products with the table of words.
        begin_id: the word that stands before a document; the folder's beginning of a text, or its
            end, or the last word.
        dropout: rate on embeddings, attention weights, and what enters the residual stream.
        activation_dtype: "float32" or "bfloat16"; parameters stay float32.
        remat: "none", or "layer" to recompute each layer in the backward pass.
        folder: path of a folder, before `Pretrained.folder`.

    Raises:
        FileNotFoundError, ValueError: a folder that is refused; sizes that are missing or do not
            fit together.
    """

    model_types = ("llama", "qwen2", "mistral")
    defaults = DEFAULTS
    relative = True

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count | None = None,
        num_layers: Count | None = None,
        width: Count | None = None,
        num_heads: Count | None = None,
        num_key_heads: Count | None = None,
        head_size: Count | None = None,
        feed_forward_size: Count | None = None,
        num_positions: Count | None = None,
        epsilon: Positive | None = None,
        rotary_base: Positive | None = None,
        rotary_scaling: tuple[float, float, float, int] | None = None,
        biases: str | None = None,
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
            num_key_heads=num_key_heads,
            head_size=head_size,
            feed_forward_size=feed_forward_size,
            num_positions=num_positions,
            epsilon=epsilon,
            rotary_base=rotary_base,
            rotary_scaling=rotary_scaling,
            biases=biases,
            tied=tied,
            begin_id=begin_id,
        )
        said = self.settle(
            bound, dropout=dropout, activation_dtype=activation_dtype, remat=remat, folder=folder
        )
        self._set(said)
        D, V = self.width, self.vocabulary_size
        self.embedding_VD = parameter(rngs, normal(STD), V, D, purpose="embedding")
        self.layers = nnx.List(
            LlamaLayer(
                rngs,
                self.sizes,
                self.num_key_heads,
                self.epsilon,
                self.rotary_base,
                self.rotary_scaling,
                self.biases,
            )
            for _ in range(said["num_layers"])
        )
        self.final_norm = RootNorm(rngs, D, self.epsilon)
        if not self.tied:
            self.head_VD = parameter(rngs, normal(STD), V, D, purpose="embedding")
        self.check_folder()

    def _set(self, said):
        """Takes settings over as attributes, and checks that they fit together."""
        check_choice("Llama.biases", said["biases"], BIASES)
        check("Llama.rotary_base", said["rotary_base"], Positive)
        D = said["width"]
        H = said["num_heads"]
        G = said["num_key_heads"] or H
        if H % G:
            raise ValueError(f"Llama.num_heads = {H} is not divided by Llama.num_key_heads = {G}.")
        K = said["head_size"] or self.divided_width(said)
        if K % 2:
            raise ValueError(f"Llama.head_size = {K} must be even: its halves are turned.")
        sizes = Sizes(D, H, K, said["feed_forward_size"])
        self.take_decoder(said, sizes, "silu", num_key_heads=G)
        self.rotary_base = said["rotary_base"]
        scaling = said["rotary_scaling"]
        self.rotary_scaling = Llama3Scaling(*scaling) if scaling else None
        self.biases = said["biases"]

    # On disk.

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        return settings_of(folder)

    def names(self) -> Names:
        tensors = [Tensor("model.embed_tokens.weight", ("embedding_VD",))]
        for i in range(len(self.layers)):
            disk, ours = f"model.layers.{i}.", f"layers.{i}."
            for part, letters, theirs, biased in (
                ("queries", "A", "q", self.biases != "none"),
                ("keys", "E", "k", self.biases != "none"),
                ("values", "E", "v", self.biases != "none"),
                ("output", "D", "o", self.biases == "all"),
            ):
                name = f"{disk}self_attn.{theirs}_proj"
                matrix = "output_AD" if part == "output" else f"{part}_D{letters}"
                bias = f"{ours}{part}_bias_{letters}" if biased else None
                tensors += matrix_tensors(name, ours + matrix, bias)
            for theirs, matrix in (
                ("gate", "gate_DF"),
                ("up", "hidden_DF"),
                ("down", "output_FD"),
            ):
                tensors += matrix_tensors(f"{disk}mlp.{theirs}_proj", ours + matrix)
            tensors += norm_tensors(f"{disk}input_layernorm", f"{ours}attention_norm", bias=False)
            tensors += norm_tensors(
                f"{disk}post_attention_layernorm", f"{ours}feed_forward_norm", bias=False
            )
        tensors += norm_tensors("model.norm", "final_norm", bias=False)
        ignored = (
            r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
            r"model\.rotary_emb\.inv_freq",
            r"score\.weight",
        )
        head, unread = head_tensors("lm_head.weight", self.tied)
        return Names((*tensors, *head), "model.", (*ignored, *unread))

    def config(self) -> dict[str, Any]:
        config = super().config()
        class_name = {"qwen2": "Qwen2", "mistral": "Mistral"}.get(config["model_type"], "Llama")
        config["architectures"] = [f"{class_name}ForCausalLM"]
        config["tie_word_embeddings"] = self.tied
        return config

    def new_config(self) -> dict[str, Any]:
        config = {
            "model_type": "qwen2" if self.biases == "heads" else "llama",
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.width,
            "intermediate_size": self.sizes.feed_forward_size,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": self.sizes.num_heads,
            "num_key_value_heads": self.num_key_heads,
            "head_dim": self.sizes.head_size,
            "max_position_embeddings": self.num_positions,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.rotary_base,
            "hidden_act": "silu",
            "bos_token_id": self.begin_id,
            "eos_token_id": self.begin_id,
        }
        if self.biases == "all":
            config["attention_bias"] = True
        if self.rotary_scaling:
            factor, low, high, original = self.rotary_scaling
            config["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
        return config
