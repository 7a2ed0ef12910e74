"""Learning-rate schedules: factories from the steps of a run to a function of the step.

All begin with a linear warmup: `warmup_steps` steps from 0 to the schedule's value at their end.
Source: Block-Recurrent, appendix C; the constants of the released code.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from brt.checks import NotNegative, Positive, WholeNumber, configurable

Schedule = Callable[[ArrayLike], jax.Array]
"""From the step, from 0, to the learning rate, float32."""


def _after_warmup(value: Callable[[jax.Array], ArrayLike], warmup_steps: float | None) -> Schedule:
    """Returns value(max(t, w)) * min(t, w) / w: no decay during the warmup."""
    w = warmup_steps or 0

    def rate(step):
        t = jnp.asarray(step, jnp.float32)
        return value(jnp.maximum(t, w)) * (jnp.minimum(t, w) / w if w else jnp.float32(1.0))

    return rate


def _check_order(name, minimum, maximum):
    if minimum > maximum:
        raise ValueError(
            f"{name}.minimum = {minimum} must not be above {name}.maximum = {maximum}."
        )


@configurable(denylist=["total_steps"])
def rsqrt(
    total_steps: int, multiplier: Positive = 1.0, warmup_steps: WholeNumber | None = 1000
) -> Schedule:
    """multiplier / sqrt(max(t, w, 100)): 0.0316 at 1,000 steps, 0.00141 at 500,000."""
    return _after_warmup(lambda t: multiplier / jnp.sqrt(jnp.maximum(t, 100.0)), warmup_steps)


@configurable(denylist=["total_steps"])
def rescaled_rsqrt(
    total_steps: int,
    minimum: Positive = 0.001,
    maximum: Positive = 0.05,
    warmup_steps: WholeNumber | None = 1000,
) -> Schedule:
    """minimum / sqrt(t / T), at most `maximum`: ends at `minimum` whatever T is."""
    _check_order("rescaled_rsqrt", minimum, maximum)

    def value(t):
        return jnp.minimum(maximum, minimum / jnp.sqrt(jnp.maximum(t, 1.0) / total_steps))

    return _after_warmup(value, warmup_steps)


@configurable(denylist=["total_steps"])
def cosine(
    total_steps: int,
    maximum: Positive = 0.01,
    minimum: NotNegative = 0.001,
    warmup_steps: WholeNumber | None = 1000,
    tail: bool = True,
) -> Schedule:
    """Half a cosine from `maximum` to `minimum` over the run.

    tail: after the run's end, 2 * minimum * 2^(-t / T); without it the rate stays at `minimum`.
    """
    _check_order("cosine", minimum, maximum)

    def value(t):
        progress = jnp.minimum(t / total_steps, 1.0)
        rate = minimum + (maximum - minimum) * (1.0 + jnp.cos(jnp.pi * progress)) / 2.0
        after = 2.0 * minimum * 2.0 ** (-t / total_steps)
        return jnp.where(t < total_steps, rate, after) if tail else rate

    return _after_warmup(value, warmup_steps)


@configurable(denylist=["total_steps"])
def linear(
    total_steps: int,
    maximum: Positive = 0.01,
    minimum: NotNegative = 0.0,
    warmup_steps: WholeNumber | None = 1000,
) -> Schedule:
    """A straight line from `maximum` at step 0 to `minimum` at the end of the run."""
    _check_order("linear", minimum, maximum)

    def value(t):
        return maximum + (minimum - maximum) * jnp.minimum(t / total_steps, 1.0)

    return _after_warmup(value, warmup_steps)


@configurable(denylist=["total_steps"])
def constant_rate(
    total_steps: int, value: Positive = 0.001, warmup_steps: WholeNumber | None = 1000
) -> Schedule:
    """`value`, after the warmup."""
    return _after_warmup(lambda t: value, warmup_steps)
