"""Initializers and parameter groups."""

from collections.abc import Callable

import jax
from flax import nnx
from jax.nn import initializers
from jax.typing import DTypeLike

Initializer = Callable[[jax.Array, tuple[int, ...], DTypeLike], jax.Array]

DENSE = initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
"""Every matrix outside the gates."""

SMALL = initializers.variance_scaling(0.1, "fan_in", "truncated_normal")
"""Gate matrices (Block-Recurrent, appendix B)."""


def normal(stddev: float, mean: float = 0.0) -> Initializer:
    draw = initializers.normal(stddev)
    return draw if not mean else lambda *args: mean + draw(*args)


def parameter(
    rngs: nnx.Rngs,
    initializer: Initializer,
    *shape: int,
    purpose: str | tuple[str, ...] | None = None,
    multiplied: bool | None = None,
) -> nnx.Param:
    """Returns a float32 parameter with the metadata that `brt.models.counts` uses.

    Args:
        purpose: "embedding", "layers" or "recurrence" (cells, memories, attention to them); several
            for equal parts of the first axis. None: that of the nearest enclosing module that has
            one, else "layers".
        multiplied: whether every token is multiplied with it. None: if it is a matrix.
    """
    multiplied = len(shape) == 2 if multiplied is None else multiplied
    draw = getattr(rngs, "params", None)
    if draw is None:
        raise TypeError("rngs gives no keys of parameters: pass nnx.Rngs(SEED).")
    value = initializer(draw(), shape, "float32")
    return nnx.Param(value, purpose=purpose, multiplied=multiplied)
