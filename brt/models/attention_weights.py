"""The interface of models whose attention can be drawn.

Axes as in `brt.models`; X: positions of a segment with memory tokens; J: keys of earlier segments,
then the X positions.
"""

from typing import NamedTuple

import jax


class AttentionLayout(NamedTuple):
    """The keys [cache; read; tokens; write] and queries [read; tokens; write] of a segment.

    cache_tokens: token of each cached position, relative to the segment's first; None for
    compressed vectors and memory tokens. read, tokens, write: numbers of positions.
    """

    cache_tokens: tuple[int | None, ...]
    read: int
    tokens: int
    write: int

    @property
    def query_tokens(self) -> tuple[int | None, ...]:
        return (None,) * self.read + tuple(range(self.tokens)) + (None,) * self.write

    @property
    def key_tokens(self) -> tuple[int | None, ...]:
        return self.cache_tokens + self.query_tokens

    def distance(self, query: int, key: int) -> int | None:
        """Returns the distance in tokens, negative for future keys; None without a token."""
        query_token, key_token = self.query_tokens[query], self.key_tokens[key]
        return None if query_token is None or key_token is None else query_token - key_token


class AttentionWeights(NamedTuple):
    """Attention weights of every layer in one segment.

    weights, terms: (B, H, X, J) of each layer, and named terms of its scores.
    visible_BXJ: bool, the keys that each query sees. full_B: bool, whether the cache is full.
    """

    weights: tuple[jax.Array, ...]
    terms: tuple[dict[str, jax.Array], ...]
    visible_BXJ: jax.Array
    full_B: jax.Array


class ShowsAttention:
    """A mixin of models whose attention `brt.evaluate --study=attention` can draw."""

    def attention_layout(self, segment_length: int) -> AttentionLayout | None:
        """Returns the keys and queries of a segment, or None."""
        raise NotImplementedError

    def attention_weights(
        self, tokens_BT: jax.Array, caches: tuple
    ) -> tuple[AttentionWeights, jax.Array, tuple]:
        """Runs on one segment, (B, T) int32 ids, without dropout.

        Returns the weights, logits (B, T, V), and the caches after the segment.
        """
        raise NotImplementedError
