"""Learning rates, against the published formulas worked out in plain Python."""

import math

import jax
import numpy as np
import pytest

from brt.training.optimization import schedules

TOTALS = (100, 2_000, 500_000)


def ramp_and_held(step, warmup):
    return (min(step, warmup) / warmup if warmup else 1.0), max(step, warmup)


def rsqrt(step, total, warmup_steps=1000, multiplier=1.0):
    ramp, held = ramp_and_held(step, warmup_steps)
    return multiplier * ramp / math.sqrt(max(held, 100))


def rescaled_rsqrt(step, total, warmup_steps=1000, minimum=0.001, maximum=0.05):
    ramp, held = ramp_and_held(step, warmup_steps)
    return ramp * min(maximum, minimum / math.sqrt(max(held, 1) / total))


def cosine(step, total, warmup_steps=1000, maximum=0.01, minimum=0.001, tail=True):
    ramp, held = ramp_and_held(step, warmup_steps)
    if held < total:
        share = (1 + math.cos(math.pi * held / total)) / 2
        return ramp * (minimum + (maximum - minimum) * share)
    return ramp * (2 * minimum * 2 ** (-held / total) if tail else minimum)


def linear(step, total, warmup_steps=1000, maximum=0.01, minimum=0.0):
    ramp, held = ramp_and_held(step, warmup_steps)
    return ramp * (maximum + (minimum - maximum) * min(held, total) / total)


def constant_rate(step, total, warmup_steps, value):
    ramp, _ = ramp_and_held(step, warmup_steps)
    return ramp * value


FORMULAS = {
    "rsqrt": (rsqrt, {}),
    "rsqrt, half": (rsqrt, {"multiplier": 0.5}),
    "rescaled_rsqrt": (rescaled_rsqrt, {}),
    "cosine": (cosine, {}),
    "cosine without tail": (cosine, {"tail": False}),
    "linear": (linear, {}),
    "linear to a rest": (linear, {"minimum": 0.004}),
    "constant_rate": (constant_rate, {"value": 0.003}),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("total", TOTALS)
@pytest.mark.parametrize("warmup", [0, 1, 40, 1000])
def test_each_schedule_is_its_formula(name, total, warmup):
    formula, constants = FORMULAS[name]
    steps = sorted(
        {0, 1, warmup // 2, warmup, warmup + 1, total // 2, total - 1, total, total + 1, 2 * total}
    )
    constants = constants | {"warmup_steps": warmup}
    expected = [formula(step, total, **constants) for step in steps]
    schedule = getattr(schedules, formula.__name__)(total, **constants)
    found = schedule(np.array(steps, np.int32))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-9)


@pytest.mark.parametrize("name", ["rsqrt", "rescaled_rsqrt", "cosine", "linear", "constant_rate"])
def test_a_traced_step_gives_the_same_rate(name):
    schedule = getattr(schedules, name)(2000)
    traced = jax.jit(schedule)
    for step in (0, 7, 1000, 1999, 2000, 5000):
        rate = traced(np.int32(step))
        assert rate.dtype == np.float32 and rate.shape == ()
        np.testing.assert_allclose(rate, schedule(step), rtol=1e-5, atol=3e-9)
