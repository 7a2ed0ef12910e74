"""Windows of a pretrained decoder, and the tokens that two windows share.

A window is the last O tokens of the window before it, and then P new ones; positions start at 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from brt.models.decoding_window import write_slot
from brt.pretrained.backbone_layer import LayerKeys, attention_bias
from brt.pretrained.memories.window_memory import Positions


class OverlapCache(NamedTuple):
    """The last tokens of a window, which start the next window.

    x_BOD: embeddings, the newest last, right-aligned. count_B: int32, their number.
    """

    x_BOD: jax.Array
    count_B: jax.Array

    @property
    def carries_state(self) -> bool:
        return False


class DecodingWindow(NamedTuple):
    """A window while it is being filled.

    recent_BOD, count_B: the last tokens so far, as in `OverlapCache`. before_B: tokens of the
    window before. fill_B: new tokens so far, 0 ... P - 1. layers: (B, O + P, G, K) each.
    """

    recent_BOD: jax.Array
    count_B: jax.Array
    before_B: jax.Array
    fill_B: jax.Array
    layers: tuple[LayerKeys, ...]
    extras: tuple[LayerKeys | None, ...]


class Slots(NamedTuple):
    """The slots of a window: O for shared tokens, right-aligned, then those for new ones.

    index_BJ: int32, a slot's token number in its window; below 0 in empty slots.
    again_B: int32, number of the first token that the next window repeats.
    """

    index_BJ: jax.Array
    again_B: jax.Array

    @property
    def positions_BJ(self) -> jax.Array:
        return jnp.maximum(self.index_BJ, 0)

    def causal_bias(self) -> jax.Array:
        J = self.index_BJ.shape[1]
        causal_JJ = jnp.arange(J)[:, None] >= jnp.arange(J)
        return attention_bias(causal_JJ & (self.index_BJ >= 0)[:, None])

    def positions(self, real_BJ: jax.Array | bool = True) -> Positions:
        again_BJ = self.index_BJ >= self.again_B[:, None]
        return Positions(real_BJ & (self.index_BJ >= 0), again_BJ)


def slots(before_B: jax.Array, overlap: int, new: int, period: int) -> Slots:
    """Returns the slots of windows: O shared ones and `new` more; P new tokens fill a window."""
    index_BJ = jnp.arange(overlap + new) - (overlap - before_B)[:, None]
    return Slots(index_BJ, jnp.maximum(before_B + period - overlap, 0))


def write_arrays(window: Any, token: Any, slot_B: jax.Array, reads_B: jax.Array) -> Any:
    """Writes arrays of one token, (B, 1, ...), into a slot of the elements in `reads_B`."""

    def write(x_BP, new_B1):
        return write_slot(x_BP, slot_B, new_B1[:, 0], reads_B)

    return jax.tree.map(write, window, token)
