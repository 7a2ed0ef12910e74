"""Memory tokens around the segments of a body.

A segment of a Recurrent Memory Transformer is [read; tokens; write], X = S + T + S positions: the
same S vectors of memory stand at both ends. What the write positions come out as is the memory
of the next segment. Without write positions (the Memory Transformer) X = S + T, and the memory is
what the read positions come out as. Letters as in `brt.models`.
"""

import abc
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from brt.models.attention_weights import AttentionLayout, AttentionWeights
from brt.models.caches import select_rows

if TYPE_CHECKING:
    from brt.models.body import Body


class MemoryLayout(NamedTuple):
    """A segment with memory tokens: where they stand, and what they see.

    num_memory: S. period: T, tokens of a segment.
    memory_at_end: whether there are write positions.
    read_from_cache: whether memory tokens see what the body remembers of earlier segments, where
        the body lets them choose.
    after: tokens of a segment that stand before the read positions.
    """

    num_memory: int
    period: int
    memory_at_end: bool = True
    read_from_cache: bool = False
    after: int = 0

    @property
    def positions(self) -> int:
        """X, positions of a segment."""
        return self.num_memory + self.period + (self.num_memory if self.memory_at_end else 0)

    @jax.named_scope("memory")
    def surround(self, x_BTD: jax.Array, memory_BSD: jax.Array) -> jax.Array:
        """Returns (B, X, D): the memory, the tokens, and the memory again if it stands there."""
        ends = (memory_BSD,) if self.memory_at_end else ()
        if self.after:
            return jnp.concatenate(
                [x_BTD[:, : self.after], memory_BSD, x_BTD[:, self.after :], *ends], axis=1
            )
        return jnp.concatenate([memory_BSD, x_BTD, *ends], axis=1)

    @jax.named_scope("memory")
    def divide(self, y_BXD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the outputs of the tokens, (B, T, D), and the next memory, (B, S, D)."""
        S, X, first = self.num_memory, y_BXD.shape[1], self.after
        if self.memory_at_end:
            read_BSD, end = y_BXD[:, X - S :], X - S
        else:
            read_BSD, end = y_BXD[:, first : first + S], X
        tokens_BTD = y_BXD[:, first + S : end]
        if first:
            tokens_BTD = jnp.concatenate([y_BXD[:, :first], tokens_BTD], axis=1)
        return tokens_BTD, read_BSD


class MemoryTokens(abc.ABC):
    """Reads segments with memory tokens around them: the base of the ways bodies do it.

    Caches are those of the body alone. In the decoding form a segment begins when its first token
    is read: `begin` reads the read positions, and `finish` the write positions.
    """

    @abc.abstractmethod
    def segment(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, tuple, dict[str, jax.Array]]:
        """Reads one segment of every row.

        Returns:
            (B, T, D) outputs of the tokens, the next memory (B, S, D), the caches after the
            segment, and monitors.
        """

    @abc.abstractmethod
    def begin_decoding(self, caches: tuple) -> tuple:
        """Returns the decoding form of segment-form caches, in which nothing has been read."""

    @abc.abstractmethod
    def end_decoding(self, caches: tuple) -> tuple:
        """Returns the segment form again; nothing has been read of a segment."""

    @abc.abstractmethod
    def begin(
        self, caches: tuple, memory_BSD: jax.Array, rows_B: jax.Array
    ) -> tuple[tuple, jax.Array]:
        """Reads the read positions of the rows in `rows_B` in the decoding form.

        Returns:
            The caches, and the outputs of these positions, (B, S, D).
        """

    @abc.abstractmethod
    def decode(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Reads one token of every row; returns (B, D) and the caches."""

    @abc.abstractmethod
    def finish(
        self, caches: tuple, memory_BSD: jax.Array, rows_B: jax.Array
    ) -> tuple[tuple, jax.Array]:
        """Reads the write positions of the rows in `rows_B`, whose tokens are all read.

        Returns:
            The caches, in which nothing has been read of the next segment, and the outputs of
            these positions, (B, S, D).
        """

    @abc.abstractmethod
    def read_part(
        self, x_BPD: jax.Array, caches: tuple, memory_BSD: jax.Array, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple, jax.Array]:
        """Reads the read positions and the first `counts_B` of up to P tokens, all at once.

        Returns:
            (B, P, D) outputs of the tokens, the decoding form of the caches, and the outputs of
            the read positions, (B, S, D).
        """

    @abc.abstractmethod
    def carries(self) -> bool:
        """Returns whether a memory vector can tell of tokens before its segment."""

    @abc.abstractmethod
    def flops_per_token(self) -> float:
        """Returns operations of one token's forward pass, its part of the memory's included."""

    def attention_layout(self) -> AttentionLayout | None:
        """Returns the keys and queries of a segment; None if the body shows no attention."""
        return None

    def attention_weights(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array
    ) -> tuple[AttentionWeights, jax.Array, jax.Array, tuple]:
        """Reads as `segment`, without dropout; only where there is an `attention_layout`.

        Returns:
            The `AttentionWeights`; (B, T, D) outputs of the tokens, the next memory (B, S, D), and
            the caches after the segment.
        """
        raise NotImplementedError


class CausalMemoryTokens(MemoryTokens):
    """Memory tokens as positions like any other, of a body that sees what stands before.

    A memory vector sees what a token in its position would see: in a stack of windows, the last
    W positions. A segment consists of whole periods of the body.

    Args:
        body: a `Body`.
        layout: of its segments.

    Raises:
        ValueError: a segment that is no multiple of the body's period.
    """

    def __init__(self, body: "Body", layout: MemoryLayout):
        X, W = layout.positions, body.period
        if X % W:
            shorter = layout.period - X % W
            lengths = (shorter, shorter + W) if shorter > layout.num_memory else (shorter + W,)
            raise ValueError(
                f"A segment of {layout.period} tokens with its memory tokens is {X} positions, "
                f"and {type(body).__name__} reads blocks of {W}: make the segment length "
                f"{' or '.join(map(str, lengths))}, or bind another "
                "RecurrentMemoryTransformer.num_memory."
            )
        self.body = body
        self.layout = layout

    def segment(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, tuple, dict[str, jax.Array]]:
        x_BXD = self.layout.surround(x_BTD, memory_BSD)
        y_BXD, caches, monitors = self.body.stack(x_BXD, caches, key)
        return *self.layout.divide(y_BXD), caches, monitors

    def begin_decoding(self, caches: tuple) -> tuple:
        return self.body.begin_decoding(caches)

    def end_decoding(self, caches: tuple) -> tuple:
        return self.body.end_decoding(caches)

    def _read_vectors(self, caches, x_BSD, rows_B):
        """Reads vectors one after the other; their outputs and the caches."""

        def read(caches, x_BD):
            y_BD, caches = self.body.decode_embedded(x_BD, caches, rows_B)
            return caches, y_BD

        caches, y_SBD = jax.lax.scan(read, caches, jnp.moveaxis(x_BSD, 1, 0))
        return caches, jnp.moveaxis(y_SBD, 0, 1)

    def begin(
        self, caches: tuple, memory_BSD: jax.Array, rows_B: jax.Array
    ) -> tuple[tuple, jax.Array]:
        return self._read_vectors(caches, memory_BSD, rows_B)

    def decode(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        return self.body.decode_embedded(x_BD, caches, reads_B)

    def finish(
        self, caches: tuple, memory_BSD: jax.Array, rows_B: jax.Array
    ) -> tuple[tuple, jax.Array]:
        if not self.layout.memory_at_end:
            return caches, memory_BSD
        return self._read_vectors(caches, memory_BSD, rows_B)

    def read_part(
        self, x_BPD: jax.Array, caches: tuple, memory_BSD: jax.Array, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple, jax.Array]:
        S, W = self.layout.num_memory, self.body.period
        x_BXD = jnp.concatenate([memory_BSD, x_BPD], axis=1)
        X = x_BXD.shape[1]
        x_BXD = jnp.pad(x_BXD, [(0, 0), (0, -X % W), (0, 0)])
        rows, _, D = x_BXD.shape
        x_GBWD = jnp.moveaxis(x_BXD.reshape(rows, -1, W, D), 1, 0)

        def block(carried, inputs):
            caches, decoding = carried
            x_BWD, first = inputs
            within_B = S + counts_B - first
            here_B = (within_B >= 0) & (within_B < W)
            y_BWD, part = self.body.read_part_embedded(x_BWD, caches, jnp.clip(within_B, 0, W - 1))
            _, after, _ = self.body.stack(x_BWD, caches)
            return (after, select_rows(here_B, part, decoding)), y_BWD

        firsts = W * jnp.arange(len(x_GBWD), dtype=jnp.int32)
        carried = caches, self.begin_decoding(caches)
        (_, decoding), y_GBWD = jax.lax.scan(block, carried, (x_GBWD, firsts))
        y_BXD = jnp.moveaxis(y_GBWD, 0, 1).reshape(rows, -1, D)
        return y_BXD[:, S:X], decoding, y_BXD[:, :S]

    def carries(self) -> bool:
        return True

    def flops_per_token(self) -> float:
        of_memory = self.layout.positions - self.layout.period
        shared = self.body.flops_per_position() * of_memory / self.layout.period
        return self.body.flops_per_token() + shared
