"""A Transformer-XL while it decodes token by token, each batch element at its own position."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from brt.models.caches import zeros_outside
from brt.models.transformer_xl.hidden_memory import (
    DecodingSegment,
    append_input,
    before_segment,
    visible_keys,
)


def open_segments(
    model: Any,
    caches: tuple,
    room: int,
    inputs: Sequence[jax.Array] | None = None,
    counts_B: jax.Array | None = None,
) -> tuple:
    """Returns the decoding form of a `TransformerXL`, with room for a segment of `room` positions.

    inputs: of the layers, of which the first `counts_B` positions are valid; None: no position.
    """
    rows = jax.tree.leaves(caches)[0].shape[0]
    if inputs is None or counts_B is None:
        inputs = [jnp.zeros((rows, 0, model.width), model.dtype)] * len(caches)
        counts_B = jnp.zeros(rows, jnp.int32)
    valid_BP = jnp.arange(room) < counts_B[:, None]

    def opened(before, x_BPD):
        x_BPD = x_BPD[:, :room].astype(model.dtype)
        x_BPD = jnp.pad(x_BPD, [(0, 0), (0, room - x_BPD.shape[1]), (0, 0)])
        return DecodingSegment(before, zeros_outside(valid_BP, x_BPD), counts_B)

    return tuple(opened(*pair) for pair in zip(caches, inputs, strict=True))


def decode_position(
    model: Any, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
) -> tuple[jax.Array, tuple]:
    """Runs all layers on one position; full segments stay in the decoding form."""
    M = model.remembered
    P = caches[0].x_BPD.shape[1]
    fill_B = caches[0].fill_B
    distance_BJ = M + fill_B[:, None] - jnp.arange(M + P)
    before = before_segment(caches)
    visible_B1J = visible_keys(model.filled(before), distance_BJ[:, None], model.same_length)
    backwards_B1 = P - 1 - fill_B[:, None]
    if model.encoding == "absolute":
        x_BD = x_BD + model.sinusoid(backwards_B1)[:, 0]
    shared = model.distances(jnp.arange(M + P))
    new_caches = []
    parts = zip(model.layers, caches, model.contents(before), strict=True)
    for i, (layer, cache, memory_BMD) in enumerate(parts):
        with jax.named_scope(f"layer{i}"):
            x_BD = layer.add_position_vectors(x_BD[:, None], backwards_B1)[:, 0]
            cache = append_input(cache, x_BD, reads_B)
            hidden = memory_BMD, cache.x_BPD
            x_BD = layer.decode(x_BD, hidden, visible_B1J[:, 0], distance_BJ, shared)
        new_caches.append(cache)
    return x_BD, tuple(new_caches)
