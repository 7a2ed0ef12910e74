"""Memory tokens around the segments of a Transformer-XL, as in the released code of RMT."""

from typing import Any

import jax
import jax.numpy as jnp

from brt.models.attention_weights import AttentionLayout, AttentionWeights
from brt.models.body import MemoryTokens
from brt.models.counts import matrix_size
from brt.models.memory_layout import MemoryLayout
from brt.models.transformer_xl.decoding import decode_position, open_segments
from brt.models.transformer_xl.hidden_memory import before_segment
from brt.models.transformer_xl.layer import LayerAttention


def segment_mask(S: int, T: int, memory_at_end: bool = True) -> jax.Array:
    """Returns which positions of its segment each position sees, (X, X) bool.

    Read positions see each other; tokens see the read positions and earlier tokens; write positions
    see all. Source: RMT, section 3, and the released code.
    """
    index = jnp.arange(S + T + (S if memory_at_end else 0))
    read, write = index < S, index >= S + T
    causal_XX = index <= index[:, None]
    return jnp.where(read[:, None], read, write[:, None] | causal_XX)


def visible_positions(
    mask_QX: jax.Array, is_memory_Q: jax.Array, filled_BM: jax.Array, read_from_cache: bool = False
) -> jax.Array:
    """Returns the mask with remembered vectors before the segment, (B, Q, M + X) bool.

    read_from_cache: whether memory tokens see remembered vectors.
    """
    sees_Q = ~is_memory_Q | read_from_cache
    cache_BQM = filled_BM[:, None] & sees_Q[:, None]
    mask_BQX = jnp.broadcast_to(mask_QX, (len(filled_BM), *mask_QX.shape))
    return jnp.concatenate([cache_BQM, mask_BQX], axis=-1)


class TransformerXLMemoryTokens(MemoryTokens):
    body: Any
    """A `TransformerXL`."""

    def __init__(self, body: Any, layout: MemoryLayout):
        if body.encoding != "relative" or body.same_length:
            raise ValueError(
                "RecurrentMemoryTransformer places its memory tokens by relative positions and "
                'shows them to every token: bind TransformerXL.encoding = "relative" and '
                "same_length = False."
            )
        self.body = body
        self.layout = layout

    def segment(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, tuple, dict[str, jax.Array]]:
        y_BXD, inputs = self.forward(x_BTD, caches, memory_BSD, key)
        after, metrics = self.body.remember(caches, inputs)
        return *self.layout.divide(y_BXD), after, metrics

    def forward(
        self,
        x_BTD: jax.Array,
        caches: tuple,
        memory_BSD: jax.Array,
        key: jax.Array | None = None,
        shown: list[LayerAttention] | None = None,
    ) -> tuple[jax.Array, list[jax.Array]]:
        x_BXD = self.layout.surround(x_BTD, memory_BSD)
        visible_BXJ = self._visible_in_segment(caches, x_BTD.shape[1])
        contents = self.body.contents(caches)
        return self.body.forward(x_BXD, contents, visible_BXJ, key, future=True, shown=shown)

    def attention_layout(self) -> AttentionLayout:
        S, T, X = self.layout.num_memory, self.layout.period, self.layout.positions
        layout = AttentionLayout((), S, T, write=X - S - T)

        def token(position):
            if position is None:
                return None
            segment, index = divmod(position, X)
            token = layout.query_tokens[index]
            return None if token is None else segment * T + token

        remembered = self.body.attention_layout(T).cache_tokens
        return layout._replace(cache_tokens=tuple(map(token, remembered)))

    def attention_weights(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array
    ) -> tuple[AttentionWeights, jax.Array, jax.Array, tuple]:
        shown: list[LayerAttention] = []
        y_BXD, inputs = self.forward(x_BTD, caches, memory_BSD, shown=shown)
        visible_BXJ = self._visible_in_segment(caches, x_BTD.shape[1])
        after, _ = self.body.remember(caches, inputs)
        weights = self.body.collected(shown, visible_BXJ, caches)
        return weights, *self.layout.divide(y_BXD), after

    def _visible_in_segment(self, caches, T):
        S = self.layout.num_memory
        mask_XX = segment_mask(S, T, self.layout.memory_at_end)
        index = jnp.arange(len(mask_XX))
        return self._visible(caches, mask_XX, (index < S) | (index >= S + T))

    def _visible(self, caches, mask_QX, is_memory_Q):
        filled_BM = self.body.filled(caches)
        return visible_positions(mask_QX, is_memory_Q, filled_BM, self.layout.read_from_cache)

    def _memory_outputs(self, caches, memory_BSD, before=None):
        S = X = self.layout.num_memory
        contents = self.body.contents(caches)
        if before is not None:
            X += before[0].shape[1]
            contents = [jnp.concatenate(pair, axis=1) for pair in zip(contents, before)]
        visible_BSJ = self._visible(caches, jnp.ones((S, X), bool), jnp.ones(S, bool))
        return self.body.forward(memory_BSD, contents, visible_BSJ, future=True)

    # While decoding, a segment has room for the read positions and the tokens.

    @property
    def _room(self):
        return self.layout.num_memory + self.layout.period

    def begin_decoding(self, caches: tuple) -> tuple:
        return open_segments(self.body, caches, self._room)

    def end_decoding(self, caches: tuple) -> tuple:
        return before_segment(caches)

    def begin(self, caches: tuple, memory_BSD: jax.Array) -> tuple[tuple, jax.Array]:
        before = before_segment(caches)
        y_BSD, inputs = self._memory_outputs(before, memory_BSD)
        counts_B = jnp.full(len(memory_BSD), self.layout.num_memory, jnp.int32)
        return open_segments(self.body, before, self._room, inputs, counts_B), y_BSD

    def decode(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        return decode_position(self.body, x_BD, caches, reads_B)

    def finish(self, caches: tuple, memory_BSD: jax.Array) -> tuple[tuple, jax.Array]:
        before = before_segment(caches)
        inputs = [cache.x_BPD for cache in caches]
        if self.layout.memory_at_end:
            memory_BSD, written = self._memory_outputs(before, memory_BSD, inputs)
            inputs = [jnp.concatenate(pair, axis=1) for pair in zip(inputs, written, strict=True)]
        after, _ = self.body.remember(before, inputs)
        return self.begin_decoding(after), memory_BSD

    def read_part(
        self, x_BPD: jax.Array, caches: tuple, memory_BSD: jax.Array, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple, jax.Array]:
        S, P = self.layout.num_memory, x_BPD.shape[1]
        y_BXD, inputs = self.forward(x_BPD, caches, memory_BSD)
        opened = open_segments(self.body, caches, self._room, inputs, S + counts_B)
        return y_BXD[:, S : S + P], opened, y_BXD[:, :S]

    def flops_per_token(self) -> float:
        S, P = self.layout.num_memory, self.layout.period
        seen = self.body.remembered if self.layout.read_from_cache else 0
        pairs = S * P + S * (S + seen)
        positions = S
        if self.layout.memory_at_end:
            pairs += S * (2 * S + P + seen)
            positions = 2 * S
        A = self.body.sizes.attention_size
        memory_flops = sum(
            2 * matrix_size(layer) * positions + 6 * A * pairs for layer in self.body.layers
        )
        return self.body.flops_per_token() + memory_flops / P
