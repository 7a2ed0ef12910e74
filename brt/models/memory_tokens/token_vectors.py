"""The memory of a Recurrent Memory Transformer: vectors that are positions of each segment."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.model import Metrics
from brt.models.segment_memory import MemoryVectors, SegmentMemory


class MemoryCache(NamedTuple):
    """The memory of the next segment, (B, S, D) in the activations' type. Empty: learned."""

    memory_BSD: jax.Array


class TokenVectors(SegmentMemory[jax.Array]):
    """S vectors, replaced by the outputs of memory tokens, (B, S, D).

    initial_SD: learned, for the start of a document; a parameter of the model.

    Source: RMT, section 3.
    """

    name = "memory"

    def __init__(self, initial_SD: nnx.Param):
        self.initial_SD = initial_SD

    def init_cache(self, rows: int, dtype: DTypeLike) -> MemoryCache:
        initial_SD = self.initial_SD[...].astype(dtype)
        return MemoryCache(jnp.broadcast_to(initial_SD, (rows, *initial_SD.shape)))

    def read(self, cache: MemoryCache, dtype: DTypeLike) -> MemoryVectors:
        return MemoryVectors(cache.memory_BSD.astype(dtype))

    def update(self, cache: MemoryCache, segment: jax.Array) -> tuple[MemoryCache, Metrics]:
        """Returns the cache, and memory_spread: the memory's standard deviation over the batch.

        It is 0 if the memory ignores the document.
        """
        spread = jnp.std(segment.astype(jnp.float32), axis=0).mean()
        return MemoryCache(segment), {"memory_spread": jax.lax.stop_gradient(spread)}
