"""How parameters begin."""

from flax import nnx
from jax.nn import initializers

DENSE = initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
"""Truncated normal of variance 1 / fan-in: every matrix outside the gates."""

SMALL = initializers.variance_scaling(0.1, "fan_in", "truncated_normal")
"""Truncated normal of variance 0.1 / fan-in: gate matrices (Block-Recurrent, appendix B)."""


def normal(stddev, mean=0.0):
    """N(mean, stddev ** 2)."""
    draw = initializers.normal(stddev)
    return draw if not mean else lambda *args: mean + draw(*args)


def parameter(rngs: nnx.Rngs, initializer, *shape) -> nnx.Param:
    """A float32 parameter drawn by `initializer`."""
    return nnx.Param(initializer(rngs.params(), shape, "float32"))
