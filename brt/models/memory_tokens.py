"""Memory tokens: who sees whom, and what is carried between segments. Letters as in `brt.models`.

A segment of a Recurrent Memory Transformer is [read; tokens; write], X = S + T + S positions: the
same S vectors of memory stand at both ends. What the write positions come out as is the memory
of the next segment. Without write positions (the Memory Transformer) X = S + T.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class MemoryCache(NamedTuple):
    """The memory that the next segment is read with; the same in the decoding form.

    memory_BSD: (B, S, D) in the activations' type. Empty: learned.
    """

    memory_BSD: jax.Array

    def clear_state(self, empty):
        return self._replace(memory_BSD=empty.memory_BSD)


def segment_mask(S: int, T: int, memory_at_end: bool = True):
    """Which positions of its segment each position sees.

    Read positions see each other; tokens the read positions, the tokens before them and
    themselves; write positions everything.

    Args:
        S: memory tokens.
        T: tokens.
        memory_at_end: whether there are write positions.

    Returns:
        (X, X) bool.

    Source: RMT, section 3 (memory tokens of a block see one another), and the released code.
    """
    place = jnp.arange(S + T + (S if memory_at_end else 0))
    read, write = place < S, place >= S + T
    causal_XX = place <= place[:, None]
    return jnp.where(read[:, None], read, write[:, None] | causal_XX)


def visible_positions(mask_QX, is_memory_Q, count_B, M: int, read_from_cache: bool = False):
    """The mask with a cache of hidden states before the segment.

    Args:
        mask_QX: (Q, X) bool, which positions of the segment those that ask see.
        is_memory_Q: (Q,) bool, which of them are memory tokens.
        count_B: (B,) int32, filled places of the cache, its last ones.
        M: places of the cache.
        read_from_cache: whether memory tokens see the cache, as tokens do.

    Returns:
        (B, Q, M + X) bool.
    """
    filled_BM = jnp.arange(M) >= M - count_B[:, None]
    asks_Q = ~is_memory_Q | read_from_cache
    cache_BQM = filled_BM[:, None] & asks_Q[:, None]
    mask_BQX = jnp.broadcast_to(mask_QX, (len(count_B), *mask_QX.shape))
    return jnp.concatenate([cache_BQM, mask_BQX], axis=-1)
