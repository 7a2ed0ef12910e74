"""Resuming is invisible, for every architecture: 2 N steps are N, a checkpoint, and N more.

`tests/training/test_trainer.py` kills whole runs; here each architecture's state goes through a
checkpoint on disk, caches of any shape included.
"""

import jax
import numpy as np
import optax
import pytest
from architectures import ARCHITECTURES, random_model, trained
from tiny_models import parameters, quick_jit

from brt.data.streams.batch import Batch
from brt.experiment import Experiment
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.settings import Trainer

ROWS, STEPS = 2, 2


def batches(entry, vocabulary_size, steps):
    """Random tokens; some rows start a document at some steps."""
    rng = np.random.default_rng(0)
    shape = 1, ROWS, entry.segment
    for step in range(steps):
        tokens = rng.integers(0, vocabulary_size, (2, *shape)).astype(np.int32)
        starts = np.full((1, ROWS), step == 0) | (rng.random((1, ROWS)) < 0.2)
        yield Batch(tokens[0], tokens[1], np.ones(shape, np.float32), starts)


@pytest.mark.parametrize("name", trained())
def test_a_state_that_went_through_a_checkpoint_goes_on_as_the_undisturbed_one(name, tmp_path):
    entry = ARCHITECTURES[name]
    experiment = Experiment(
        Trainer(
            corpus=object(),
            optimizer=optax.sgd,
            schedule=lambda step, total_steps: 0.1,
            steps=2 * STEPS,
            segment_length=entry.segment,
            tokens_per_step=ROWS * entry.segment,
            model=lambda rngs: entry.build(rngs),
        )
    )
    step = quick_jit(experiment.train_step)
    undisturbed = experiment.init_state(parameters(random_model(name)))
    every = list(batches(entry, experiment.model.vocabulary_size, 2 * STEPS))
    for number, batch in enumerate(every):
        if number == STEPS:
            saved = undisturbed
        undisturbed, _ = step(undisturbed, batch)
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    checkpoints.save(saved, {})
    checkpoints.wait()
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        jax.eval_shape(lambda: saved),
    )
    resumed, _ = checkpoints.restore_latest(abstract)
    checkpoints.close()
    for batch in every[STEPS:]:
        resumed, _ = step(resumed, batch)
    assert int(resumed.step) == 2 * STEPS
    jax.tree.map(np.testing.assert_array_equal, resumed, undisturbed)
