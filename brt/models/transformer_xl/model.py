"""Transformer-XL, and the models that its paper compares it with."""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Self

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import Count, CountFrom0, OneOf, Positive, Share, configurable
from brt.models.attention_weights import AttentionLayout, AttentionWeights, ShowsAttention
from brt.models.body import Body
from brt.models.counts import matrix_size
from brt.models.decoding_window import update_where
from brt.models.layers.dropout import split_key
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.positions_sinusoid import sinusoid
from brt.models.layerwise import Layerwise
from brt.models.memory_layout import MemoryLayout
from brt.models.model import DTYPES, REMATS
from brt.models.relative_attention import distances
from brt.models.sizes import Sizes
from brt.models.transformer_xl import decoding
from brt.models.transformer_xl.adaptive_embedding import AdaptiveEmbedding
from brt.models.transformer_xl.hidden_memory import (
    HiddenMemory,
    LayerSegment,
    before_segment,
    visible_keys,
)
from brt.models.transformer_xl.layer import (
    ENCODINGS,
    NORMS,
    Distances,
    Drops,
    LayerAttention,
    TransformerXLLayer,
)
from brt.models.transformer_xl.memory_tokens import TransformerXLMemoryTokens

ATTENTION_FORMS = ("auto", "plain", "kernel")


