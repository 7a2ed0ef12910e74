"""Llama, and what has its form: Qwen2, SmolLM, Mistral without a window.

Rotary positions, root-mean-square norms, grouped keys, a gated network, no biases but those of
Qwen2's queries, keys and values. Letters as in `brt.models.pretrained`.

Source: Touvron et al. 2023, arXiv:2302.13971; folders of `model_type` llama, qwen2 and mistral.
"""

import functools
from collections.abc import Callable
from typing import Any

import gin
import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros

from brt.checks import Count, CountFrom0, Positive, Share, check_choice, check_positive, check_share
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import wide
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.pretrained.bodies.body import (
    REMATS,
    BodyLayer,
    Decoder,
    Drop,
    Heads,
    LayerKeys,
    Seen,
    attention_scale,
    linear,
)
from brt.models.pretrained.bodies.llama_settings import settings_of
from brt.models.pretrained.bodies.rotary import Llama3Scaling, frequencies, rotated
from brt.models.pretrained.names import Names, Tensor, norm_tensors
from brt.models.pretrained.source import open_folder, settle
from brt.models.shape_letters import constrain

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


class LlamaLayer(BodyLayer):
    """One layer: norm, attention, residual, norm, gated network, residual.

    Args:
        sizes: D, H, K, F.
        num_key_heads: G.
        epsilon: of the norms.
        rotary_base, rotary_scaling: as of `brt.models.pretrained.bodies.rotary.frequencies`.
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
        self.rotary_base = rotary_base
        self.rotary_scaling = rotary_scaling
        self.biases = biases
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
        biased = self.biases != "none"

        def heads(matrix, bias, count):
            y_BTA = linear(x_BTD, matrix, bias)
            return y_BTA.reshape(*y_BTA.shape[:-1], count, -1)

        G = self.num_key_heads
        q_BTHK = heads(
            self.queries_DA, self.queries_bias_A if biased else None, self.sizes.num_heads
        )
        k_BTGK = heads(self.keys_DE, self.keys_bias_E if biased else None, G)
        v_BTGK = heads(self.values_DE, self.values_bias_E if biased else None, G)
        return Heads(q_BTHK, LayerKeys(k_BTGK, v_BTGK), x_BTD)

    def placed(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        angles = frequencies(self.sizes.head_size, self.rotary_base, self.rotary_scaling)
        keys_BJGK = rotated(seen.keys.keys_BJGK, seen.positions_BJ, angles)
        keys = LayerKeys(keys_BJGK, seen.keys.values_BJGK)
        return rotated(queries_BTHK, positions_BT, angles), keys

    def finish(
        self,
        x_BTD: jax.Array,
        heads: Heads,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop | None = None,
    ) -> jax.Array:
        def into_residual(y_BTD):
            return y_BTD if drop is None else drop(y_BTD)

        attended_BTA = attended_BTHK.reshape(*attended_BTHK.shape[:-2], -1)
        bias_D = self.output_bias_D if self.biases == "all" else None
        y_BTD = linear(attended_BTA, self.output_AD, bias_D)
        if added_BTD is not None:
            y_BTD = y_BTD + added_BTD
        x_BTD = constrain(x_BTD + into_residual(y_BTD), "BTD")
        with jax.named_scope("feed_forward"):
            normed_BTD = self.feed_forward_norm(x_BTD)
            gate_BTF = jax.nn.silu(linear(normed_BTD, self.gate_DF))
            y_BTD = linear(gate_BTF * linear(normed_BTD, self.hidden_DF), self.output_FD)
            return constrain(x_BTD + into_residual(y_BTD), "BTD")


@gin.configurable(denylist=["rngs", "folder"])
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
        activation_dtype: str = "float32",
        remat: str = "none",
        folder: str | None = None,
    ):
        check_choice("Llama.activation_dtype", activation_dtype, DTYPES)
        check_choice("Llama.remat", remat, REMATS)
        check_share("Llama.dropout", dropout)
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
        self.folder = open_folder(folder, "Llama", self.model_types)
        found = settings_of(self.folder) if self.folder else None
        said = settle("Llama", bound, found, DEFAULTS, self.folder)
        self._set(said)
        self.dropout = dropout
        self.dtype = jnp.dtype(activation_dtype)
        self.remat = remat
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
        if self.folder:
            self.names().check(self.folder, nnx.to_pure_dict(nnx.state(self, nnx.Param)))

    def _set(self, said):
        """Takes settings over as attributes, and checks that they fit together."""
        check_choice("Llama.biases", said["biases"], BIASES)
        check_positive("Llama.rotary_base", said["rotary_base"])
        D, H = said["width"], said["num_heads"]
        G = said["num_key_heads"] or H
        if H % G:
            raise ValueError(f"Llama.num_heads = {H} is not divided by Llama.num_key_heads = {G}.")
        if said["head_size"] is None and D % H:
            raise ValueError(f"Llama.width = {D} is not divided by Llama.num_heads = {H}.")
        K = said["head_size"] or D // H
        if K % 2:
            raise ValueError(f"Llama.head_size = {K} must be even: its halves are turned.")
        self.width = D
        self.sizes = Sizes(D, H, K, said["feed_forward_size"])
        self.num_key_heads = G
        self.vocabulary_size = said["vocabulary_size"]
        self.num_positions = said["num_positions"]
        self.epsilon = said["epsilon"]
        self.rotary_base = said["rotary_base"]
        scaling = said["rotary_scaling"]
        self.rotary_scaling = Llama3Scaling(*scaling) if scaling else None
        self.biases = said["biases"]
        self.tied = said["tied"]
        begin_id = said["begin_id"]
        self.begin_id = self.vocabulary_size - 1 if begin_id is None else begin_id
        if not 0 <= self.begin_id < self.vocabulary_size:
            raise ValueError(
                f"Llama.begin_id = {begin_id} lies beyond the {self.vocabulary_size} words."
            )

    @property
    def activation(self) -> Callable[[jax.Array], jax.Array]:
        return jax.nn.silu

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        return self.final_norm(x_BTD)

    # On disk.

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
                tensors.append(Tensor(f"{name}.weight", (ours + matrix,), turned=True))
                if biased:
                    tensors.append(Tensor(f"{name}.bias", (f"{ours}{part}_bias_{letters}",)))
            for theirs, matrix in (
                ("gate", "gate_DF"),
                ("up", "hidden_DF"),
                ("down", "output_FD"),
            ):
                name = f"{disk}mlp.{theirs}_proj.weight"
                tensors.append(Tensor(name, (ours + matrix,), turned=True))
            tensors += norm_tensors(f"{disk}input_layernorm", f"{ours}attention_norm", bias=False)
            tensors += norm_tensors(
                f"{disk}post_attention_layernorm", f"{ours}feed_forward_norm", bias=False
            )
        tensors += norm_tensors("model.norm", "final_norm", bias=False)
        ignored: tuple[str, ...] = (
            r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
            r"model\.rotary_emb\.inv_freq",
            r"score\.weight",
        )
        if self.tied:
            ignored += (r"lm_head\.weight",)  # the table of words, stored twice
        else:
            tensors.append(Tensor("lm_head.weight", ("head_VD",)))
        return Names(tuple(tensors), "model.", ignored)

    def config(self) -> dict[str, Any]:
        config = dict(self.folder.config) if self.folder else self._new_config()
        for key in ("dtype", "torch_dtype"):
            if key in config:
                config[key] = "float32"
        class_name = {"qwen2": "Qwen2", "mistral": "Mistral"}.get(config["model_type"], "Llama")
        config["architectures"] = [f"{class_name}ForCausalLM"]
        config["tie_word_embeddings"] = self.tied
        return config

    def _new_config(self):
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
