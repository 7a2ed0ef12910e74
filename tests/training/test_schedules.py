"""Learning rates, against the published formulas worked out in plain Python."""

import math

import jax
import numpy as np
import pytest

from brt.training.optimization import schedules

TOTALS = (100, 2_000, 500_000)


def ramp_and_held(step, warmup):
    return (min(step, warmup) / warmup if warmup else 1.0), max(step, warmup)


def rsqrt(step, total, warmup=1000, multiplier=1.0):
    ramp, held = ramp_and_held(step, warmup)
    return multiplier * ramp / math.sqrt(max(held, 100))


def rescaled_rsqrt(step, total, warmup=1000, low=0.001, high=0.05):
    ramp, held = ramp_and_held(step, warmup)
    return ramp * min(high, low / math.sqrt(max(held, 1) / total))


def cosine(step, total, warmup=1000, high=0.01, low=0.001, tail=True):
    ramp, held = ramp_and_held(step, warmup)
    if held < total:
        return ramp * (low + (high - low) * (1 + math.cos(math.pi * held / total)) / 2)
    return ramp * (2 * low * 2 ** (-held / total) if tail else low)


def linear(step, total, warmup=1000, high=0.01, low=0.0):
    ramp, held = ramp_and_held(step, warmup)
    return ramp * (high + (low - high) * min(held, total) / total)


def constant_rate(step, total, warmup=1000, value=0.003):
    ramp, _ = ramp_and_held(step, warmup)
    return ramp * value


FORMULAS = {
    "rsqrt": (rsqrt, {}),
    "rsqrt, half": (rsqrt, {"multiplier": 0.5}),
    "rescaled_rsqrt": (rescaled_rsqrt, {}),
    "cosine": (cosine, {}),
    "cosine without tail": (cosine, {"tail": False}),
    "linear": (linear, {}),
    "linear to a rest": (linear, {"low": 0.004}),
    "constant_rate": (constant_rate, {"value": 0.003}),
}
NAMES = {"high": "maximum", "low": "minimum", "warmup": "warmup_steps"}


def ours(formula, steps, total, **constants):
    constants = {NAMES.get(name, name): value for name, value in constants.items()}
    schedule = getattr(schedules, formula.__name__)
    return np.asarray(schedule(total, **constants)(np.array(steps, np.int32)))


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("total", TOTALS)
@pytest.mark.parametrize("warmup", [0, 1, 40, 1000])
def test_each_schedule_is_its_formula(name, total, warmup):
    formula, constants = FORMULAS[name]
    steps = sorted(
        {0, 1, warmup // 2, warmup, warmup + 1, total // 2, total - 1, total, total + 1, 2 * total}
    )
    expected = [formula(step, total, warmup=warmup, **constants) for step in steps]
    found = ours(formula, steps, total, warmup=warmup, **constants)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-9)


@pytest.mark.parametrize("name", ["rsqrt", "rescaled_rsqrt", "cosine", "linear", "constant_rate"])
def test_a_traced_step_gives_the_same_rate(name):
    schedule = getattr(schedules, name)(2000)
    traced = jax.jit(schedule)
    for step in (0, 7, 1000, 1999, 2000, 5000):
        rate = traced(np.int32(step))
        assert rate.dtype == np.float32 and rate.shape == ()
        np.testing.assert_allclose(rate, schedule(step), rtol=1e-5, atol=3e-9)
