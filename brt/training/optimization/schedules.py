"""Learning-rate schedules: pure functions of the step, configured by gin.

Each takes the step, counted from 0, and the number of steps of the run. All begin with
the same ramp: `warmup_steps` steps from 0 to the value the schedule has at their end.
Source: Block-Recurrent, appendix C; the constants of the released code.

All raise `ValueError` for rates that are not above 0 (`minimum` may be 0 where the schedule ends
there), a `minimum` above the `maximum`, and a warm-up that is no whole number of steps.
"""

import gin
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from brt.checks import NotNegative, Positive, WholeNumber, check_positive, check_rates, check_whole


def _ramp(name, step, warmup_steps):
    """min(t, w) / w, and the step the schedule of that name is held at meanwhile."""
    if warmup_steps is not None:
        check_whole(f"{name}.warmup_steps", warmup_steps)
    step = jnp.asarray(step, jnp.float32)
    if not warmup_steps:
        return jnp.float32(1.0), step
    return jnp.minimum(step, warmup_steps) / warmup_steps, jnp.maximum(step, warmup_steps)


@gin.configurable(denylist=["step", "total_steps"])
def rsqrt(
    step: ArrayLike,
    total_steps: int,
    multiplier: Positive = 1.0,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """multiplier / sqrt(max(t, w, 100)): 0.0316 at 1,000 steps, 0.00141 at 500,000."""
    check_positive("rsqrt.multiplier", multiplier)
    ramp, held = _ramp("rsqrt", step, warmup_steps)
    return multiplier * ramp / jnp.sqrt(jnp.maximum(held, 100.0))


@gin.configurable(denylist=["step", "total_steps"])
def rescaled_rsqrt(
    step: ArrayLike,
    total_steps: int,
    minimum: NotNegative = 0.001,
    maximum: Positive = 0.05,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """minimum / sqrt(t / T), at most `maximum`: ends at `minimum` whatever T is."""
    check_positive("rescaled_rsqrt.minimum", minimum)
    check_rates("rescaled_rsqrt", minimum, maximum)
    ramp, held = _ramp("rescaled_rsqrt", step, warmup_steps)
    return ramp * jnp.minimum(maximum, minimum / jnp.sqrt(jnp.maximum(held, 1.0) / total_steps))


@gin.configurable(denylist=["step", "total_steps"])
def cosine(
    step: ArrayLike,
    total_steps: int,
    maximum: Positive = 0.01,
    minimum: NotNegative = 0.001,
    warmup_steps: WholeNumber | None = 1000,
    tail: bool = True,
) -> jax.Array:
    """Half a cosine from `maximum` to `minimum` over the run.

    Args:
        tail: after the run's end, 2 * minimum * 2^(-t / T), which halves every run
            length; without it the rate stays at `minimum`.
    """
    check_rates("cosine", minimum, maximum)
    ramp, held = _ramp("cosine", step, warmup_steps)
    progress = jnp.minimum(held / total_steps, 1.0)
    value = minimum + (maximum - minimum) * (1.0 + jnp.cos(jnp.pi * progress)) / 2.0
    if tail:
        value = jnp.where(held < total_steps, value, 2.0 * minimum * 2.0 ** (-held / total_steps))
    return ramp * value


@gin.configurable(denylist=["step", "total_steps"])
def linear(
    step: ArrayLike,
    total_steps: int,
    maximum: Positive = 0.01,
    minimum: NotNegative = 0.0,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """Returns a straight line from `maximum` at step 0 to `minimum` at the end of the run."""
    check_rates("linear", minimum, maximum)
    ramp, held = _ramp("linear", step, warmup_steps)
    return ramp * (maximum + (minimum - maximum) * jnp.minimum(held / total_steps, 1.0))


@gin.configurable(denylist=["step", "total_steps"])
def constant_rate(
    step: ArrayLike,
    total_steps: int,
    value: Positive = 0.001,
    warmup_steps: WholeNumber | None = 1000,
) -> jax.Array:
    """`value`, after the ramp."""
    check_positive("constant_rate.value", value)
    return _ramp("constant_rate", step, warmup_steps)[0] * value
