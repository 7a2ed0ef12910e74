"""The interface of a memory between segments.

brt has two kinds of memory. A *layer memory* (`brt/models/block_recurrent/memory.py`) belongs to
one layer and changes while a segment is processed, with its blocks or its tokens. A *segment
memory*, defined here, is constant inside a segment: the segment reads it, and it is updated after
the segment, for the next one. Transformer-XL has one in each layer, a Recurrent Memory Transformer
one around its backbone, and a pretrained backbone any number. Axes as in `brt.models`.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import jax
from flax import nnx
from jax.typing import DTypeLike

from brt.models.model import Metrics

Segment = TypeVar("Segment", contravariant=True)
"""A processed segment, as far as a model shows it to its memories."""


class MemoryVectors(NamedTuple):
    """Vectors that a segment reads, as positions of its own or as a layer's keys and values.

    x_BMD: (B, M, D), the newest last.
    filled_BM: (B, M) bool, the vectors that are visible; None: all.
    """

    x_BMD: jax.Array
    filled_BM: jax.Array | None = None


class SegmentMemory(nnx.Module, Generic[Segment]):
    """A memory that is constant inside a segment: the base of all.

    A memory holds parameters only. Its cache is a named tuple of arrays, batch first, whose names
    end in their axes, with a method `clear_state(empty)` that returns the cache after forgetting.

    While a segment is being decoded the cache stays as it is. The model keeps what it will show of
    the segment and calls `update` after the last token. So a memory defines nothing for decoding.

    Class attributes:
        name: of its metrics, such as `<name>_grad_norm`; a model or layer has one of a name.
        reach: tokens before a segment that can influence it through the memory; may be infinite.
    """

    purpose = "recurrence"
    name: str
    reach: float = float("inf")

    def check_segment(self, positions: int) -> None:
        """Raises a `ValueError` if the memory does not support segments of so many positions."""

    def init_cache(self, rows: int, dtype: DTypeLike) -> Any:
        """Returns the cache of `rows` new documents: what "empty" means.

        dtype: of the activations.
        """
        raise NotImplementedError

    def read(self, cache: Any, dtype: DTypeLike) -> Any:
        """Returns the input of a segment from the memory, most often `MemoryVectors`."""
        raise NotImplementedError

    def update(self, cache: Any, segment: Segment) -> tuple[Any, Metrics]:
        """Returns the cache after a segment, and scalar metrics.

        The metric `added_nats`, if there is one, is added to the loss that is trained on.

        Args:
            cache: before the segment.
            segment: its type depends on the model.
        """
        return cache, {}

    def flops_per_segment(self, positions: int) -> float:
        """Returns the operations of an update; attention to the memory belongs to the model."""
        return 0.0
