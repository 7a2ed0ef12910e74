"""The layers of a Transformer-XL over embedded positions, and what each remembers of its inputs.

Words and their embedding are `TransformerXL`'s; here are segments and positions. Letters as in
`brt.models`.
"""

import math
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.attention_weights import AttentionLayout, AttentionWeights, ShowsAttention
from brt.models.body import Body
from brt.models.caches import select_rows
from brt.models.fast.equal_layers import EqualLayers
from brt.models.layers.positions_sinusoid import sinusoid
from brt.models.layers.sizes import Sizes
from brt.models.memory_tokens.layout import MemoryLayout
from brt.models.memory_tokens.transformer_xl import TransformerXLMemoryTokens
from brt.models.transformer_xl.hidden_memory import (
    count_position,
    open_segment,
    visible_keys,
    write_input,
)
from brt.models.transformer_xl.layer import Biases, Drops, LayerAttention
from brt.models.transformer_xl.relative_attention import distances


class TransformerXLStack(Body, ShowsAttention):
    """Reads embedded positions through layers that remember their inputs: a base of models.

    Attributes, which the model sets:
        width, sizes: D; D, H, K and F of a layer.
        layers, memories: a `TransformerXLLayer` and a `HiddenMemory` each.
        encoding, same_length, clamp_length, memory_length, drops, remat: as of `TransformerXL`.
        shared_biases: whether u and v are the model's, `content_bias_HK` and `position_bias_HK`.
        segment_length: P, tokens of a segment.
        published_artefacts: whether what the released code does beside its paper is kept.
    """

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
        """Tokens of a segment: the memory moves at the ends of segments."""
        return self.segment_length

    def for_segments(self, length: int) -> Self:
        """Returns the same model, same parameters, whose memory moves every `length` tokens.

        Raises:
            ValueError: segments that a layer's memory cannot take in.
        """
        return self._for_segments(length, length)

    def _for_segments(self, length, positions):
        for memory in self.memories:
            memory.check_segment(positions)
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        return model

    def init_caches(self, rows: int) -> tuple:
        """Returns the caches of `rows` documents that have not begun, one a layer."""
        return tuple(memory.init_cache(rows, self.dtype) for memory in self.memories)

    @property
    def remembered(self) -> int:
        """Vectors each layer attends to before the segment: M, or those of its memory."""
        return self.memories[0].length if self.memories else 0

    @jax.named_scope("memory")
    def contents(self, caches: tuple) -> list:
        """Returns what each layer attends to before the segment, (B, M, D) each."""
        pairs = zip(self.memories, caches, strict=True)
        return [memory.contents(cache) for memory, cache in pairs]

    def filled(self, caches: tuple) -> jax.Array:
        """Returns which vectors of each layer's contents hold something, (B, M) bool."""
        return self.memories[0].filled(caches[0])

    @jax.named_scope("memory")
    def visible(self, caches: tuple, T: int) -> jax.Array:
        """Returns which keys the queries of a segment of T tokens see, (B, T, M + T) bool."""
        M = self.remembered
        distance_TJ = M + jnp.arange(T)[:, None] - jnp.arange(M + T)
        return visible_keys(self.filled(caches), distance_TJ, self.same_length)

    def read(
        self,
        x_BTD: jax.Array,
        contents: Sequence[jax.Array],
        visible_BTJ: jax.Array,
        key: jax.Array | None = None,
        future: bool = False,
        shown: list[LayerAttention] | None = None,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Reads embedded inputs through all layers, the last dropout included.

        Args:
            x_BTD: (B, T, D), of any length.
            contents: what each layer attends to before them, (B, M, D) each.
            visible_BTJ: (B, T, M + T) bool, the keys each query sees, itself among them.
            key: dropout key or None.
            future: whether keys behind a query are visible to any.
            shown: a list that takes each layer's `LayerAttention`, or None.

        Returns:
            (B, T, D), and a list of each layer's inputs (B, T, D), which `remember` takes.
        """
        T = x_BTD.shape[1]
        M = contents[0].shape[1]
        keys: list[jax.Array | None] = [None] * (len(self.layers) + 3)
        if key is not None and self.dropout:
            keys = list(jax.random.split(key, len(keys)))
        first_key, distance_key, last_key, *layer_keys = keys
        backwards_T = jnp.arange(T - 1, -1, -1)
        with jax.named_scope("embedding"):
            if self.encoding == "absolute":
                x_BTD = x_BTD + self._sinusoid(backwards_T)
            distance_C = distances(T, M + T, future and not self.published_artefacts)
            known_CD = None
            if self.encoding == "relative":
                known_CD = self.drops(self._sinusoid(distance_C)[None], distance_key)[0]
        biases = self._biases()

        def run(layer, x_BTD, memory_BMD, visible_BTJ, layer_key):
            with jax.named_scope("attention"):
                positions = layer.positions(distance_C, known_CD, biases)
            return layer(x_BTD, memory_BMD, visible_BTJ, positions, biases=biases, key=layer_key)

        if self.remat == "layer":
            run = jax.checkpoint(run, static_argnums=0)

        def read_layer(layer, x_BTD, given):
            memory_BMD, layer_key = given
            with jax.named_scope("attention"):
                x_BTD = layer.add_position_vectors(x_BTD, backwards_T)
            if shown is not None:
                positions = layer.positions(distance_C, known_CD, biases)
                shown.append(layer.show(x_BTD, memory_BMD, visible_BTJ, positions, biases))
            return run(layer, x_BTD, memory_BMD, visible_BTJ, layer_key), x_BTD

        with jax.named_scope("embedding"):
            x_BTD = self.drops(x_BTD, first_key)
        given = list(zip(contents, layer_keys, strict=True))
        fewest = None if shown is None else math.inf  # what is shown leaves no loop
        equal = EqualLayers(self.layers, given, fewest)
        x_BTD, inputs = equal.run(read_layer, x_BTD, equal.split(given))
        with jax.named_scope("vocabulary"):
            return self.drops(x_BTD, last_key), equal.joined(inputs)

    def remember(
        self, caches: Sequence, inputs: Sequence[jax.Array]
    ) -> tuple[tuple, dict[str, jax.Array]]:
        """Returns the caches after a segment of which each layer had these inputs, and monitors.

        inputs: (B, T, D) a layer. Monitors are summed over layers.
        """
        after = []
        monitors: dict[str, jax.Array] = {}
        parts = zip(self.memories, caches, inputs, self.layers, strict=True)
        for i, (memory, cache, x_BTD, layer) in enumerate(parts):
            with jax.named_scope(f"layer{i}/memory"):
                cache, found = memory.remember(cache, x_BTD, layer)
            after.append(cache)
            for name, value in found.items():
                monitors[name] = monitors.get(name, 0.0) + value
        return tuple(after), monitors

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        """Reads one segment, T as long as it is; as `Model.stack`."""
        T = x_BTD.shape[1]
        if self.published_artefacts:
            caches = self.positions_added_again(caches, T)
        y_BTD, inputs = self.read(x_BTD, self.contents(caches), self.visible(caches, T), key)
        return y_BTD, *self.remember(caches, inputs)

    def attention_layout(self, segment_length: int) -> AttentionLayout:
        """As `ShowsAttention.attention_layout`: what is remembered, then the segment's tokens."""
        return AttentionLayout(self.memories[0].content_positions(), 0, segment_length, 0)

    def attention_weights(
        self, tokens_BT: jax.Array, caches: tuple
    ) -> tuple[AttentionWeights, jax.Array, tuple]:
        """As `ShowsAttention.attention_weights`; with terms if the encoding knows distances."""
        shown: list[LayerAttention] = []
        visible_BTJ = self.visible(caches, tokens_BT.shape[1])
        contents = self.contents(caches)
        x_BTD, inputs = self.read(self.embed(tokens_BT), contents, visible_BTJ, shown=shown)
        found = self.collected(shown, visible_BTJ, caches)
        return found, self.logits(x_BTD), self.remember(caches, inputs)[0]

    def collected(
        self, shown: Sequence[LayerAttention], visible_BXJ: jax.Array, caches: tuple
    ) -> AttentionWeights:
        """Returns the attention weights of all layers, from each layer's `LayerAttention`."""
        names = "abcd" if self.encoding in ("relative", "shaw") else ""
        return AttentionWeights(
            weights=tuple(layer.weights_BHTJ for layer in shown),
            terms=tuple(dict(zip(names, layer.terms)) for layer in shown),
            visible_BXJ=visible_BXJ,
            full_B=self.filled(caches).all(axis=-1),
        )

    def _biases(self):
        if not self.shared_biases:
            return None
        return Biases(self.content_bias_HK[...], self.position_bias_HK[...])

    def _sinusoid(self, positions):
        return sinusoid(positions, self.width, self.clamp_length, self.dtype)

    def positions_added_again(self, caches: tuple, T: int) -> tuple:
        """Returns the caches with the released code's artefact.

        Absolute positions are added to what it remembers, in the cache itself and at every
        segment, though they are in there already.
        """
        backwards_M = jnp.arange(self.memory_length + T - 1, T - 1, -1)

        def with_positions(layer, cache):
            x_BMD = layer.add_position_vectors(cache.x_BMD, backwards_M)
            if self.encoding == "absolute" and layer is self.layers[0]:
                x_BMD = x_BMD + self._sinusoid(backwards_M)
            return cache._replace(x_BMD=x_BMD)

        return tuple(with_positions(*pair) for pair in zip(self.layers, caches, strict=True))

    def for_memory_tokens(self, layout: MemoryLayout) -> Self:
        # Only tokens are counted: their memory tokens stand outside the period.
        return self._for_segments(layout.period, layout.positions)

    def memory_tokens(self, layout: MemoryLayout) -> TransformerXLMemoryTokens:
        return TransformerXLMemoryTokens(self, layout)

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        return self.open_segments(caches, self.period)

    def open_segments(
        self,
        caches: tuple,
        room: int,
        inputs: Sequence[jax.Array] | None = None,
        counts_B: jax.Array | None = None,
    ) -> tuple:
        """Returns the decoding form with room for a segment of `room` positions.

        inputs, counts_B: of a segment of which each row has read `counts_B` positions.
        """
        rows = jax.tree.leaves(caches)[0].shape[0]
        shape = rows, room, self.width
        if inputs is None:
            return tuple(open_segment(cache, shape, self.dtype) for cache in caches)
        return tuple(
            open_segment(cache, shape, self.dtype, x_BPD, counts_B)
            for cache, x_BPD in zip(caches, inputs, strict=True)
        )

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        P = x_BPD.shape[1]
        y_BPD, inputs = self.read(x_BPD, self.contents(caches), self.visible(caches, P))
        return y_BPD, self.open_segments(caches, self.period, inputs, counts_B)

    def end_decoding(self, caches: tuple) -> tuple:
        return tuple(cache.before for cache in caches)

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        y_BD, caches = self.decode_position(x_BD, caches, reads_B)
        return y_BD, self.finish_segments(caches, self.period)

    def finish_segments(self, caches: tuple, length: int, done_B: jax.Array | bool = True) -> tuple:
        """Moves segments that are full into the memories.

        Args:
            caches: the decoding form.
            length: positions of a full segment.
            done_B: (B,) bool, rows that may be full.
        """
        full_B = (caches[0].fill_B == length) & done_B

        def move(caches):
            inputs = [cache.x_BPD[:, :length] for cache in caches]
            after, _ = self.remember([cache.before for cache in caches], inputs)
            return select_rows(full_B, self.open_segments(after, caches[0].x_BPD.shape[1]), caches)

        return jax.lax.cond(jnp.any(full_B), move, lambda caches: caches, tuple(caches))

    def decode_position(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Reads one position of every row, and counts it.

        Returns:
            (B, D) outputs, and the decoding form, in which full segments stay as they are.
        """
        M = self.remembered
        P = caches[0].x_BPD.shape[1]
        fill_B = caches[0].fill_B
        distance_BJ = M + fill_B[:, None] - jnp.arange(M + P)
        before = tuple(cache.before for cache in caches)
        visible_B1J = visible_keys(self.filled(before), distance_BJ[:, None], self.same_length)
        backwards_B1 = P - 1 - fill_B[:, None]
        x_B1D = x_BD[:, None]
        if self.encoding == "absolute":
            x_B1D = x_B1D + self._sinusoid(backwards_B1)
        known_CD = None
        if self.encoding == "relative":
            known_CD = self._sinusoid(jnp.arange(M + P))
        biases = self._biases()
        contents = self.contents(before)
        new_caches = []
        parts = zip(self.layers, caches, contents, strict=True)
        for i, (layer, cache, memory_BMD) in enumerate(parts):
            with jax.named_scope(f"layer{i}"):
                x_B1D = layer.add_position_vectors(x_B1D, backwards_B1)
                cache = write_input(cache, x_B1D[:, 0], reads_B)
                x_BD = layer.decode(
                    x_B1D[:, 0],
                    (memory_BMD, cache.x_BPD),
                    visible_B1J[:, 0],
                    distance_BJ,
                    sinusoid_CD=known_CD,
                    biases=biases,
                )
            x_B1D = x_BD[:, None]
            new_caches.append(count_position(cache, reads_B))
        return x_B1D[:, 0], tuple(new_caches)
