"""The layers of a Transformer-XL and their memories."""

import math
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.attention_weights import AttentionLayout, AttentionWeights, ShowsAttention
from brt.models.body import Body
from brt.models.decoding_window import update_where
from brt.models.fast.layer_scan import run_layers
from brt.models.layers.dropout import split_key
from brt.models.layers.positions_sinusoid import sinusoid
from brt.models.layers.sizes import Sizes
from brt.models.memory_tokens.layout import MemoryLayout
from brt.models.memory_tokens.transformer_xl import TransformerXLMemoryTokens
from brt.models.transformer_xl.hidden_memory import (
    LayerSegment,
    append_input,
    open_segment,
    visible_keys,
)
from brt.models.transformer_xl.layer import Distances, Drops, LayerAttention
from brt.models.transformer_xl.relative_attention import distances


class TransformerXLStack(Body, ShowsAttention):
    """The base of `TransformerXL`, which sets the attributes."""

    sizes: Sizes
    layers: nnx.List
    memories: nnx.List
    encoding: str
    same_length: bool
    clamp_length: int | None
    memory_length: int
    drops: Drops
    remat: str
    shared_biases: bool
    content_bias_HK: nnx.Param
    position_bias_HK: nnx.Param
    segment_length: int
    published_artefacts: bool

    @property
    def period(self) -> int:
        return self.segment_length

    def for_segments(self, length: int) -> Self:
        return self._for_segments(length, length)

    def _for_segments(self, length, positions):
        for memory in self.memories:
            memory.check_segment(positions)
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        return model

    def init_caches(self, rows: int) -> tuple:
        return tuple(memory.init_cache(rows, self.dtype) for memory in self.memories)

    @property
    def remembered(self) -> int:
        """M, vectors before the segment that each layer attends to."""
        return self.memories[0].length if self.memories else 0

    @jax.named_scope("memory")
    def contents(self, caches: tuple) -> list:
        """Returns the vectors before the segment, (B, M, D) for each layer."""
        pairs = zip(self.memories, caches, strict=True)
        return [memory.read(cache, self.dtype).x_BMD for memory, cache in pairs]

    def filled(self, caches: tuple) -> jax.Array:
        """Returns which vectors before the segment are filled, (B, M) bool."""
        return self.memories[0].read(caches[0], self.dtype).filled_BM

    @jax.named_scope("memory")
    def visible(self, caches: tuple, T: int) -> jax.Array:
        """Returns which keys the queries of a segment of T tokens see, (B, T, M + T) bool."""
        M = self.remembered
        distance_TJ = M + jnp.arange(T)[:, None] - jnp.arange(M + T)
        return visible_keys(self.filled(caches), distance_TJ, self.same_length)

    def _sinusoid(self, positions):
        return sinusoid(positions, self.width, self.clamp_length, self.dtype)

    def distances(self, distance_C: jax.Array, key: jax.Array | None = None) -> Distances:
        sinusoid_CD = biases = None
        if self.encoding == "relative":
            sinusoid_CD = self.drops(self._sinusoid(distance_C)[None], key)[0]
        if self.shared_biases:
            biases = self.content_bias_HK[...], self.position_bias_HK[...]
        return Distances(distance_C, sinusoid_CD, biases)

    # Segments.

    def forward(
        self,
        x_BTD: jax.Array,
        contents: Sequence[jax.Array],
        visible_BTJ: jax.Array,
        key: jax.Array | None = None,
        future: bool = False,
        shown: list[LayerAttention] | None = None,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Runs all layers and the last dropout; returns also each layer's inputs, for `remember`.

        contents: (B, M, D) before the positions, for each layer. visible_BTJ: keys each query sees,
        J = M + T, itself included. future: whether a query sees keys behind it. shown: a list to
        which each layer's `LayerAttention` is appended, or None.
        """
        T = x_BTD.shape[1]
        keys = split_key(key, self.dropout, len(self.layers) + 3)
        first_key, distance_key, last_key, *layer_keys = keys
        backwards_T = jnp.arange(T - 1, -1, -1)
        with jax.named_scope("embedding"):
            if self.encoding == "absolute":
                x_BTD = x_BTD + self._sinusoid(backwards_T)
            x_BTD = self.drops(x_BTD, first_key)
            distance_C = distances(
                T, contents[0].shape[1] + T, future and not self.published_artefacts
            )
            shared = self.distances(distance_C, distance_key)

        def run(layer, x_BTD, memory_BMD, visible_BTJ, layer_key):
            return layer(x_BTD, memory_BMD, visible_BTJ, shared, layer_key)

        if self.remat == "layer":
            run = jax.checkpoint(run, static_argnums=0)

        def step(layer, x_BTD, layer_input):
            memory_BMD, layer_key = layer_input
            with jax.named_scope("attention"):
                x_BTD = layer.add_position_vectors(x_BTD, backwards_T)
            if shown is not None:
                shown.append(layer.show(x_BTD, memory_BMD, visible_BTJ, shared))
            return run(layer, x_BTD, memory_BMD, visible_BTJ, layer_key), x_BTD

        layer_inputs = list(zip(contents, layer_keys, strict=True))
        fewest = None if shown is None else math.inf  # a scan's body cannot append
        x_BTD, inputs = run_layers(step, self.layers, x_BTD, layer_inputs, fewest)
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
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        T = x_BTD.shape[1]
        if self.published_artefacts:
            caches = self.positions_added_again(caches, T)
        y_BTD, inputs = self.forward(x_BTD, self.contents(caches), self.visible(caches, T), key)
        return y_BTD, *self.remember(caches, inputs)

    def positions_added_again(self, caches: tuple, T: int) -> tuple:
        """Returns the caches as the released code has them: with positions added once more."""
        backwards_M = jnp.arange(self.memory_length + T - 1, T - 1, -1)

        def with_positions(layer, cache):
            x_BMD = layer.add_position_vectors(cache.x_BMD, backwards_M)
            if self.encoding == "absolute" and layer is self.layers[0]:
                x_BMD = x_BMD + self._sinusoid(backwards_M)
            return cache._replace(x_BMD=x_BMD)

        return tuple(with_positions(*pair) for pair in zip(self.layers, caches, strict=True))

    # Attention weights.

    def attention_layout(self, segment_length: int) -> AttentionLayout:
        memory = self.memories[0]
        # Vectors before the recent inputs have no single position.
        positions = (None,) * (memory.length - memory.recent) + tuple(range(-memory.recent, 0))
        return AttentionLayout(positions, 0, segment_length, 0)

    def attention_weights(
        self, tokens_BT: jax.Array, caches: tuple
    ) -> tuple[AttentionWeights, jax.Array, tuple]:
        shown: list[LayerAttention] = []
        visible_BTJ = self.visible(caches, tokens_BT.shape[1])
        contents = self.contents(caches)
        x_BTD, inputs = self.forward(self.embed(tokens_BT), contents, visible_BTJ, shown=shown)
        weights = self.collected(shown, visible_BTJ, caches)
        return weights, self.logits(x_BTD), self.remember(caches, inputs)[0]

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
        # The cache-update interval counts tokens only, a segment its memory tokens too.
        return self._for_segments(layout.period, layout.positions)

    def memory_tokens(self, layout: MemoryLayout) -> TransformerXLMemoryTokens:
        return TransformerXLMemoryTokens(self, layout)

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        return self.open_segments(caches, self.period)

    def end_decoding(self, caches: tuple) -> tuple:
        return tuple(cache.before for cache in caches)

    def open_segments(
        self,
        caches: tuple,
        room: int,
        inputs: Sequence[jax.Array] | None = None,
        counts_B: jax.Array | None = None,
    ) -> tuple:
        """Returns the decoding form with room for a segment of `room` positions.

        inputs: of the layers, of which the first `counts_B` positions are valid; None: no position.
        """
        rows = jax.tree.leaves(caches)[0].shape[0]
        if inputs is None or counts_B is None:
            inputs = [jnp.zeros((rows, 0, self.width), self.dtype)] * len(caches)
            counts_B = jnp.zeros(rows, jnp.int32)
        return tuple(
            open_segment(cache, room, x_BPD, counts_B, self.dtype)
            for cache, x_BPD in zip(caches, inputs, strict=True)
        )

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        P = x_BPD.shape[1]
        y_BPD, inputs = self.forward(x_BPD, self.contents(caches), self.visible(caches, P))
        return y_BPD, self.open_segments(caches, self.period, inputs, counts_B)

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        y_BD, caches = self.decode_position(x_BD, caches, reads_B)
        full_B = caches[0].fill_B == self.period

        def finish(caches):
            after, _ = self.remember(self.end_decoding(caches), [cache.x_BPD for cache in caches])
            return self.begin_decoding(after)

        return y_BD, update_where(full_B, finish, caches)

    def decode_position(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Runs all layers on one position; full segments stay in the decoding form."""
        M = self.remembered
        P = caches[0].x_BPD.shape[1]
        fill_B = caches[0].fill_B
        distance_BJ = M + fill_B[:, None] - jnp.arange(M + P)
        before = self.end_decoding(caches)
        visible_B1J = visible_keys(self.filled(before), distance_BJ[:, None], self.same_length)
        backwards_B1 = P - 1 - fill_B[:, None]
        if self.encoding == "absolute":
            x_BD = x_BD + self._sinusoid(backwards_B1)[:, 0]
        shared = self.distances(jnp.arange(M + P))
        new_caches = []
        parts = zip(self.layers, caches, self.contents(before), strict=True)
        for i, (layer, cache, memory_BMD) in enumerate(parts):
            with jax.named_scope(f"layer{i}"):
                x_BD = layer.add_position_vectors(x_BD[:, None], backwards_B1)[:, 0]
                cache = append_input(cache, x_BD, reads_B)
                hidden = memory_BMD, cache.x_BPD
                x_BD = layer.decode(x_BD, hidden, visible_B1J[:, 0], distance_BJ, shared)
            new_caches.append(cache)
        return x_BD, tuple(new_caches)
