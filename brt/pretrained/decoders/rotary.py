"""Rotary positions: the halves of a head turned by angles that grow with the position.

Letters as in `brt.pretrained`. Source: Su et al. 2021, arXiv:2104.09864; halves, not
neighbours, as in folders of Llama, Qwen2 and GPT-NeoX.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.models.layers.norms import wide
from brt.pretrained.backbone_layer import BackboneLayer, LayerKeys, Seen


class Llama3Scaling(NamedTuple):
    """How frequencies of long waves are lowered, `rope_type` llama3.

    factor: of waves longer than original_positions / low; waves shorter than original_positions /
    high stay; between them it goes smoothly.
    """

    factor: float
    low: float
    high: float
    original_positions: int


def frequencies(size: int, base: float, scaling: Llama3Scaling | None = None) -> np.ndarray:
    """Returns the angles of one position, (size / 2,) float64."""
    found = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    if scaling is None:
        return found
    waves = 2 * math.pi / found
    shortest = scaling.original_positions / scaling.high
    longest = scaling.original_positions / scaling.low
    smooth = (scaling.original_positions / waves - scaling.low) / (scaling.high - scaling.low)
    between = (1 - smooth) * found / scaling.factor + smooth * found
    lowered = np.where(waves > longest, found / scaling.factor, found)
    return np.where((waves >= shortest) & (waves <= longest), between, lowered)


class RotaryLayer(BackboneLayer):
    """A layer whose queries and keys are turned by their positions.

    Attributes:
        turned: entries of a head that are turned, the first ones.
        rotary_base, rotary_scaling: of their angles, as of `frequencies`.
    """

    turned: int
    rotary_base: float
    rotary_scaling: Llama3Scaling | None = None

    def placed(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        angles = frequencies(self.turned, self.rotary_base, self.rotary_scaling)
        keys_BJGK = rotated(seen.keys.keys_BJGK, seen.positions_BJ, angles)
        keys = LayerKeys(keys_BJGK, seen.keys.values_BJGK)
        return rotated(queries_BTHK, positions_BT, angles), keys


def rotated(x_BTHK: jax.Array, positions_BT: jax.Array, angles: np.ndarray) -> jax.Array:
    """Returns heads turned by their positions, in the shape and type of x.

    angles: of one position, half as many as the entries of a head that are turned, the first ones.
    """
    half = len(angles)
    x = wide(x_BTHK)
    turned_BT1R = positions_BT[..., None, None] * jnp.asarray(angles, x.dtype)
    cos, sin = jnp.cos(turned_BT1R), jnp.sin(turned_BT1R)
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]
    return jnp.concatenate(parts, axis=-1).astype(x_BTHK.dtype)
