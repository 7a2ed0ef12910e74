"""Memory tokens around the segments of a backbone.

A segment of a Recurrent Memory Transformer is [read; tokens; write], X = S + T + S positions, with
the same S memory vectors at both ends. The outputs of the write positions are the next memory;
without them (the Memory Transformer), those of the read positions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class MemoryLayout(NamedTuple):
    """A segment with memory tokens.

    num_memory: S. period: T, its tokens.
    memory_at_end: whether there are write positions.
    read_from_cache: whether memory tokens see the backbone's caches of earlier segments.
    after: tokens of a segment in front of the read positions.
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
        before_BTD, rest_BTD = x_BTD[:, : self.after], x_BTD[:, self.after :]
        ends = (memory_BSD,) if self.memory_at_end else ()
        return jnp.concatenate([before_BTD, memory_BSD, rest_BTD, *ends], axis=1)

    @jax.named_scope("memory")
    def divide(self, y_BXD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the outputs of the tokens, (B, T, D), and the next memory, (B, S, D)."""
        S, X, first = self.num_memory, y_BXD.shape[1], self.after
        end = X - S if self.memory_at_end else X
        memory_BSD = y_BXD[:, end:] if self.memory_at_end else y_BXD[:, first : first + S]
        return jnp.concatenate([y_BXD[:, :first], y_BXD[:, first + S : end]], axis=1), memory_BSD
