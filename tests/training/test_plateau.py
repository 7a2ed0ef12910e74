"""The learning rate on a plateau, against the rule in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.training.optimization.optimizers import adamw
from brt.training.optimization.plateau import ReduceOnPlateau


def scales(losses, factor, patience):
    """The scale of the rate after each evaluation, by counting."""
    best, waited, scale = np.inf, 0, 1.0
    for loss in losses:
        if loss < best * (1 - 1e-4):
            best, waited = loss, 0
        else:
            waited += 1
        if waited > patience:
            scale, waited = scale * factor, 0
        yield scale


@settings(max_examples=25, deadline=None)
@given(
    losses=st.lists(st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0]), min_size=1, max_size=25),
    factor=st.sampled_from([0.1, 0.5, 0.9]),
    patience=st.integers(0, 4),
)
def test_the_rate_falls_after_patience_plus_one_evaluations(losses, factor, patience):
    rule = ReduceOnPlateau(factor, patience, floor=0.0)
    state = rule.wrap(optax.sgd(1.0), lambda step: jnp.float32(1.0)).init({"x": jnp.ones(3)})
    for loss, scale in zip(losses, scales(losses, factor, patience), strict=True):
        state = rule.after_evaluation(state, loss)
        np.testing.assert_allclose(rule.rate(2.0, state), 2.0 * scale, rtol=1e-5)


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 0.3), (0.5, 0.3), (0.2, 0.2), (0.0, 0.0)])
def test_the_rate_stays_between_the_floor_and_the_schedule(rate, expected):
    rule = ReduceOnPlateau(0.5, 0, floor=0.3)
    state = rule.wrap(optax.sgd(1.0), lambda step: jnp.float32(1.0)).init({"x": jnp.ones(3)})
    for _ in range(9):
        state = rule.after_evaluation(state, 1.0)
    np.testing.assert_allclose(rule.rate(jnp.float32(rate), state), expected, rtol=1e-6)


def test_updates_are_those_of_the_lower_rate():
    rule, params = ReduceOnPlateau(0.5, 0), {"x": jnp.arange(3.0)}

    def schedule(step):
        return jnp.where(step == 0, 0.0, 0.1 / (1 + step))

    slowed = rule.wrap(adamw(schedule, weight_decay=0.1), schedule)
    halved = adamw(lambda step: schedule(step) / jnp.where(step >= 3, 2, 1), weight_decay=0.1)
    state, expected_state = slowed.init(params), halved.init(params)
    for step in range(6):
        if step == 3:
            state = rule.after_evaluation(rule.after_evaluation(state, 1.0), 1.0)
        gradients = {"x": jnp.array([1.0, -2.0, step])}
        updates, state = slowed.update(gradients, state, params)
        expected, expected_state = halved.update(gradients, expected_state, params)
        np.testing.assert_allclose(updates["x"], expected["x"], rtol=1e-6)
        params = jax.tree.map(jnp.add, params, updates)
