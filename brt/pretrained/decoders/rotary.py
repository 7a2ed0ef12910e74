"""Rotary positions: the halves of a head rotated by angles that grow with the position.

Source: Su et al. 2021, arXiv:2104.09864; halves, not neighbours, as in folders of the Hub.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.checks import Count, Positive
from brt.models.ops import at_least_float32
from brt.pretrained.backbone_layer import BackboneLayer, LayerKeys, Seen

SCALING_KEYS = (
    *("factor", "low_freq_factor", "high_freq_factor"),
    "original_max_position_embeddings",
)
Scaling = tuple[Positive, Positive, Positive, Count]
"""The type of a binding of `Llama3Scaling`."""


class Llama3Scaling(NamedTuple):
    """Lower frequencies of long waves, `rope_type` llama3.

    factor: of waves longer than original_positions / low; waves shorter than original_positions /
    high stay, with a smooth change in between.
    """

    factor: float
    low: float
    high: float
    original_positions: int

    @classmethod
    def read(cls, value: dict[str, Any]) -> "Llama3Scaling | None":
        kind = value.get("rope_type", value.get("type", "default"))
        if kind == "default":
            return None
        scaling = cls(*(value[name] for name in SCALING_KEYS))
        if kind != "llama3" or scaling.high <= scaling.low:
            raise ValueError(kind)
        return scaling

    def written(self) -> dict[str, Any]:
        return {"rope_type": "llama3", **dict(zip(SCALING_KEYS, self))}


def frequencies(size: int, base: float, scaling: Llama3Scaling | None = None) -> np.ndarray:
    """Returns the angles of one position, (size / 2,) float64."""
    angles = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    if scaling is None:
        return angles
    waves = 2 * math.pi / angles
    shortest = scaling.original_positions / scaling.high
    longest = scaling.original_positions / scaling.low
    smooth = (scaling.original_positions / waves - scaling.low) / (scaling.high - scaling.low)
    between = (1 - smooth) * angles / scaling.factor + smooth * angles
    lowered = np.where(waves > longest, angles / scaling.factor, angles)
    return np.where((waves >= shortest) & (waves <= longest), between, lowered)


class RotaryLayer(BackboneLayer):
    """A layer whose queries and keys are rotated by their positions.

    rotated: how many of a head's first entries are rotated.
    """

    rotated: int
    rotary_base: float
    rotary_scaling: Llama3Scaling | None = None

    def with_positions(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        angles = frequencies(self.rotated, self.rotary_base, self.rotary_scaling)
        keys_BJGK = rotated(seen.keys.keys_BJGK, seen.positions_BJ, angles)
        keys = LayerKeys(keys_BJGK, seen.keys.values_BJGK)
        return rotated(queries_BTHK, positions_BT, angles), keys


def rotated(x_BTHK: jax.Array, positions_BT: jax.Array, angles: np.ndarray) -> jax.Array:
    half = len(angles)
    x = at_least_float32(x_BTHK)
    angles_BT1R = positions_BT[..., None, None] * jnp.asarray(angles, x.dtype)
    cos, sin = jnp.cos(angles_BT1R), jnp.sin(angles_BT1R)
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]
    return jnp.concatenate(parts, axis=-1).astype(x_BTHK.dtype)
