"""Sharding is invisible: one device, eight devices in several meshes, two processes."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from brt import config
from brt.data.streams.documents import DocumentStream
from brt.experiment import Experiment
from brt.training.prefetch import device_batch

STEPS = 3
MODELS = {
    "slide": [],
    "rec": ["BlockRecurrentTransformer.recurrent_layers = (1,)", "RecurrentCell.num_states = 4"],
    "rec_lstm_dual": [
        "BlockRecurrentTransformer.recurrent_layers = (0, 1)",
        "RecurrentCell.num_states = 4",
        'RecurrentCell.gate = "lstm"',
        'RecurrentCell.arrangement = "dual"',
    ],
    "feedback": [
        "BlockRecurrentTransformer.recurrent_layers = (1,)",
        "BlockRecurrentTransformer.feedback = True",
        "RecurrentCell.num_states = 4",
    ],
    "memorizing": [
        "BlockRecurrentTransformer.memorizing_layers = (0,)",
        "ExternalMemory.size = 16",
        "ExternalMemory.neighbours = 3",
    ],
    "transformer_xl": [
        "Trainer.model = @TransformerXL",
        "TransformerXL.cutoffs = (64, 128)",
        "TransformerXL.div_val = 2",
    ],
    "recurrent_memory": [
        "Trainer.model = @RecurrentMemoryTransformer",
        "RecurrentMemoryTransformer.num_memory = 3",
        "Trainer.segments_per_step = 3",
        "Trainer.tokens_per_step = 384",
        "Trainer.bptt_depth = 1",
    ],
}
OF_TRANSFORMER_XL = ("transformer_xl", "recurrent_memory")
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
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "text").mkdir()
    rng = np.random.default_rng(0)
    for number in range(11):
        text = rng.integers(97, 123, rng.integers(1, 200)).astype(np.uint8).tobytes()
        (folder / "text" / f"{number}.txt").write_bytes(text)
    (folder / "config.gin").write_text(CONFIG.format(folder=folder))
    other = CONFIG.replace("BlockRecurrentTransformer.window", "TransformerXL.memory_length")
    other = other.replace("BlockRecurrentTransformer", "TransformerXL")
    (folder / "transformer_xl.gin").write_text(other.format(folder=folder))
    config.parse([str(folder / "config.gin")])
    Experiment.from_gin().trainer.corpus.prepare("train")
    return folder


def losses_on(folder, model, mesh_shape, devices):
    """The losses of the first steps on a mesh of some of the devices, and what was read."""
    file = "transformer_xl.gin" if model in OF_TRANSFORMER_XL else "config.gin"
    config.parse([str(folder / file)], MODELS[model])
    experiment = Experiment.from_gin()
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:devices]).reshape(mesh_shape), ("data", "model")
    )
    trainer = experiment.trainer
    lengths = trainer.segment_length, trainer.segments_per_step
    stream = DocumentStream(experiment.open_store("train"), trainer.rows, *lengths)
    with jax.set_mesh(mesh):
        state, step = experiment.jit_init(mesh)(), experiment.jit_step(mesh)
        losses, batches = [], []
        for number in range(STEPS):
            batch = device_batch(stream, mesh, number)
            batches.append(jax.tree.map(np.asarray, batch))
            state, metrics = step(state, batch)
            losses.append(float(metrics.nats / metrics.weight))
        assert step._cache_size() == 1, "the second step compiled again"
    return losses, batches, state


CASES = [
    (model, mesh_shape)
    for model in MODELS
    for mesh_shape in [(8, 1), (1, 4), (2, 4)]
    if model not in ("memorizing", *OF_TRANSFORMER_XL) or mesh_shape == (2, 4)
]


@pytest.mark.parametrize(("model", "mesh_shape"), CASES)
def test_the_mesh_changes_no_batch_and_no_loss(folder, model, mesh_shape):
    expected, batches, _ = losses_on(folder, model, (1, 1), 1)
    devices = mesh_shape[0] * mesh_shape[1]
    found, sharded_batches, state = losses_on(folder, model, mesh_shape, devices)
    jax.tree.map(np.testing.assert_array_equal, sharded_batches, batches)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # And the mesh is really used: rows and heads of the caches, matrices of the parameters.
    keys_BWHK = jax.tree.leaves(state.caches)[0]
    part = keys_BWHK.sharding.shard_shape(keys_BWHK.shape)
    assert part[0] == keys_BWHK.shape[0] // mesh_shape[0]
    if model not in OF_TRANSFORMER_XL:  # whose caches have no heads
        assert part[2] == keys_BWHK.shape[2] // mesh_shape[1]
    queries_DA = state.params["layers"][0]["queries_DA"]
    shard = queries_DA.sharding.shard_shape(queries_DA.shape)
    assert np.prod(shard) * devices == queries_DA.size


def test_two_processes_train_as_one(folder, tmp_path):
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    common = [
        *(sys.executable, "-m", "brt.train", f"--gin_file={folder}/config.gin"),
        *(f"--gin_bindings={line}" for line in MODELS["rec"]),
    ]
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = os.environ | {"XLA_FLAGS": flags}
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
