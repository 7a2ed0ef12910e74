"""Settings with which the loss rises, stands still or is not finite are refused by name."""

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_run import PLAIN, build, command, write_config

from brt import config, train
from brt.training.optimization import schedules
from brt.training.optimization.optimizers import adafactor, adamw
from brt.training.optimization.plateau import ReduceOnPlateau

INFINITE = float("inf")
NAN = float("nan")

REFUSED = [
    (adamw, "clip_norm", [-0.5, 0, 0.0, INFINITE, -INFINITE, NAN, 1e-60, True, "abc"]),
    (adamw, "clip_value", [-1.0, 0, INFINITE, NAN, "abc"]),
    (adamw, "eps", [0, -1.0, INFINITE, 1e300, NAN, "abc"]),
    (adamw, "b1", [1.0, 5, -1.0, -0.1, NAN, INFINITE, "abc"]),
    (adamw, "b2", [1.0, 3, -1, INFINITE, NAN]),
    (adamw, "weight_decay", [-5.0, INFINITE, NAN, "abc"]),
    (adafactor, "momentum", [5, 1.0, -0.5, NAN, INFINITE, "abc"]),
    (adafactor, "clip_update", [0, -1.0, INFINITE, NAN, "abc"]),
    (adafactor, "decay_rate", [0, -0.8, INFINITE, NAN]),
    (adafactor, "min_factored", [-1, 2.5, NAN]),
]
RATES = [
    ("rsqrt", "multiplier", [-1.0, 0, INFINITE, NAN, "abc"]),
    ("rescaled_rsqrt", "minimum", [-0.5, 0, 0.06, NAN]),
    ("rescaled_rsqrt", "maximum", [-0.5, 0, INFINITE]),
    ("cosine", "maximum", [-0.5, 0, 0.0005, INFINITE, NAN]),
    ("cosine", "minimum", [-0.5, 0.02, INFINITE, NAN]),
    ("linear", "maximum", [-0.5, 0, INFINITE, NAN]),
    ("linear", "minimum", [-0.5, 0.02, NAN]),
    ("constant_rate", "value", [-0.5, 0, INFINITE, NAN]),
    *(
        (name, "warmup_steps", [-5, 2.5, "", INFINITE, NAN, True])
        for name in ("rsqrt", "rescaled_rsqrt", "cosine", "linear", "constant_rate")
    ),
]


def each(table):
    return [(owner, name, value) for owner, name, values in table for value in values]


@pytest.mark.parametrize(("optimizer", "name", "value"), each(REFUSED))
def test_an_optimizer_refuses_what_has_no_meaning(optimizer, name, value):
    with pytest.raises(ValueError, match=rf"^{optimizer.__name__}\.{name} = .* must "):
        optimizer(lambda step: 0.1, **{name: value})


@pytest.mark.parametrize(("schedule", "name", "value"), each(RATES))
def test_a_schedule_refuses_what_has_no_meaning(schedule, name, value):
    with pytest.raises(
        ValueError, match=rf"must .*{schedule}\.{name} = |{schedule}\.{name} = .*must "
    ):
        getattr(schedules, schedule)(1, 100, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("factor", value) for value in (1.0, 0, -0.5, NAN)),
        *(("patience", value) for value in (-1, 2.5)),
        *(("floor", value) for value in (-1e-6, INFINITE, NAN)),
    ],
)
def test_the_plateau_rule_refuses_what_has_no_meaning(name, value):
    with pytest.raises(ValueError, match=rf"^ReduceOnPlateau\.{name} = .* must "):
        ReduceOnPlateau(**{name: value})


ACCEPTED = [
    (adamw, {}),
    (adamw, {"b1": 0, "b2": 0.0, "eps": 1e-30, "weight_decay": 0, "clip_norm": 0.25}),
    (adamw, {"clip_value": np.float32(0.5), "weight_decay": 0.1}),
    (adafactor, {}),
    (adafactor, {"momentum": None, "clip_update": None, "min_factored": 0}),
    (adafactor, {"momentum": 0.0}),
]


@pytest.mark.parametrize(("optimizer", "settings"), ACCEPTED)
def test_settings_that_are_accepted_descend(optimizer, settings):
    params = {"w": jnp.linspace(-1.0, 1.0, 6)}
    gradient = jax.tree.map(lambda x: 2 * x, params)
    rule = optimizer(lambda step: 0.01, **settings)
    updates, _ = rule.update(gradient, rule.init(params), params)
    assert optax.tree.vdot(updates, gradient) < 0


@pytest.mark.parametrize("warmup_steps", [0, 3, 3.0, None])
def test_a_warm_up_of_whole_steps_is_accepted(warmup_steps):
    rate = schedules.constant_rate(1, 100, value=0.3, warmup_steps=warmup_steps)
    assert float(rate) == pytest.approx(0.1 if warmup_steps else 0.3)


@pytest.mark.parametrize(
    ("binding", "named"),
    [
        ("adamw.clip_norm=-0.5", "adamw.clip_norm = -0.5 must be a finite number above 0 or None."),
        ("adamw.eps=1e400", "adamw.eps = inf must be a finite number above 0."),
        ("rsqrt.multiplier=-1", "rsqrt.multiplier = -1 must be a finite number above 0."),
        (
            "rsqrt.warmup_steps=-5",
            "rsqrt.warmup_steps = -5 must be a whole number from 0 to 2,147,483,647 or None.",
        ),
        ("adamw.b1='abc'", "adamw.b1 = 'abc' must be a number, without quotes."),
    ],
)
def test_a_dry_run_refuses_them(tmp_path, monkeypatch, capsys, binding, named):
    path = write_config(tmp_path, *PLAIN, without=("RecurrentCell",))
    status = command(monkeypatch, train, f"--gin_file={path}", "--dry_run", f"--gin.{binding}")
    assert status == 1
    assert capsys.readouterr().err.strip() == f"Error: {named}"
    gin.clear_config()


def test_the_settings_of_a_config_are_accepted(tmp_path):
    build(write_config(tmp_path, *PLAIN, without=("RecurrentCell",)))
    assert config.read_bindings()["adamw.clip_norm"] == "None"
    gin.clear_config()


@pytest.mark.parametrize(
    ("bindings", "named"),
    [
        (("bptt_depth = 1",), "segments_per_step"),
        (("bptt_depth = 4", "segments_per_step = 4"), "segments_per_step = 5"),
        (("reread_segments = 1", "segments_per_step = 2"), "segments_per_step = 1"),
        (("reread_segments = 1", 'stream = "samples"'), "reread_segments"),
        (("tokens_per_step = 63",), "tokens_per_step"),
        (("plateau = @ReduceOnPlateau()", "eval_every = 0"), "eval_every"),
        (
            ("plateau = @ReduceOnPlateau()", "average = @WeightAverage()", "eval_every = 1"),
            "average",
        ),
    ],
)
def test_contradictions_name_their_bindings(tmp_path, bindings, named):
    path = write_config(tmp_path, *PLAIN, without=("RecurrentCell",))
    with pytest.raises(ValueError, match=f"Trainer.{named}"):
        build(path, *(f"Trainer.{binding}" for binding in bindings))
    gin.clear_config()
