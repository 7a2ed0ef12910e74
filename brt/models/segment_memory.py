"""The interface of a memory between segments.

A *layer memory* (`brt/models/block_recurrent/memory.py`) changes within a segment. A *segment
memory* is read by a segment and updated after it: one in each layer of a Transformer-XL, one around
the backbone of a Recurrent Memory Transformer, any number in a pretrained backbone.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import jax
from flax import nnx
from jax.typing import DTypeLike

from brt.models.model import Metrics

Segment = TypeVar("Segment", contravariant=True)
"""A processed segment, as far as a model shows it to its memories."""


class MemoryVectors(NamedTuple):
    """Vectors that a segment reads, as positions or as a layer's keys and values.

    x_BMD: (B, M, D), the newest last.
    filled_BM: (B, M) bool, the vectors that are visible; None: all.
    """

    x_BMD: jax.Array
    filled_BM: jax.Array | None = None


class SegmentMemory(nnx.Module, Generic[Segment]):
    """The base of memories that are constant inside a segment.

    The cache is as in a `LayerMemory`. While decoding, `update` follows a segment's last token.

    Class attributes:
        name: of its metrics, such as `<name>_grad_norm`; unique in a model or layer.
    """

    purpose = "recurrence"
    name: str

    def check_segment(self, positions: int) -> None:
        """Raises a `ValueError` if segments of so many positions are not supported."""

    def init_cache(self, rows: int, dtype: DTypeLike) -> Any:
        raise NotImplementedError

    def read(self, cache: Any, dtype: DTypeLike) -> Any:
        """Returns a segment's input, most often `MemoryVectors`."""
        raise NotImplementedError

    def update(self, cache: Any, segment: Segment) -> tuple[Any, Metrics]:
        """Returns the cache after a segment, whose type depends on the model, and scalar metrics.

        `added_nats` is added to the training loss.
        """
        return cache, {}

    def flops_per_segment(self, positions: int) -> float:
        """Returns the operations of an update, without attention to the memory (the model's)."""
        return 0.0