@configurable(denylist=["rngs", "special_tokens", "published_artefacts"])
class TransformerXL(Body, ShowsAttention):
    """Transformer-XL, and with `memory_length` 0 the model without recurrence.

    Args:
        vocabulary_size to feed_forward_size, activation_dtype: as in `BlockRecurrentTransformer`.
        memory_length: M, positions before the segment whose inputs each layer remembers; it may be
            longer at evaluation.
        encoding: of positions. "relative" (this paper), "shaw" (learned for each distance and
            layer), "absolute" (sinusoids added to the embeddings, counted backwards from the
            segment's end), "learned" (vectors added to every layer's inputs, likewise).
        position_rows: R, distances that "shaw" and "learned" learn; farther ones use the last.
        same_length: every query sees the last M keys, with its own.
        clamp_length: distances above it share its encoding; None for no limit.
        untie_biases: u and v for each layer instead of one pair for all.
        cutoffs, div_val, tied, tied_projections: of the `AdaptiveEmbedding`.
        dropout: rate on embeddings, distances, outputs of attention, MLP and last layer, and hidden
            units.
        std, projection_std: of the initial values; projection_std: of the embedding's.
        remat: "none", or "layer" to recompute each layer in the backward pass.
        memory: builds the memory of a layer's inputs, a `HiddenMemory`.
        attention_form: "plain"; "kernel", a Pallas kernel; "auto", the kernel on TPUs where sizes
            fit.
        published_artefacts: reproduces artefacts of the released code.

    Source: Transformer-XL, section 3, and the released PyTorch code.
    """

    memories: nnx.List

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count,
        num_layers: Count,
        width: Count,
        num_heads: Count,
        head_size: Count,
        feed_forward_size: CountFrom0,
        memory_length: CountFrom0,
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
        attention_form: Annotated[str, OneOf(ATTENTION_FORMS)] = "auto",
        special_tokens: int = 0,
        published_artefacts: bool = False,
    ):
        self._check(width, encoding, position_rows, same_length, memory_length)
        sizes = Sizes(width, num_heads, head_size, feed_forward_size, False, attention_form)
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
        if same_length and self.remembered > memory_length:
            raise ValueError(
                "TransformerXL.same_length = True lets a query see the last keys only, which hides "
                f"vectors of {type(self.memories[0]).__name__}: bind same_length = False."
            )

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

    # Segments, their length, and the memories before them.

    @property
    def period(self) -> int:
        return self.segment_length

    def for_segments(self, length: int) -> Self:
        for memory in self.memories:
            memory.check_segment(length)
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        return model

    def init_caches(self, rows: int) -> tuple:
        return tuple(memory.init_cache(rows, self.dtype) for memory in self.memories)

    @property
    def remembered(self) -> int:
        return self.memories[0].length

    @jax.named_scope("memory")
    def contents(self, caches: tuple) -> list:
        """Returns the vectors before the segment, (B, M, D) for each layer."""
        pairs = zip(self.memories, caches, strict=True)
        return [memory.read(cache, self.dtype).x_BMD for memory, cache in pairs]

    def filled(self, caches: tuple) -> jax.Array:
        return self.memories[0].read(caches[0], self.dtype).filled_BM

    @jax.named_scope("memory")
    def visible(self, caches: tuple, T: int) -> jax.Array:
        """Returns which keys each query of T tokens sees, (B, T, M + T) bool."""
        M = self.remembered
        distance_TJ = M + jnp.arange(T)[:, None] - jnp.arange(M + T)
        return visible_keys(self.filled(caches), distance_TJ, self.same_length)

    def sinusoid(self, positions: jax.Array) -> jax.Array:
        """Returns the vectors of positions, (..., D)."""
        return sinusoid(positions, self.width, self.clamp_length, self.dtype)

    def distances(self, distance_C: jax.Array, key: jax.Array | None = None) -> Distances:
        sinusoid_CD = biases = None
        if self.encoding == "relative":
            sinusoid_CD = self.drops(self.sinusoid(distance_C)[None], key)[0]
        if self.shared_biases:
            biases = self.content_bias_HK[...], self.position_bias_HK[...]
        return Distances(distance_C, sinusoid_CD, biases)

    def forward(
        self,
        x_BTD: jax.Array,
        contents: Sequence[jax.Array],
        visible_BTJ: jax.Array,
        key: jax.Array | None = None,
        future: bool = False,
        shown: list[LayerAttention] | None = None,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Runs all layers and the last dropout; also returns each layer's inputs, for `remember`.

        contents: (B, M, D) before the positions, for each layer. visible_BTJ: keys each query sees,
        J = M + T. future: whether a query sees later keys. shown: a list to which each layer's
        `LayerAttention` is appended, or None.
        """
        T = x_BTD.shape[1]
        keys = split_key(key, self.dropout, len(self.layers) + 3)
        first_key, distance_key, last_key, *layer_keys = keys
        backwards_T = jnp.arange(T - 1, -1, -1)
        with jax.named_scope("embedding"):
            if self.encoding == "absolute":
                x_BTD = x_BTD + self.sinusoid(backwards_T)
            x_BTD = self.drops(x_BTD, first_key)
            wrapped = future and self.published_artefacts
            distance_C = distances(T, contents[0].shape[1] + T, future and not wrapped)
            shared = self.distances(distance_C, distance_key)
            if wrapped:
                shared = shared._replace(misfit="published_artefacts take wrong distances")

        def run(layer, x_BTD, memory_BMD, visible_BTJ, layer_key):
            return layer(x_BTD, memory_BMD, visible_BTJ, shared, layer_key)

        if self.remat == "layer":
            run = jax.checkpoint(run, static_argnums=0)

        inputs = []
        parts = zip(self.layers, contents, layer_keys, strict=True)
        for i, (layer, memory_BMD, layer_key) in enumerate(parts):
            with jax.named_scope(f"layer{i}"):
                with jax.named_scope("attention"):
                    x_BTD = layer.add_position_vectors(x_BTD, backwards_T)
                if shown is not None:
                    shown.append(layer.show(x_BTD, memory_BMD, visible_BTJ, shared))
                inputs.append(x_BTD)
                x_BTD = run(layer, x_BTD, memory_BMD, visible_BTJ, layer_key)
        with jax.named_scope("vocabulary"):
            return self.drops(x_BTD, last_key), inputs

    def remember(
        self, caches: Sequence, inputs: Sequence[jax.Array]
    ) -> tuple[tuple, dict[str, jax.Array]]:
        """Returns the caches after a segment, from the inputs of each layer, and summed metrics."""
        after = []
        metrics: dict[str, jax.Array] = {}
        parts = zip(self.memories, caches, inputs, self.layers, strict=True)
        for i, (memory, cache, x_BTD, layer) in enumerate(parts):
            with jax.named_scope(f"layer{i}/memory"):
                cache, layer_metrics = memory.update(cache, LayerSegment(x_BTD, layer))
            after.append(cache)
            for name, value in layer_metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value
        return tuple(after), metrics

    def stack(
        self,
        x_BTD: jax.Array,
        caches: tuple,
        key: jax.Array | None = None,
        shown: list[LayerAttention] | None = None,
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        T = x_BTD.shape[1]
        if self.published_artefacts:
            caches = self.positions_added_again(caches, T)
        contents, visible_BTJ = self.contents(caches), self.visible(caches, T)
        y_BTD, inputs = self.forward(x_BTD, contents, visible_BTJ, key, shown=shown)
        return y_BTD, *self.remember(caches, inputs)

    def layerwise(self) -> Layerwise | None:
        def enter(x_BTD):
            if self.encoding != "absolute":
                return x_BTD
            return x_BTD + self.sinusoid(jnp.arange(x_BTD.shape[1] - 1, -1, -1))

        def run(modules, x_BTD, cache):
            layer, memory = modules
            M, T = self.remembered, x_BTD.shape[1]
            backwards_T = jnp.arange(T - 1, -1, -1)
            x_BTD = layer.add_position_vectors(x_BTD, backwards_T)
            read = memory.read(cache, self.dtype)
            visible_BTJ = self.visible((cache,), T)
            shared = self.distances(distances(T, M + T))
            cache, _ = memory.update(cache, LayerSegment(x_BTD, layer))
            return layer(x_BTD, read.x_BMD, visible_BTJ, shared), cache

        layers = [nnx.List(pair) for pair in zip(self.layers, self.memories, strict=True)]
        return None if self.published_artefacts else Layerwise(layers, run, enter)

    def positions_added_again(self, caches: tuple, T: int) -> tuple:
        """Returns the caches as in the released code: with positions added once more."""
        backwards_M = jnp.arange(self.memory_length + T - 1, T - 1, -1)

        def with_positions(layer, cache):
            x_BMD = layer.add_position_vectors(cache.x_BMD, backwards_M)
            if self.encoding == "absolute" and layer is self.layers[0]:
                x_BMD = x_BMD + self.sinusoid(backwards_M)
            return cache._replace(x_BMD=x_BMD)

        return tuple(with_positions(*pair) for pair in zip(self.layers, caches, strict=True))

    # Attention weights.

    def attention_layout(self, segment_length: int) -> AttentionLayout:
        memory = self.memories[0]
        # Older vectors have no single position.
        positions = (None,) * (memory.length - memory.recent) + tuple(range(-memory.recent, 0))
        return AttentionLayout(positions, 0, segment_length, 0)

    def attention_weights(
        self, tokens_BT: jax.Array, caches: tuple
    ) -> tuple[AttentionWeights, jax.Array, tuple]:
        shown: list[LayerAttention] = []
        x_BTD, after, _ = self.stack(self.embed(tokens_BT), caches, shown=shown)
        weights = self.collected(shown, self.visible(caches, tokens_BT.shape[1]), caches)
        return weights, self.logits(x_BTD), after

    def collected(
        self, shown: Sequence[LayerAttention], visible_BXJ: jax.Array, caches: tuple
    ) -> AttentionWeights:
        names = "abcd" if self.encoding in ("relative", "shaw") else ""
        return AttentionWeights(
            weights=tuple(layer.weights_BHTJ for layer in shown),
            terms=tuple(dict(zip(names, layer.terms)) for layer in shown),
            visible_BXJ=visible_BXJ,
            full_B=self.filled(caches).all(axis=-1),
        )

    # Memory tokens.

    def for_memory_tokens(self, layout: MemoryLayout) -> Self:
        # The cache-update interval counts tokens only, a segment also its memory tokens.
        model = self.for_segments(layout.positions)
        model.segment_length = layout.period
        return model

    def memory_tokens(self, layout: MemoryLayout) -> TransformerXLMemoryTokens:
        return TransformerXLMemoryTokens(self, layout)

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        return decoding.open_segments(self, caches, self.period)

    def end_decoding(self, caches: tuple) -> tuple:
        return before_segment(caches)

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        P = x_BPD.shape[1]
        y_BPD, inputs = self.forward(x_BPD, self.contents(caches), self.visible(caches, P))
        return y_BPD, decoding.open_segments(self, caches, self.period, inputs, counts_B)

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        y_BD, caches = decoding.decode_position(self, x_BD, caches, reads_B)
        full_B = caches[0].fill_B == self.period

        def finish(caches):
            after, _ = self.remember(before_segment(caches), [cache.x_BPD for cache in caches])
            return self.begin_decoding(after)

        return y_BD, update_where(full_B, finish, caches)

    # Windows and cost.

    def windows_reach(self) -> int:
        # Transformer-XL, section 3.2: O(n * L) for M = L.
        if self.same_length:
            return len(self.layers) * (self.memory_length - 1)
        P = self.period
        oldest = P - 1  # the last of a segment sees farthest
        for memory in self.memories:
            oldest = oldest // P * P - memory.recent
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
