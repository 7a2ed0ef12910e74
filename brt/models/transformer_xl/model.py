"""Transformer-XL, and the models that its paper compares it with.

logits_BTV, caches = model(tokens_BT, caches)
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated

import gin
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import Count, CountFrom0, OneOf, Positive, Share, configurable
from brt.models.counts import matrix_size
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.transformer_xl.adaptive_embedding import AdaptiveEmbedding
from brt.models.transformer_xl.hidden_memory import HiddenMemory
from brt.models.transformer_xl.layer import ENCODINGS, NORMS, Drops, TransformerXLLayer
from brt.models.transformer_xl.stack import TransformerXLStack

REMATS = ("none", "layer")


@configurable(denylist=["rngs", "special_tokens", "published_artefacts"])
class TransformerXL(TransformerXLStack):
    """Transformer-XL, and with `memory_length` 0 the model without recurrence.

    Args:
        vocabulary_size: V.
        num_layers, width, num_heads, head_size, feed_forward_size: n, D, H, K, F.
        memory_length: M, positions before the segment whose inputs each layer remembers; it may be
            longer at evaluation than in training.
        encoding: of positions. "relative" (this paper), "shaw" (learned for each distance and
            layer), "absolute" (sinusoids added to the embeddings, counted backwards from the
            segment's end), "learned" (vectors added to every layer's inputs, likewise).
        position_rows: R, distances that "shaw" and "learned" learn; farther ones use the last.
        same_length: every query sees the last M keys, itself included.
        clamp_length: distances above it share its encoding; None for no limit.
        untie_biases: u and v for each layer instead of one pair for all.
        norm: "post" or "pre".
        cutoffs, div_val, tied, tied_projections: of the `AdaptiveEmbedding`.
        dropout: rate on embeddings, distances, outputs of attention and MLP, hidden units, and the
            last layer's outputs.
        attention_dropout: rate on attention weights.
        variational_dropout: one mask for all tokens of a segment.
        std, projection_std: of the initial values; projection_std: of the embedding's projections.
        activation_dtype: "float32" or "bfloat16"; parameters stay float32.
        remat: "none", or "layer" to recompute each layer in the backward pass.
        memory: builds the memory of a layer's inputs, a `HiddenMemory`.
        special_tokens: further entries of the vocabulary, which no text contains.
        published_artefacts: reproduces artefacts of the released code.

    Source: Transformer-XL, section 3, and the released PyTorch code.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count = gin.REQUIRED,
        num_layers: Count = gin.REQUIRED,
        width: Count = gin.REQUIRED,
        num_heads: Count = gin.REQUIRED,
        head_size: Count = gin.REQUIRED,
        feed_forward_size: Count = gin.REQUIRED,
        memory_length: CountFrom0 = gin.REQUIRED,
        encoding: Annotated[str, OneOf(ENCODINGS)] = "relative",
        position_rows: CountFrom0 = 0,
        same_length: bool = False,
        clamp_length: CountFrom0 | None = None,
        untie_biases: bool = False,
        norm: Annotated[str, OneOf(NORMS)] = "post",
        cutoffs: tuple[Count, ...] = (),
        div_val: Count = 1,
        tied: bool = True,
        tied_projections: bool | tuple[bool, ...] = True,
        dropout: Share = 0.0,
        attention_dropout: Share = 0.0,
        variational_dropout: bool = False,
        std: Positive = 0.02,
        projection_std: Positive = 0.01,
        activation_dtype: Annotated[str, OneOf(DTYPES)] = "float32",
        remat: Annotated[str, OneOf(REMATS)] = "none",
        memory: Callable[..., HiddenMemory] = HiddenMemory,
        special_tokens: int = 0,
        published_artefacts: bool = False,
    ):
        self._check(width, encoding, position_rows, same_length, memory_length)
        sizes = Sizes(width, num_heads, head_size, feed_forward_size)
        self.sizes, self.width, self.vocabulary_size = sizes, width, vocabulary_size
        self.memory_length, self.encoding = memory_length, encoding
        self.same_length, self.clamp_length = same_length, clamp_length
        self.dropout = max(dropout, attention_dropout)
        self.drops = Drops(dropout, attention_dropout, variational_dropout)
        self.dtype = jnp.dtype(activation_dtype)
        self.remat = remat
        self.segment_length = 1
        self.published_artefacts = published_artefacts
        self.embedding = AdaptiveEmbedding(
            rngs,
            vocabulary_size + special_tokens,
            width,
            cutoffs=tuple(cutoffs),
            div_val=div_val,
            tied=tied,
            tied_projections=tied_projections,
            std=std,
            projection_std=projection_std,
        )
        self.shared_biases = encoding == "relative" and not untie_biases
        if self.shared_biases:
            shape = num_heads, head_size
            self.content_bias_HK = parameter(rngs, normal(std), *shape, multiplied=False)
            self.position_bias_HK = parameter(rngs, normal(std), *shape, multiplied=False)
        layer = functools.partial(
            TransformerXLLayer,
            encoding=encoding,
            position_rows=position_rows,
            own_biases=encoding == "relative" and untie_biases,
            norm=norm,
            drops=self.drops,
            clamp=clamp_length,
            std=std,
        )
        self.layers = nnx.List(layer(rngs, sizes) for _ in range(num_layers))
        self.memories = nnx.List(memory(rngs, sizes, memory_length) for _ in range(num_layers))

    def _check(self, width, encoding, position_rows, same_length, memory_length):
        if width % 2:
            raise ValueError(f"TransformerXL.width = {width}: sinusoids need an even width.")
        if encoding in ("shaw", "learned") and position_rows < 1:
            raise ValueError(
                f'TransformerXL.encoding = "{encoding}" learns a row for each distance: bind '
                "TransformerXL.position_rows, for example to memory_length + segment length."
            )
        if same_length and not memory_length:
            raise ValueError(
                "TransformerXL.same_length = True lets every query see memory_length keys, and "
                "that is 0: bind TransformerXL.memory_length, or same_length = False."
            )

    # Vocabulary.

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        return self.embedding(tokens_BT, self.dtype)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        return self.embedding.logits(x_BTD)

    def token_losses(self, x_BTD: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.embedding.token_losses(x_BTD, targets_BT)

    # Receptive field and cost.

    def windows_reach(self) -> int:
        # Transformer-XL, section 3.2: O(n * L) for M = L.
        if self.same_length:
            return len(self.layers) * (self.memory_length - 1)
        return int(self._distance(memory.recent for memory in self.memories))

    def receptive_field(self) -> float:
        if self.same_length:
            return self.windows_reach()
        return self._distance(memory.reach for memory in self.memories)

    def _distance(self, before):
        P = self.period
        oldest = P - 1  # the last of a segment sees farthest
        for tokens in before:
            if math.isinf(tokens):
                return math.inf
            oldest = oldest // P * P - tokens
        return P - 1 - oldest

    def gradient_metrics(self, grads: dict) -> dict[str, jax.Array]:
        return {
            f"layer{i}/{self.memories[i].name}_grad_norm": optax.tree.norm(gradient)
            for i, gradient in grads.get("memories", {}).items()
        }

    def flops_per_token(self) -> float:
        # Keys and values of the memory are computed again in every segment.
        M, P = self.remembered, self.period
        seen = M if self.same_length else M + (P + 1) / 2
        products = 3 if self.encoding in ("relative", "shaw") else 2
        A = self.sizes.attention_size
        total = 2.0 * sum(matrix_size(part) for part in self.embedding.bins)
        for layer, memory in zip(self.layers, self.memories, strict=True):
            total += 2 * matrix_size(layer) + 2 * products * A * seen
            total += 2 * (layer.keys_DA.size + layer.values_DA.size) * M / P
            total += memory.flops_per_segment(P) / P
        return total

    def divided_sizes(self) -> dict[str, int]:
        return {
            "TransformerXL.num_heads": self.sizes.num_heads,
            "TransformerXL.feed_forward_size": self.sizes.feed_forward_size,
            **self.embedding.divided_sizes(),
        }


def evaluation_memory(memory_length: int, segment_length: int, evaluated_length: int) -> int:
    """Returns M for segments of another length, such that memory and segment together stay as long.

    With a memory of 0 it is the number of earlier tokens to process again. Source: the released
    code.
    """
    memory = memory_length + segment_length - evaluated_length
    if memory < 0:
        raise ValueError(
            f"Segments of {evaluated_length} tokens are longer than a memory of {memory_length} "
            f"and a segment of {segment_length} together."
        )
    return memory
