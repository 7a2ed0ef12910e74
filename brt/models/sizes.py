"""The dimensions of a layer, and the form of its attention."""

import dataclasses
from typing import Annotated

from brt.checks import Count, CountFrom0, OneOf, checked_arguments

FORMS = ("auto", "plain", "kernel", "cudnn")
""""auto": kernels on TPUs where sizes fit, cuDNN on Hopper where it is faster, else plain JAX."""

DROPPED = ("weights", "keys")
""""weights" of attention after the softmax, as published; "keys" before it."""


@checked_arguments
@dataclasses.dataclass(frozen=True)
class Sizes:
    """Dimensions D, H, K and F of a layer; F = 0: a layer without an MLP.

    qk_norm: queries and keys have unit length and a learned scale for each head; otherwise scores
    are q.k / sqrt(K).
    attention_form: one of `FORMS`. attention_dropout: one of `DROPPED`.
    """

    width: Count
    num_heads: Count
    head_size: Count
    feed_forward_size: CountFrom0
    qk_norm: bool = True
    attention_form: Annotated[str, OneOf(FORMS)] = "auto"
    attention_dropout: Annotated[str, OneOf(DROPPED)] = "weights"

    @property
    def attention_size(self) -> int:
        return self.num_heads * self.head_size


TILE = 128
"""Queries of a tile of attention, and columns of a TPU's registers."""


def tile_size(size: int) -> int:
    """Returns the queries of a tile, of a window or block of `size` tokens."""
    return TILE if size % TILE == 0 else size
