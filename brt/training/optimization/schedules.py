"""Learning-rate schedules: functions of the step, from 0, and the number of steps of the run.

All begin with a linear warmup: `warmup_steps` steps from 0 to the schedule's value at their end.
Source: Block-Recurrent, appendix C; the constants of the released code.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from brt.checks import NotNegative, Positive, WholeNumber, configurable


def _warmup(step, warmup_steps):
    """Returns min(t, w) / w, and max(t, w): the schedule is constant during the warmup."""
    step = jnp.asarray(step, jnp.float32)
    if not warmup_steps:
        return jnp.float32(1.0), step
    return jnp.minimum(step, warmup_steps) / warmup_steps, jnp.maximum(step, warmup_steps)


def _check_order(name, minimum, maximum):
    if minimum > maximum:
        raise ValueError(
            f"{name}.minimum = {minimum} must not be above {name}.maximum = {maximum}."
        )


@configurable(denylist=["step", "total_steps"])
def rsqrt(
    step: ArrayLike,
    total_steps: int,
    multiplier: Positive = 1.0,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """multiplier / sqrt(max(t, w, 100)): 0.0316 at 1,000 steps, 0.00141 at 500,000."""
    warmup, t = _warmup(step, warmup_steps)
    return multiplier * warmup / jnp.sqrt(jnp.maximum(t, 100.0))


@configurable(denylist=["step", "total_steps"])
def rescaled_rsqrt(
    step: ArrayLike,
    total_steps: int,
    minimum: Positive = 0.001,
    maximum: Positive = 0.05,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """minimum / sqrt(t / T), at most `maximum`: ends at `minimum` whatever T is."""
    _check_order("rescaled_rsqrt", minimum, maximum)
    warmup, t = _warmup(step, warmup_steps)
    return warmup * jnp.minimum(maximum, minimum / jnp.sqrt(jnp.maximum(t, 1.0) / total_steps))


@configurable(denylist=["step", "total_steps"])
def cosine(
    step: ArrayLike,
    total_steps: int,
    maximum: Positive = 0.01,
    minimum: NotNegative = 0.001,
    warmup_steps: WholeNumber | None = 1000,
    tail: bool = True,
) -> jax.Array:
    """Half a cosine from `maximum` to `minimum` over the run.

    tail: after the run's end, 2 * minimum * 2^(-t / T); without it the rate stays at `minimum`.
    """
    _check_order("cosine", minimum, maximum)
    warmup, t = _warmup(step, warmup_steps)
    progress = jnp.minimum(t / total_steps, 1.0)
    value = minimum + (maximum - minimum) * (1.0 + jnp.cos(jnp.pi * progress)) / 2.0
    if tail:
        value = jnp.where(t < total_steps, value, 2.0 * minimum * 2.0 ** (-t / total_steps))
    return warmup * value


@configurable(denylist=["step", "total_steps"])
def linear(
    step: ArrayLike,
    total_steps: int,
    maximum: Positive = 0.01,
    minimum: NotNegative = 0.0,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """A straight line from `maximum` at step 0 to `minimum` at the end of the run."""
    _check_order("linear", minimum, maximum)
    warmup, t = _warmup(step, warmup_steps)
    return warmup * (maximum + (minimum - maximum) * jnp.minimum(t / total_steps, 1.0))


@configurable(denylist=["step", "total_steps"])
def constant_rate(
    step: ArrayLike,
    total_steps: int,
    value: Positive = 0.001,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """`value`, after the warmup."""
    return _warmup(step, warmup_steps)[0] * value
