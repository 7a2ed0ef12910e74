"""The contract of models whose attention can be drawn: weights, and what each key stands for.

B rows    H heads    T tokens of a segment    X its positions, memory tokens among them
J keys: what is remembered of earlier segments, then the X positions
"""

from typing import NamedTuple

import jax


class AttentionLayout(NamedTuple):
    """The keys [cache; read; tokens; write] and the queries [read; tokens; write] of a segment.

    cache_tokens: of each position of the cache the token it stands for, counted from the segment's
        first token: -1 is the token right before it. None where a position stands for no single
        token: a compressed one, or a memory token of an earlier segment.
    read: number of memory tokens before the segment's tokens.
    tokens: T, number of the segment's tokens.
    write: number of memory tokens after them.
    """

    cache_tokens: tuple[int | None, ...]
    read: int
    tokens: int
    write: int

    @property
    def query_tokens(self) -> tuple[int | None, ...]:
        """The token each query stands for, 0 ... T - 1, or None; X of them."""
        return (None,) * self.read + tuple(range(self.tokens)) + (None,) * self.write

    @property
    def key_tokens(self) -> tuple[int | None, ...]:
        """The token each key stands for, counted likewise, or None; J of them."""
        return self.cache_tokens + self.query_tokens

    def distance(self, query: int, key: int) -> int | None:
        """Returns the tokens from a key back to a query; None if one is no single token.

        Negative for keys in the query's future.
        """
        at, of = self.query_tokens[query], self.key_tokens[key]
        return None if at is None or of is None else at - of


class AttentionWeights(NamedTuple):
    """Attention weights of every layer in one segment of every row.

    weights: (B, H, X, J) of each layer; those of a query sum to 1, hidden keys have 0.
    terms: of each layer the parts of its scores by name, (B, H, X, J) each; their sum is what the
        softmax is taken of. Empty where the scores have no parts.
    visible_BXJ: (B, X, J) bool, the keys that each query sees.
    full_B: (B,) bool, rows whose cache holds as much as it can.
    """

    weights: tuple[jax.Array, ...]
    terms: tuple[dict[str, jax.Array], ...]
    visible_BXJ: jax.Array
    full_B: jax.Array


class ShowsAttention:
    """Base of models whose attention can be drawn, beside `brt.models.model.Model`.

    `brt.evaluate --study=attention` asks for these two methods, `init_caches` and nothing else.
    """

    def attention_layout(self, segment_length: int) -> AttentionLayout | None:
        """Returns the keys and queries of segments of so many tokens.

        None if the attention cannot be drawn after all: of a model around one that shows none.
        """
        raise NotImplementedError

    def attention_weights(
        self, tokens_BT: jax.Array, caches: tuple
    ) -> tuple[AttentionWeights, jax.Array, tuple]:
        """Reads one segment without dropout.

        Args:
            tokens_BT: (B, T) int32 ids.
            caches: segment form.

        Returns:
            The weights, and as `Model.__call__` the logits (B, T, V) and the caches after it.
        """
        raise NotImplementedError
