"""The memory of Transformer-XL: the last inputs of each layer.

Keys and values are not kept, because keys depend on the distance to the query. M: remembered
vectors, P: positions of a segment, J: M + P.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.decoding_window import write_slot
from brt.models.model import Metrics
from brt.models.segment_memory import MemoryVectors, SegmentMemory
from brt.models.sizes import Sizes

if TYPE_CHECKING:
    from brt.models.transformer_xl.layer import TransformerXLLayer


class HiddenCache(NamedTuple):
    """The inputs of a layer at the last M positions, the newest last.

    x_BMD: (B, M, D) in the activations' type.
    count_B: (B,) int32, how many of the last M are filled, and visible; empty: 0.
    """

    x_BMD: jax.Array
    count_B: jax.Array

    @property
    def carries_state(self) -> bool:
        return False


class LayerSegment(NamedTuple):
    """A segment processed by a layer; x_BTD: the layer's inputs."""

    x_BTD: jax.Array
    layer: "TransformerXLLayer"


class HiddenMemory(SegmentMemory[LayerSegment]):
    """Keeps the last M inputs of a layer: the base of the memories of Transformer-XL.

    Built as `memory(rngs, sizes, length)`; the layer attends to its vectors as to earlier inputs.

    Attributes:
        length: vectors that the layer reads; equal in all layers.
        recent: how many of them, the last ones, are the inputs right before the segment.

    Source: Transformer-XL, section 3.2.
    """

    name = "hidden"

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, length: int):
        self.width = sizes.width
        self.length = self.recent = length

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        x_BMD = jnp.zeros((rows, self.length, self.width), dtype)
        return HiddenCache(x_BMD, jnp.zeros(rows, jnp.int32))

    def read(self, cache: Any, dtype: DTypeLike) -> MemoryVectors:
        return MemoryVectors(cache.x_BMD, last_filled(cache.count_B, cache.x_BMD.shape[1]))

    def update(self, cache: Any, segment: LayerSegment) -> tuple[NamedTuple, Metrics]:
        # No gradient: Transformer-XL, section 3.2, h = [SG(m), h].
        T = segment.x_BTD.shape[1]
        x_BJD = jnp.concatenate([cache.x_BMD, segment.x_BTD.astype(cache.x_BMD.dtype)], axis=1)
        count_B = jnp.minimum(cache.count_B + T, self.length)
        return HiddenCache(jax.lax.stop_gradient(x_BJD[:, T:]), count_B), {}


def last_filled(count_B: jax.Array, size: int) -> jax.Array:
    """Returns which slots are the last `count_B`, (B, size) bool."""
    return jnp.arange(size) >= size - count_B[:, None]


class DecodingSegment(NamedTuple):
    """The cache of a layer before a segment, and the segment while it is being filled.

    x_BPD: (B, P, D), inputs of the layer in the segment, zeros beyond the fill.
    fill_B: (B,) int32, positions of the segment so far, 0 ... P - 1.
    """

    before: NamedTuple
    x_BPD: jax.Array
    fill_B: jax.Array


def visible_keys(
    filled_BM: jax.Array, distance_TJ: jax.Array, same_length: bool = False
) -> jax.Array:
    """Returns which keys, M remembered ones and a segment's, each query sees, (B, T, J) bool.

    distance_TJ: int, from key to query; also (B, T, J). same_length: a query sees the last M keys
    only, with its own (released PyTorch code).
    """
    B, M = filled_BM.shape
    seen = distance_TJ >= 0
    if same_length:
        seen &= distance_TJ < M
    in_segment_BT = jnp.ones((B, distance_TJ.shape[-1] - M), bool)
    return jnp.concatenate([filled_BM, in_segment_BT], axis=1)[:, None] & seen


def before_segment(caches: Iterable[DecodingSegment]) -> tuple:
    """Returns the segment form of caches in the decoding form."""
    return tuple(cache.before for cache in caches)


def append_input(
    cache: DecodingSegment, x_BD: jax.Array, reads_B: jax.Array | bool = True
) -> DecodingSegment:
    """Appends one position's input to the segment of the batch elements in `reads_B`."""
    x_BPD = write_slot(cache.x_BPD, cache.fill_B, x_BD.astype(cache.x_BPD.dtype), reads_B)
    return cache._replace(x_BPD=x_BPD, fill_B=cache.fill_B + jnp.asarray(reads_B, jnp.int32))
