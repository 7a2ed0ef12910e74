"""Settings with which the loss rises, stands still or is not finite are refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_run import PLAIN, build, command, gin_afterwards, write_config  # noqa: F401

from brt import train
from brt.training.optimization import schedules
from brt.training.optimization.optimizers import adafactor, adamw


@pytest.mark.parametrize("schedule", ["rescaled_rsqrt", "cosine", "linear"])
def test_a_schedule_refuses_a_minimum_above_its_maximum(schedule):
    with pytest.raises(ValueError, match=rf"^{schedule}\.minimum = "):
        getattr(schedules, schedule)(100, minimum=0.02, maximum=0.01)


ACCEPTED = [
    (adamw, {"b1": 0, "b2": 0.0, "eps": 1e-30, "weight_decay": 0, "clip_norm": 0.25}),
    (adamw, {"clip_value": np.float32(0.5), "weight_decay": 0.1}),
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
    rate = schedules.constant_rate(100, value=0.3, warmup_steps=warmup_steps)(1)
    assert float(rate) == pytest.approx(0.1 if warmup_steps else 0.3)


def test_a_dry_run_refuses_what_has_no_meaning(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path, *PLAIN)
    arguments = f"--gin_file={path}", "--dry_run", "--gin.adamw.clip_norm=-0.5"
    assert command(monkeypatch, train, *arguments) == 1
    assert capsys.readouterr().err.strip().startswith("Error: adamw.clip_norm = -0.5 must be ")


@pytest.mark.parametrize(
    ("bindings", "named"),
    [
        (("bptt_depth = 1",), "segments_per_step"),
        (("bptt_depth = 4", "segments_per_step = 4"), "bptt_depth = 4 .*segments_per_step = 5"),
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
    path = write_config(tmp_path, *PLAIN)
    with pytest.raises(ValueError, match=f"Trainer.{named}"):
        build(path, *(f"Trainer.{binding}" for binding in bindings))
