"""Sharding is invisible: one device, eight devices in several meshes, two processes."""

import functools
import json
import socket
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from architectures import ARCHITECTURES, trained
from tiny_run import quick_environment

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentStream
from brt.data.vocabularies.base import ByteVocabulary
from brt.experiment import Experiment
from brt.models.axis_rules import spec
from brt.training.optimization.optimizers import adafactor
from brt.training.optimization.schedules import constant_rate
from brt.training.prefetch import device_batch
from brt.training.settings import Trainer
from brt.training.sharding import shardings

STEPS, ROWS, SEGMENTS = 3, 8, 2
EVERY_MESH = ("rec_lstm_dual", "feedback_fixed_skip")
"""Checked on all meshes, and with Adafactor; the others on the mesh that splits both rows and
models."""
RELATED = (
    *("rec_fixed_dual", "rec_fixed_single", "rec_sequential", "rec_memorizing"),
    *("txl_adaptive", "txl_shaw", "rmt_rec"),
)
"""Parts of others, put together in another way: a mesh meets no array in them that it does not
meet in others. Checked with the slow tests."""
CASES = [
    pytest.param(name, (2, 4), marks=pytest.mark.slow if name in RELATED else marks)
    for (name,), marks, _ in trained()
]
CASES += [
    pytest.param(name, shape, marks=pytest.mark.slow)
    for name, shape in [
        *(("feedback_fixed_skip", (8, 1)), ("feedback_fixed_skip", (1, 4))),
        *(("rec_lstm_dual", (8, 1)), ("rec_lstm_dual", (1, 4))),
    ]
]


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


@functools.cache
def experiment_of(name) -> Experiment:
    """An experiment on an architecture, of sizes that a mesh divides.

    Most take plain gradient steps, which compile in half the time of Adafactor's.
    """
    entry = ARCHITECTURES[name]
    trainer = Trainer(
        corpus=object(),
        optimizer=adafactor if name in EVERY_MESH else optax.sgd,
        schedule=lambda step, total_steps: constant_rate(step, total_steps, 0.01, 0),
        steps=STEPS,
        segment_length=entry.segment,
        segments_per_step=SEGMENTS,
        tokens_per_step=ROWS * SEGMENTS * entry.segment,
        model=lambda rngs: entry.build(rngs, **entry.divisible),
    )
    return Experiment(trainer)


@functools.cache
def losses_on(store, name, mesh_shape):
    """The losses of the first steps on a mesh of some of the devices, and what was read."""
    experiment = experiment_of(name)
    devices = np.array(jax.devices()[: np.prod(mesh_shape)]).reshape(mesh_shape)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    trainer = experiment.trainer
    stream = DocumentStream(store, ROWS, trainer.segment_length, SEGMENTS)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype), experiment.abstract_params
    )
    with jax.set_mesh(mesh):
        # Through the host: each array a buffer of its own, which the step may reuse.
        state = jax.tree.map(np.asarray, experiment.init_state(params))
        state = jax.device_put(state, shardings(state, mesh))
        step = experiment.jit_step(mesh)
        losses, batches = [], []
        for number in range(STEPS):
            batch = device_batch(stream, mesh, number)
            batches.append(jax.tree.map(np.asarray, batch))
            state, metrics = step(state, batch)
            losses.append(float(metrics.nats / metrics.weight))
        assert step._cache_size() == 1, "the second step compiled again"
    return losses, batches, state


@pytest.mark.parametrize(("name", "mesh_shape"), CASES)
def test_the_mesh_changes_no_batch_and_no_loss(store, name, mesh_shape):
    expected, batches, _ = losses_on(store, name, (1, 1))
    found, sharded_batches, state = losses_on(store, name, mesh_shape)
    jax.tree.map(np.testing.assert_array_equal, sharded_batches, batches)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # And the mesh is really used: by rows and heads of the caches, by every matrix.
    axes = dict(zip(("data", "model"), mesh_shape))
    for path, leaf in jax.tree_util.tree_leaves_with_path((state.params, state.caches)):
        key = path[-1]
        names = str(getattr(key, "key", getattr(key, "name", ""))).rsplit("_", 1)[1]
        if len(names) < 2 and names != "B":
            continue
        parts = np.prod([axes[axis] for axis in spec(names) if axis])
        shard = leaf.sharding.shard_shape(leaf.shape)
        assert np.prod(shard) * parts == leaf.size, (path, leaf.shape, shard)


CONFIG = """
Trainer.corpus = @Corpus()
Corpus.store = "{folder}/store"
Corpus.source = @TextFiles()
Corpus.vocabulary = "bytes"
TextFiles.path = "{folder}/text"
Trainer.optimizer = @adafactor
Trainer.schedule = @constant_rate
constant_rate.value = 0.01
constant_rate.warmup_steps = 0
Trainer.evaluation = @Evaluation()
Evaluation.split = "train"
Evaluation.max_steps = 2
Trainer.steps = 3
Trainer.segment_length = 16
Trainer.tokens_per_step = 128
Trainer.log_every = 1
Trainer.eval_every = 3
BlockRecurrentTransformer.vocabulary_size = 256
BlockRecurrentTransformer.num_layers = 2
BlockRecurrentTransformer.width = 16
BlockRecurrentTransformer.num_heads = 4
BlockRecurrentTransformer.head_size = 8
BlockRecurrentTransformer.feed_forward_size = 32
BlockRecurrentTransformer.window = 8
BlockRecurrentTransformer.recurrent_layers = (1,)
RecurrentCell.num_states = 4
"""


def test_two_processes_train_as_one(tmp_path):
    (tmp_path / "text").mkdir()
    rng = np.random.default_rng(0)
    for number in range(11):
        text = rng.integers(97, 123, rng.integers(1, 200)).astype(np.uint8).tobytes()
        (tmp_path / "text" / f"{number}.txt").write_bytes(text)
    (tmp_path / "config.gin").write_text(CONFIG.format(folder=tmp_path))
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    common = [sys.executable, "-m", "brt.train", f"--gin_file={tmp_path}/config.gin"]
    environment = quick_environment(tmp_path) | {"JAX_COMPILATION_CACHE_DIR": ""}
    one = subprocess.run(
        [*common, f"--workdir={tmp_path}/one"], capture_output=True, text=True, env=environment
    )
    assert one.returncode == 0, one.stderr
    processes = [
        subprocess.Popen(
            [
                *common,
                f"--workdir={tmp_path}/two",
                f"--coordinator_address=localhost:{port}",
                "--num_processes=2",
                f"--process_id={number}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    records = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert len(records[0]) == len(records[1]) == STEPS + 1
    for a, b in zip(*records, strict=True):
        for key in ("train/loss", "train/scored_tokens", "eval/loss", "eval/scored_tokens"):
            if key in a:
                np.testing.assert_allclose(a[key], b[key], rtol=1e-5)
        assert a.get("data/ledger") == b.get("data/ledger")
    assert "data/ledger" in records[0][0]
