"""The Block-Recurrent Transformer: embedding, a stack of layers with their caches, logits.

logits_BTV, caches = model(tokens_BT, caches)
"""

import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import Count, CountFrom0, Index, OneOf, Share, configurable
from brt.models.block_recurrent import decoding
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.external_memory import ExternalMemory
from brt.models.block_recurrent.feedback import run_blocks, state_source
from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.memory import LayerMemory
from brt.models.block_recurrent.token_layer import layer_with
from brt.models.body import Body
from brt.models.contract import check_memory_pairs, check_segment, layer_indices
from brt.models.layers.dropout import dropout, split_key
from brt.models.layers.embedding import TiedEmbedding
from brt.models.layers.norms import RMSNorm
from brt.models.layerwise import Layerwise
from brt.models.model import DTYPES, REMATS, Metrics
from brt.models.sizes import DROPPED, FORMS, Sizes

DIVISORS = ("vocabulary", "width")


@configurable(denylist=["rngs", "cell", "memory", "special_tokens"])
class BlockRecurrentTransformer(TiedEmbedding, Body):
    """XL, Slide, Rec, Feedback and Memorizing, which differ in their bindings only.

    Args:
        vocabulary_size: V, rows of the embedding matrix; at least the vocabulary's size.
        num_layers, width, num_heads, head_size, feed_forward_size: n, D, H, K, F; F = 0: no MLP.
        window: W in tokens, the block and the reach of attention. Segments are any multiple of it;
            XL: equal to it.
        recurrent_layers, memorizing_layers: indices of the layers with a `RecurrentCell` and with
            an `ExternalMemory`, from 0, or negative from the last.
        memories: pairs of a further memory's class and the indices of its layers, as in
            `((@MyMemory, (3, 7)),)`; layers of one that replaces attention have no window.
        qk_norm: queries and keys of unit length and a learned scale for each head; False: the
            scaled dot product.
        attention_form: "plain"; "kernel", Pallas kernels, for attention, the delta rule and, on
            TPUs, cells, where sizes fit; "cudnn", on GPUs, for bfloat16, without dropout or
            with that of keys; "auto", kernels on TPUs where sizes fit, cuDNN on Hopper where it was
            measured to be faster.
        attention_dropout: of "weights", as published, or of "keys" before the softmax.
        feedback: block feedback: all other layers attend to the highest cell's states too.
        dropout: rate, where the published model has dropout.
        logits_divisor: logits are divided by the root of V ("vocabulary") or D ("width").
        activation_dtype: "float32" or "bfloat16"; parameters stay float32.
        remat: "none", or "layer" to recompute each layer in the backward pass; with feedback each
            block of the whole stack.
        cell, memory: build the memories of `recurrent_layers` and `memorizing_layers`.
        special_tokens: further entries of the vocabulary, which no text contains.

    Source: Block-Recurrent, sections 3, 4.1 and 4.5.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count,
        num_layers: Count,
        width: Count,
        num_heads: Count,
        head_size: Count,
        feed_forward_size: CountFrom0,
        window: Count,
        recurrent_layers: tuple[Index, ...] = (),
        memorizing_layers: tuple[Index, ...] = (),
        memories: tuple = (),
        qk_norm: bool = True,
        attention_form: Annotated[str, OneOf(FORMS)] = "auto",
        feedback: bool = False,
        dropout: Share = 0.0,
        attention_dropout: Annotated[str, OneOf(DROPPED)] = "weights",
        logits_divisor: Annotated[str, OneOf(DIVISORS)] = "vocabulary",
        activation_dtype: Annotated[str, OneOf(DTYPES)] = "float32",
        remat: Annotated[str, OneOf(REMATS)] = "none",
        cell: Callable[..., LayerMemory] = RecurrentCell,
        memory: Callable[..., LayerMemory] = ExternalMemory,
        special_tokens: int = 0,
    ):
        check_memory_pairs(memories, LayerMemory)
        widths = width, num_heads, head_size, feed_forward_size
        sizes = Sizes(*widths, qk_norm, attention_form, attention_dropout)
        assigned = [
            (build, layer_indices(f"BlockRecurrentTransformer.{name}", at, num_layers))
            for name, build, at in (
                ("recurrent_layers", cell, recurrent_layers),
                ("memorizing_layers", memory, memorizing_layers),
                *(("memories", *pair) for pair in memories),
            )
        ]
        self.sizes, self.width, self.window = sizes, width, window
        self.feedback, self.dropout, self.remat = feedback, dropout, remat
        self.dtype = jnp.dtype(activation_dtype)
        self.vocabulary_size = vocabulary_size
        divisor = math.sqrt(vocabulary_size if logits_divisor == "vocabulary" else width)
        self.add_embedding(rngs, vocabulary_size + special_tokens, width, divisor)

        def layer(index):
            built = tuple(build(rngs, sizes, window) for build, at in assigned if index in at)
            return layer_with(rngs, sizes, window, dropout, built, feedback)

        self.layers = nnx.List(layer(index) for index in range(num_layers))
        if feedback and not any(layer.num_states for layer in self.layers):
            raise ValueError(
                "BlockRecurrentTransformer.feedback = True needs a state to feed back: "
                "bind BlockRecurrentTransformer.recurrent_layers, for example (9,)."
            )
        self.final_norm = RMSNorm(rngs, width)

    def init_caches(self, rows: int) -> tuple:
        return tuple(layer.init_cache(rows, self.dtype) for layer in self.layers)

    def stack(
        self,
        x_BTD: jax.Array,
        caches: tuple,
        key: jax.Array | None = None,
        counts_B: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple, Metrics]:
        """Runs a segment; counts_B: (B,) int32, tokens of one block that are not padding."""
        check_segment("BlockRecurrentTransformer", self.window, x_BTD.shape[1])
        keys = split_key(key, self.dropout, len(self.layers) + 1)
        metrics: list[Metrics] = []
        if self.feedback:
            remat = self.remat == "layer"
            x_BTD, caches, metrics = run_blocks(self.layers, x_BTD, caches, keys, remat, counts_B)
        else:
            after = []
            for i, layer in enumerate(self.layers):
                run = jax.checkpoint(layer) if self.remat == "layer" else layer
                with jax.named_scope(f"layer{i}"):
                    x_BTD, cache, reported = run(x_BTD, caches[i], None, keys[i], counts_B)
                after.append(cache)
                metrics.append(reported)
            caches = tuple(after)
        with jax.named_scope("vocabulary"):
            x_BTD = dropout(self.final_norm(x_BTD), self.dropout, keys[-1])
        named: Metrics = {}
        for i, reported in enumerate(metrics):
            for name, value in reported.items():
                name = name if name == "added_nats" else f"layer{i}/{name}"
                named[name] = named[name] + value if name in named else value
        return x_BTD, caches, named

    def layerwise(self) -> Layerwise | None:
        return None if self.feedback else Layerwise(self.layers, leave=self.final_norm)

    @property
    def period(self) -> int:
        return self.window

    def windows_reach(self) -> int:
        # Block-Recurrent, appendix A.
        return self.window * sum(isinstance(layer, Layer) for layer in self.layers)

    def gradient_metrics(self, grads: dict) -> Metrics:
        return {
            f"layer{i}/{name}_grad_norm": optax.tree.norm(grads["layers"][i][name])
            for i, layer in enumerate(self.layers)
            for name in layer.memory_names
            if name in grads["layers"][i]
        }

    def flops_per_token(self) -> float:
        # Block-Recurrent, section 3.6: O(W N) and O((W^2 + S^2 + 2 S W) N / W).
        return 2.0 * self.embedding_VD.size + self.flops_per_position()

    def flops_per_position(self) -> float:
        S = self.layers[state_source(self.layers)].num_states if self.feedback else 0
        return sum(layer.flops_per_token(S) for layer in self.layers)

    def begin_decoding(self, caches: tuple) -> tuple:
        return tuple(map(decoding.begin_decoding, self.layers, caches))

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        y_BPD, after, _ = self.stack(x_BPD, caches, counts_B=counts_B)
        return y_BPD, tuple(
            decoding.begin_decoding(layer, cache, later, counts_B)
            for layer, cache, later in zip(self.layers, caches, after, strict=True)
        )

    def end_decoding(self, caches: tuple) -> tuple:
        return tuple(map(decoding.end_decoding, self.layers, caches))

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        states = None
        if self.feedback:
            source = state_source(self.layers)
            states = decoding.decoding_states(self.layers[source], caches[source], self.dtype)
        new_caches = []
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            with jax.named_scope(f"layer{i}"):
                x_BD, cache = decoding.decode(layer, x_BD, cache, states, reads_B)
            new_caches.append(cache)
        return self.final_norm(x_BD), tuple(new_caches)
