"""GPT-NeoX, the form of Pythia: rotary positions on a part of each head, parallel residuals.

Letters as in `brt.pretrained`. Source: Black et al. 2022, arXiv:2204.06745; folders of
`model_type` gpt_neox.
"""

import functools
from typing import Annotated, Any

import jax
from flax import nnx
from jax.nn.initializers import zeros

from brt.checks import (
    Count,
    CountFrom0,
    OneOf,
    Part,
    Positive,
    Share,
    check,
    check_choice,
    configurable,
)
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.shape_letters import constrain
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone import REMATS
from brt.pretrained.backbone_layer import Drop, Heads, Norm, attention_scale, linear, unchanged
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.decoders.rotary import RotaryLayer
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names, Tensor, head_tensors, matrix_tensors, norm_tensors
from brt.pretrained.source import begin_of, is_tied, number_of_layers

STD = 0.02
DEFAULTS = dict(
    feed_forward_size=None,
    activation="gelu",
    epsilon=1e-5,
    rotary_base=10_000.0,
    rotary_share=0.25,
    parallel=True,
    biases=True,
    tied=False,
    begin_id=None,
)
WORDS = ("gpt_neox.embed_in.weight", "embed_in.weight")
"""Names on disk of the table of words."""


class GPTNeoXLayer(RotaryLayer):
    """One layer: attention and network, each of its own norm of the inputs, beside each other.

    Args:
        sizes: D, H, K, F.
        activation, epsilon: of the network, and of the norms.
        turned: entries of a head that have a rotary position, the first ones.
        rotary_base: of their angles.
        parallel: whether the network reads the layer's inputs; else what follows attention.
        biases: whether attention has biases.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        activation: str,
        epsilon: float,
        turned: int,
        rotary_base: float,
        parallel: bool,
        biases: bool,
    ):
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        matrix = functools.partial(parameter, rngs, normal(STD))
        bias = functools.partial(parameter, rngs, zeros)
        self.sizes = sizes
        self.activation = activation
        self.turned = turned
        self.rotary_base = rotary_base
        self.parallel = parallel
        self.score_scale = attention_scale(sizes.head_size)
        self.attention_norm = Norm(rngs, D, epsilon)
        self.queries_DA = matrix(D, A)
        self.keys_DA = matrix(D, A)
        self.values_DA = matrix(D, A)
        self.output_AD = matrix(A, D)
        if biases:
            self.queries_bias_A = bias(A)
            self.keys_bias_A = bias(A)
            self.values_bias_A = bias(A)
            self.output_bias_D = bias(D)
        self.feed_forward_norm = Norm(rngs, D, epsilon)
        self.hidden_DF = matrix(D, F)
        self.hidden_bias_F = bias(F)
        self.output_FD = matrix(F, D)
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
        after_BTD = constrain(x_BTD + drop(y_BTD), "BTD")
        with jax.named_scope("feed_forward"):
            normed_BTD = self.feed_forward_norm(x_BTD if self.parallel else after_BTD)
            h_BTF = linear(normed_BTD, self.hidden_DF, self.hidden_bias_F)
            h_BTF = ACTIVATIONS[self.activation](h_BTF)
            y_BTD = linear(h_BTF, self.output_FD, self.feed_forward_bias_D)
            return constrain(after_BTD + drop(y_BTD), "BTD")


@configurable(denylist=["rngs", "folder"])
class GPTNeoX(Decoder):
    """GPT-NeoX. Sizes are bound, or read from a folder; a binding that differs is refused.

    Args:
        vocabulary_size, num_layers, width, num_heads: V, n, D, H; K = D / H.
        feed_forward_size: F; 4 D where nothing is said.
        num_positions: R, positions of a window at most.
        activation: of `ACTIVATIONS`, "gelu" where nothing is said.
        epsilon: of norms, 1e-5.
        rotary_base, rotary_share: of the angles; the part of a head that is turned.
        parallel: whether attention and network read the same inputs.
        biases: whether attention has biases.
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

    model_types = ("gpt_neox",)
    defaults = DEFAULTS
    relative = True

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
        rotary_base: Positive | None = None,
        rotary_share: Part | None = None,
        parallel: bool | None = None,
        biases: bool | None = None,
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
            rotary_base=rotary_base,
            rotary_share=rotary_share,
            parallel=parallel,
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
            GPTNeoXLayer(
                rngs,
                self.sizes,
                self.activation_name,
                self.epsilon,
                self.turned,
                self.rotary_base,
                self.parallel,
                self.biases,
            )
            for _ in range(said["num_layers"])
        )
        self.final_norm = Norm(rngs, D, self.epsilon)
        if not self.tied:
            self.head_VD = parameter(rngs, normal(STD), V, D, purpose="embedding")
        self.check_folder()

    def _set(self, said):
        """Takes settings over as attributes, and checks that they fit together."""
        check_choice("GPTNeoX.activation", said["activation"], ACTIVATIONS)
        check("GPTNeoX.rotary_base", said["rotary_base"], Positive)
        K = self.divided_width(said)
        D = said["width"]
        H = said["num_heads"]
        self.turned = int(K * said["rotary_share"])
        if self.turned % 2 or not 0 < self.turned <= K:
            raise ValueError(
                f"GPTNeoX.rotary_share = {said['rotary_share']} turns {self.turned} of the "
                f"{K} entries of a head: it must be an even number of them."
            )
        sizes = Sizes(D, H, K, said["feed_forward_size"] or 4 * D)
        self.take_decoder(said, sizes, said["activation"], num_key_heads=H)
        self.rotary_base = said["rotary_base"]
        self.rotary_share = said["rotary_share"]
        self.parallel = said["parallel"]
        self.biases = said["biases"]

    # On disk.

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        values = folder.values()
        for key in ("rope_parameters", "rope_scaling"):
            inner = values.inner(key)
            if inner.get("rope_type", inner.get("type", "default")) != "default":
                raise values.refused(key, "is of a kind that brt does not compute: default is.")
        inner = values.inner("rope_parameters")
        base = values.number("rotary_emb_base", values.number("rope_theta", 10_000.0))
        share = values.number("rotary_pct", values.number("partial_rotary_factor", 0.25))
        width = values.whole("hidden_size", 6144)
        num_heads = values.whole("num_attention_heads", 64)
        if width % num_heads:
            raise values.refused("hidden_size", f"is not divided by {num_heads} heads.")
        rotary_share = inner.number("partial_rotary_factor", share)
        turned = int(width // num_heads * rotary_share)
        if turned % 2 or not 0 < turned <= width // num_heads:
            raise values.refused(
                "rotary_pct", f"turns {turned} entries of a head: they have no halves."
            )
        vocabulary_size = values.whole("vocab_size", 50_432)
        return dict(
            vocabulary_size=vocabulary_size,
            num_layers=number_of_layers(values, "num_hidden_layers", 44, folder),
            width=width,
            num_heads=num_heads,
            feed_forward_size=values.whole("intermediate_size", 24_576),
            num_positions=values.whole("max_position_embeddings", 2048),
            activation=values.choice("hidden_act", tuple(ACTIVATIONS), "gelu"),
            epsilon=values.number("layer_norm_eps", 1e-5),
            rotary_base=inner.number("rope_theta", base),
            rotary_share=rotary_share,
            parallel=values.flag("use_parallel_residual", True),
            biases=values.flag("attention_bias", True),
            tied=is_tied(values, folder, False, "embed_out.weight", WORDS),
            begin_id=begin_of(values, vocabulary_size, 0),
        )

    def names(self) -> Names:
        tensors = [Tensor("gpt_neox.embed_in.weight", ("embedding_VD",))]
        H = self.sizes.num_heads
        for i in range(len(self.layers)):
            disk, ours = f"gpt_neox.layers.{i}.", f"layers.{i}."
            heads = [f"{ours}{part}" for part in ("queries", "keys", "values")]
            name = f"{disk}attention.query_key_value"
            matrices = tuple(f"{head}_DA" for head in heads)
            tensors.append(Tensor(f"{name}.weight", matrices, turned=True, heads=H))
            dense = f"{disk}attention.dense"
            tensors.append(Tensor(f"{dense}.weight", (f"{ours}output_AD",), turned=True))
            if self.biases:
                biases = tuple(f"{head}_bias_A" for head in heads)
                tensors.append(Tensor(f"{name}.bias", biases, heads=H))
                tensors.append(Tensor(f"{dense}.bias", (f"{ours}output_bias_D",)))
            for theirs, matrix, bias in (
                ("dense_h_to_4h", "hidden_DF", "hidden_bias_F"),
                ("dense_4h_to_h", "output_FD", "feed_forward_bias_D"),
            ):
                tensors += matrix_tensors(f"{disk}mlp.{theirs}", ours + matrix, ours + bias)
            tensors += norm_tensors(f"{disk}input_layernorm", f"{ours}attention_norm")
            tensors += norm_tensors(f"{disk}post_attention_layernorm", f"{ours}feed_forward_norm")
        tensors += norm_tensors("gpt_neox.final_layer_norm", "final_norm")
        ignored = (
            r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
            r"gpt_neox\.rotary_emb\.inv_freq",
            r"score\.weight",
        )
        head, unread = head_tensors("embed_out.weight", self.tied)
        old_endings = (("lm_head.weight", "embed_out.weight"),)
        return Names((*tensors, *head), "gpt_neox.", (*ignored, *unread), old_endings)

    def config(self) -> dict[str, Any]:
        config = super().config()
        config["architectures"] = ["GPTNeoXForCausalLM"]
        config["tie_word_embeddings"] = self.tied
        return config

    def new_config(self) -> dict[str, Any]:
        return {
            "model_type": "gpt_neox",
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.width,
            "intermediate_size": self.sizes.feed_forward_size,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": self.sizes.num_heads,
            "max_position_embeddings": self.num_positions,
            "hidden_act": self.activation_name,
            "layer_norm_eps": self.epsilon,
            "rotary_emb_base": self.rotary_base,
            "rotary_pct": self.rotary_share,
            "use_parallel_residual": self.parallel,
            "attention_bias": self.biases,
            "bos_token_id": self.begin_id,
            "eos_token_id": self.begin_id,
        }
