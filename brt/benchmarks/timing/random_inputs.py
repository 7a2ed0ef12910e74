"""Random batches and train states for timing a step."""

import jax
import numpy as np

from brt.data.streams.batch import Batch
from brt.experiment import Experiment
from brt.training.train_step import TrainState


def random_batch(experiment: Experiment, seed: int = 0) -> Batch:
    shapes, rng = experiment.abstract_batch(), np.random.default_rng(seed)
    size = experiment.model.vocabulary_size
    inputs_KBT, targets_KBT = rng.integers(0, size, (2, *shapes.inputs_KBT.shape)).astype(np.int32)
    return Batch(
        inputs_KBT,
        targets_KBT,
        np.ones(shapes.weights_KBT.shape, np.float32),
        np.zeros(shapes.starts_KB.shape, bool),
    )


def random_state(experiment: Experiment, seed: int = 0) -> TrainState:
    """Returns a train state with random parameters on the host, all else zero; compiles nothing."""
    state = experiment.abstract_state()
    pool = np.random.default_rng(seed).standard_normal(2**20, np.float32)

    def draw(leaf):
        values = np.resize(pool, leaf.shape)
        if leaf.ndim < 2:
            return (1 + 0.1 * values).astype(leaf.dtype)
        return (values / np.sqrt(leaf.shape[0])).astype(leaf.dtype)

    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    return zeros._replace(params=jax.tree.map(draw, state.params))
