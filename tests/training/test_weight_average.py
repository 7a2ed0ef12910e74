"""Averaged weights, against the average in plain Python, and through a resumed run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_run import build, differing, train_here, write_config

from brt.training.checkpoints.parameters import load_params
from brt.training.optimization.weight_average import WeightAverage, evaluated_params
from brt.training.records.run_folder import read_metrics
from brt.training.train_step import TrainState


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_the_average_weighs_each_update_by_the_decay_to_its_age(decay):
    rng, params = np.random.default_rng(0), {"x": jnp.arange(3.0)}
    optimizer = WeightAverage(decay).wrap(optax.sgd(0.5))
    state, seen = optimizer.init(params), []
    for _ in range(7):
        gradients = {"x": jnp.asarray(rng.normal(size=3), jnp.float32)}
        updates, state = optimizer.update(gradients, state, params)
        np.testing.assert_allclose(updates["x"], -0.5 * gradients["x"], rtol=1e-6)
        params = optax.apply_updates(params, updates)
        seen.append(np.asarray(params["x"], np.float64))
        weights = decay ** np.arange(len(seen))[::-1]
        found = evaluated_params(TrainState(0, params, state, None))["x"]
        expected = np.average(seen, axis=0, weights=weights)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.9, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999])
def test_the_average_of_constant_parameters_is_these(decay):
    params = {"x": jnp.array([1.0, -3.0])}
    optimizer = WeightAverage(decay).wrap(optax.set_to_zero())

    @jax.jit
    def advance(state, steps):
        def update(_, state):
            return optimizer.update(params, state, params)[1]

        return jax.lax.fori_loop(0, steps, update, state)

    state = optimizer.init(params)
    for steps in (1, 9, 290):
        state = advance(state, steps)
        found = evaluated_params(TrainState(0, params, state, None))["x"]
        np.testing.assert_allclose(found, params["x"], rtol=2e-5)


@pytest.mark.parametrize("decay", [1.0, 0.99999998])
def test_a_decay_that_is_1_in_float32_is_refused(decay):
    with pytest.raises(ValueError, match=r"WeightAverage\.decay"):
        WeightAverage(decay)


def test_before_the_first_update_parameters_are_their_average():
    params = {"x": jnp.arange(3.0)}
    state = WeightAverage().wrap(optax.sgd(0.5)).init(params)
    found = evaluated_params(TrainState(0, params, state, None))
    np.testing.assert_array_equal(found["x"], params["x"])


@pytest.mark.slow
def test_a_run_evaluates_the_average_and_trains_without_it(tmp_path):
    lines = (
        *("Trainer.steps = 6", "Trainer.log_every = 1", "Trainer.eval_every = 3"),
        *("Evaluation.cleared = False", "Evaluation.split = 'test'"),
    )
    average = "Trainer.average = @WeightAverage()", "WeightAverage.decay = 0.5"
    tiny = build(write_config(tmp_path, *lines), *average)
    straight = train_here(tiny, tmp_path / "straight")

    def losses(folder):
        return [r["eval/loss"] for r in read_metrics(str(tmp_path / folder)) if "eval/loss" in r]

    abstract = tiny.experiment.abstract_state()
    loaded, _ = load_params(str(tmp_path / "straight"), abstract)
    assert not differing(loaded.params, evaluated_params(straight.state))
    assert differing(loaded.params, straight.state.params)
    last, _ = load_params(str(tmp_path / "straight"), abstract._replace(optimizer=None))
    assert not differing(last.params, straight.state.params)
    # Training is the same as without the average; only the evaluated parameters differ.
    plain = train_here(build(tmp_path / "tiny.gin"), tmp_path / "plain")
    assert not differing(plain.state.params, straight.state.params)
    assert losses("plain") != losses("straight")
    read = jax.tree.leaves(straight.evaluation.evaluator.run(loaded.params))
    assert losses("straight")[-1] in read
