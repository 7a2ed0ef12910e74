"""What a memorizing layer remembers: its window, and a ring of old keys and values."""

from typing import NamedTuple

import jax

from brt.models.caches import DecodingWindow, WindowCache


class MemorizingCache(NamedTuple):
    """A memorizing layer's window and its external memory.

    keys_BMHK, values_BMHK: (B, M, H, K) in the activations' type, a ring in which a document's
        token t lies at slot t mod M. Empty: zeros.
    written_B: (B,) int32, tokens of the document taken in so far, a multiple of W; slots from
        there on are empty. Empty: 0.
    """

    window: WindowCache
    keys_BMHK: jax.Array
    values_BMHK: jax.Array
    written_B: jax.Array

    def clear_state(self, empty):
        return empty._replace(window=self.window)


class DecodingMemorizing(NamedTuple):
    """The same while a block is being filled, which the memory takes in when it is full."""

    window: DecodingWindow
    keys_BMHK: jax.Array
    values_BMHK: jax.Array
    written_B: jax.Array
