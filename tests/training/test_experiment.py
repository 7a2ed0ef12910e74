"""An experiment is built as far as shapes, from any model."""

import jax
import optax
import pytest
from architectures import ARCHITECTURES
from flax import nnx

from brt.experiment import Experiment
from brt.training.settings import Trainer


@pytest.mark.parametrize("draw", [lambda rngs: rngs.params(), lambda rngs: rngs()])
def test_a_model_may_draw_from_any_stream_of_keys(draw):
    entry = ARCHITECTURES["slide"]

    def model(rngs):
        built = entry.build(rngs)
        built.scale_D = nnx.Param(jax.random.normal(draw(rngs), (3,)))
        return built

    trainer = Trainer(
        object(), optax.sgd, lambda total_steps: lambda step: 0.1, 1, 8, 8, model=model
    )
    assert Experiment(trainer).abstract_params["scale_D"].shape == (3,)
