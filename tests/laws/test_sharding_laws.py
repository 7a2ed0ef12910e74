"""Laws of training steps: sharding and a checkpoint on disk change nothing, for every architecture.

`tests/training/test_trainer.py` kills whole runs; here each architecture's state is sharded and
goes through a checkpoint, caches of any shape included.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest
from architectures import ARCHITECTURES, RELATED, kinds
from checkpoints import abstract, opened, placed
from marking import slow
from pretrained_architectures import PRETRAINED
from tiny_run import mesh_of

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentStream
from brt.data.vocabularies.base import ByteVocabulary
from brt.experiment import Experiment
from brt.models.mesh_axes import spec
from brt.training.optimization.optimizers import adafactor
from brt.training.prefetch import device_batch
from brt.training.train_step import TrainState

STEPS, ROWS, SEGMENTS = 3, 8, 2
WITH_ADAFACTOR = "rec_lstm_dual", "feedback_fixed_skip"
SLOW = *RELATED, "kimi_delta_layer", "own_recurrence", "rec_lstm_dual", "cached_states", "armt"
"""A mesh meets no array in them that it does not meet in others, of `docs/extending.md` too; and
one that is quick on three axes."""
CASES = [pytest.param(*case.values, (2, 4), marks=case.marks) for case in kinds(slow=SLOW)]
CASES.append(pytest.param("rec_lstm_dual", (2, 2, 2)))
CASES += [
    slow(name, shape)
    for name, shape in [
        *(("feedback_fixed_skip", (8, 1)), ("feedback_fixed_skip", (1, 4))),
        *(("feedback_fixed_skip", (2, 2, 2)), ("rec_lstm_dual", (4, 2, 1))),
        *(("rec_lstm_dual", (8, 1)), ("rec_lstm_dual", (1, 4))),
    ]
]
# By module, so that the laws of one architecture run one after another, on the same program.
by_architecture = functools.partial(pytest.mark.parametrize, ("name", "mesh_shape"), scope="module")
ON_DISK = "rec_lstm_dual", "melodi", "lact", "compressive_convolution"
SAVED = [case if case.values[0] in ON_DISK else slow(*case.values) for case in CASES]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    documents = [
        Document(f"document {d}", tokens=rng.integers(0, 256, rng.integers(1, 200)))
        for d in range(20)
    ]
    folder = tmp_path_factory.mktemp("sharding") / "train"
    write_store(folder, documents, ByteVocabulary(), {}, quiet=True)
    return TokenStore(folder)


def few_layers(name) -> dict:
    """Two layers, or as many as reach to the last with a memory; {} where it is no setting."""
    settings = ARCHITECTURES[name].settings
    if name in PRETRAINED or not settings:
        return {}
    indices = settings.get("recurrent_layers", ()) + settings.get("memorizing_layers", ())
    return {"num_layers": max([2, *(index + 1 for index in indices)])}


@functools.cache
def experiment_of(name) -> Experiment:
    """An experiment on an architecture, of sizes that a mesh divides.

    Most take plain gradient steps, which compile in half the time of Adafactor's.
    """
    entry, sizes = ARCHITECTURES[name], few_layers(name)
    optimizer = {"optimizer": adafactor} if name in WITH_ADAFACTOR else {}
    return entry.experiment(ROWS, sizes | entry.divisible, SEGMENTS, steps=STEPS, **optimizer)


class Steps(NamedTuple):
    """The first steps of a training run; `before` is the state on the host before the last."""

    losses: list
    batches: list
    before: TrainState
    state: TrainState
    last: Callable


@functools.cache
def train(store, name, mesh_shape) -> Steps:
    """Trains for a few steps on a mesh of some of the devices."""
    experiment, mesh = experiment_of(name), mesh_of(*mesh_shape)
    trainer = experiment.trainer
    stream = DocumentStream(store, ROWS, trainer.segment_length, SEGMENTS)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype), experiment.abstract_params
    )
    with jax.set_mesh(mesh):
        # Through the host: each array a buffer of its own, which the step may reuse.
        state = placed(jax.tree.map(np.asarray, experiment.init_state(params)), mesh)
        step = experiment.jit_step(mesh)
        losses, batches = [], []
        for number in range(STEPS):
            before = jax.tree.map(np.array, state)
            batch = device_batch(stream, mesh, number)
            batches.append(jax.tree.map(np.asarray, batch))
            state, metrics = step(state, batch)
            losses.append(float(metrics.nats / metrics.weight))
        assert step._cache_size() == 1, "the second step compiled again"
    return Steps(
        losses,
        batches,
        before,
        state,
        lambda state: step(state, device_batch(stream, mesh, STEPS - 1)),
    )


@by_architecture(CASES)
def test_the_mesh_changes_no_batch_and_no_loss(store, name, mesh_shape):
    expected = train(store, name, (1, 1))
    sharded = train(store, name, mesh_shape)
    jax.tree.map(np.testing.assert_array_equal, sharded.batches, expected.batches)
    np.testing.assert_allclose(sharded.losses, expected.losses, rtol=1e-5)
    # And the mesh is really used: by rows and heads of the caches, by every matrix.
    axes = mesh_of(*mesh_shape).shape
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        (sharded.state.params, sharded.state.caches)
    ):
        key = path[-1]
        names = str(getattr(key, "key", getattr(key, "name", ""))).rsplit("_", 1)[1]
        if len(names) < 2 and names != "B":
            continue
        split = spec(names)
        parts = np.prod([axes[a] for each in split if each for a in np.atleast_1d(each)])
        shard = leaf.sharding.shard_shape(leaf.shape)
        assert np.prod(shard) * parts == leaf.size, (path, leaf.shape, shard)


@by_architecture(SAVED)
def test_a_state_from_a_checkpoint_continues_undisturbed(store, name, mesh_shape, tmp_path):
    steps, mesh = train(store, name, mesh_shape), mesh_of(*mesh_shape)
    with jax.set_mesh(mesh), opened(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(placed(steps.before, mesh), {})
        checkpoints.wait()
        restored, _ = checkpoints.restore_latest(abstract(steps.before, mesh))
        state, _ = steps.last(restored)
    assert int(state.step) == STEPS
    jax.tree.map(np.testing.assert_array_equal, state, steps.state)
