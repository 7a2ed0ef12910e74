"""A tiny run: a ragged corpus of text files, a config of a few lines, and ways to train on it.

One recurrent layer reads four rows of 16 bytes a step.
"""

import functools
import math
import os
import resource
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import gin
import jax
import numpy as np
import pytest
from absl import flags
from gin_settings import bound
from paths import ROOT
from tensorboardX.proto.event_pb2 import Event

from brt import command_line, config, evaluate
from brt.evaluation.evaluator import Evaluator
from brt.experiment import Experiment
from brt.run.loop import TrainingRun
from brt.training import sharding
from brt.training.records.run_folder import read_metrics
from brt.training.sharding import make_mesh

LENGTHS = {
    "train": (1, 7, 8, 9, 16, 53, 120, 31, 90),
    "validation": (1, 7, 8, 9, 16, 53, 100),
    "test": (40, 3),
}
"""Bytes of each document: around block and segment boundaries, and several segments long."""

LINES = """
Trainer.corpus = @Corpus()
Trainer.optimizer = @adamw
Trainer.schedule = @rsqrt
Trainer.evaluation = @Evaluation()
Trainer.checkpoints = @CheckpointPolicy()
Trainer.steps = 6
Trainer.segment_length = 16
Trainer.tokens_per_step = 64
Trainer.log_every = 2
Trainer.eval_every = 0
CheckpointPolicy.every = 100
Corpus.source = @TextFiles()
Corpus.vocabulary = @ByteVocabulary()
rsqrt.multiplier = 0.2
rsqrt.warmup_steps = 2
BlockRecurrentTransformer.vocabulary_size = 256
BlockRecurrentTransformer.num_layers = 1
BlockRecurrentTransformer.width = 16
BlockRecurrentTransformer.num_heads = 2
BlockRecurrentTransformer.head_size = 4
BlockRecurrentTransformer.feed_forward_size = 24
BlockRecurrentTransformer.window = 8
BlockRecurrentTransformer.recurrent_layers = (0,)
BlockRecurrentTransformer.logits_divisor = "width"
RecurrentCell.num_states = 5
"""

PLAIN = ("BlockRecurrentTransformer.recurrent_layers = ()",)
"""Bindings of the smallest model, without a state."""

TWO_LAYERS = (
    "BlockRecurrentTransformer.num_layers = 2",
    "BlockRecurrentTransformer.recurrent_layers = (1,)",
)
"""Bindings of a model whose first layer has no state."""

TXL = (
    "Trainer.model = @TransformerXL",
    *bound("TransformerXL", vocabulary_size=256, num_layers=1, width=16, num_heads=2, head_size=4),
    *bound("TransformerXL", feed_forward_size=24, memory_length=16),
)
"""The smallest Transformer-XL."""


@pytest.fixture(autouse=True)
def gin_afterwards():
    """No bindings are left by the tests of a module that imports this."""
    yield
    gin.clear_config()


def write_corpus(folder: Path, lengths=LENGTHS):
    """Writes `<split>/<number>.txt` with characters of unequal odds, which a model can learn."""
    rng = np.random.default_rng(0)
    for split, sizes in lengths.items():
        (folder / split).mkdir(parents=True)
        for number, size in enumerate(sizes):
            letters = rng.choice(list(b"aaaaeeetthn \n"), size).astype(np.uint8)
            (folder / split / f"{number:02}.txt").write_bytes(letters.tobytes())


def write_config(folder: Path, *lines: str, without=()) -> Path:
    """Writes a corpus and a gin file that reads it.

    Args:
        lines: come after the file's own, so they override them.
        without: beginnings of lines to leave out; those of the cell are, too, with `PLAIN`, and
            those of the own model and of the own texts, where a line names others.
    """
    if {*PLAIN} <= {*lines}:
        without = (*without, "RecurrentCell")
    if any(line.startswith("Trainer.model = ") for line in lines):
        without = (*without, "BlockRecurrentTransformer", "RecurrentCell")
    if any(line.startswith("Corpus.source = ") for line in lines):
        without = (*without, "Corpus.source", "Corpus.vocabulary", "TextFiles")
    if not (folder / "texts").exists():
        write_corpus(folder / "texts")
    paths = [f'TextFiles.path = "{folder}/texts/{{split}}"', f'Corpus.store = "{folder}/stores"']
    own = [line for line in LINES.split("\n") + paths if not line.startswith(tuple(without))]
    path = folder / "tiny.gin"
    path.write_text("\n".join([*own, *lines]) + "\n")
    return path


def one_device():
    """A mesh of the first device only, however many there are."""
    return mesh_of(1, 1)


def mesh_of(*shape: int):
    """A mesh (data, fsdp, model), or (rows, model), of the first devices."""
    return make_mesh(shape, jax.devices()[: math.prod(shape)])


class Tiny(NamedTuple):
    """An experiment and what it was built from, to bind gin to it again."""

    path: Path
    bindings: tuple[str, ...]
    experiment: Experiment

    def bind(self):
        config.parse([str(self.path)], self.bindings)
        return self.experiment


def build(path: Path, *bindings: str) -> Tiny:
    """The experiment of a gin file and bindings, its token stores prepared."""
    config.parse([str(path)], bindings)
    experiment = Experiment.from_gin()
    # Runs that resume others in this process do not trace again.
    experiment.jit_init = functools.cache(experiment.jit_init)
    experiment.jit_step = functools.cache(experiment.jit_step)
    for split in LENGTHS:
        experiment.trainer.corpus.prepare(split, quiet=True)
    return Tiny(path, bindings, experiment)


def random_params(experiment):
    """Normally distributed parameters of an experiment's model."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jax.numpy.float32(0.5 * rng.normal(size=x.shape)), experiment.abstract_params
    )


def train_here(tiny: Tiny, workdir, stop_after=None, mesh=None, hook=None, **options):
    """Trains in this process, as `brt.train` does, and returns the closed `TrainingRun`.

    Args:
        stop_after: the step during which the run is asked to stop.
        hook: called with (step, state, batch) before each step; returns both.
        options: of `TrainingRun`.
    """
    tiny.bind()
    mesh = mesh or one_device()
    with jax.set_mesh(mesh):
        evaluator = Evaluator.in_loop(tiny.experiment, mesh)
        run = TrainingRun(tiny.experiment, mesh, str(workdir), evaluator=evaluator, **options)
        run.folder.describe(gin.config_str())
        step_function, calls = run.step_function, []

        def step(state, batch):
            calls.append(run.start + len(calls) + 1)
            if calls[-1] == stop_after:
                run.stop.set()
            if hook:
                state, batch = hook(calls[-1], state, batch)
            return step_function(state, batch)

        step.lower = step_function.lower
        run.step_function = step
        try:
            run.run()
        finally:
            run.close()
    run.step_function = step_function
    return run


def command(monkeypatch, module, *arguments, mesh=None, takes_arguments=False) -> int:
    """Runs a command of brt in this process; its exit status.

    Args:
        mesh: takes the mesh from (data, model); one device without it.
        takes_arguments: as of `command_line.run`.
    """
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    for place in (sharding, evaluate):
        monkeypatch.setattr(place, "make_mesh", mesh or (lambda shape: one_device()))
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    try:
        command_line.run(module.main, takes_arguments)
    except SystemExit as end:
        return end.code or 0


class Killed(BaseException):
    """A kill, as the process itself sees it."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start(module: str, *arguments, **options) -> subprocess.Popen:
    """Starts `python -m <module>` on one device, with its output as text in pipes."""
    line = [sys.executable, "-m", module, *map(str, arguments)]
    given = dict(cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(line, env=quick_environment(), **given | options)


def start_several(path, workdir, *, count=2, of_last=(), last_in=None, study=None):
    """Starts the processes of one run, with one device each; the last has further flags.

    Args:
        last_in: the folder in which the last is started; None for that of the others.
        study: of the run that exists, instead of training.
    """
    what = ["brt.evaluate", f"--study={study}"] if study else ["brt.train", f"--gin_file={path}"]
    port = free_port()
    started = []
    for number in range(count):
        is_last = number == count - 1
        given = [*what, f"--workdir={workdir}"]
        if count > 1:
            given += [f"--coordinator_address=localhost:{port}", f"--num_processes={count}"]
            given += [f"--process_id={number}", *(of_last if is_last else ())]
        cwd = last_in if is_last else None
        started.append(start(*given, stderr=subprocess.STDOUT, cwd=cwd))
    return started


def ended(started) -> tuple[list[int], list[str]]:
    """Waits for processes; their exit statuses and outputs."""
    outputs = [process.communicate(timeout=300)[0] for process in started]
    return [process.returncode for process in started], outputs


def quick_environment():
    """One device and this checkout, for a process that is started anywhere."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    return {
        **os.environ,
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


@contextmanager
def files_of_at_most(size: int):
    """A full disk: writing beyond `size` bytes of any file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder) -> dict[str, tuple[int, bytes]]:
    """Returns the time of writing and the content of each file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def leaves(tree) -> dict[str, np.ndarray]:
    """The arrays of a tree by name, on the host."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def differing(first, second) -> list[str]:
    """Names of the arrays of two trees that are not the same, bit for bit."""
    first, second = leaves(first), leaves(second)
    assert first.keys() == second.keys() and first
    return [
        name
        for name, x in first.items()
        if x.dtype != second[name].dtype or x.tobytes() != second[name].tobytes()
    ]


def records(folder, *prefixes):
    """What metrics.jsonl says, without the timings."""
    prefixes = prefixes or ("train/", "eval/", "data/")
    found = [
        {name: value for name, value in record.items() if name.startswith(("step", *prefixes))}
        for record in read_metrics(str(folder))
    ]
    return [record for record in found if len(record) > 1]


def events_by_file(folder: Path):
    """The whole events of each file for TensorBoard, in the order of names, read byte by byte."""
    for name in sorted(folder.glob("events.out.tfevents.*")):
        found = []
        with open(name, "rb") as file:
            while len(header := file.read(12)) == 12:
                size = struct.unpack("<Q", header[:8])[0]
                if len(data := file.read(size)) < size or len(file.read(4)) < 4:
                    break  # torn
                found.append(Event.FromString(data))
        yield found


def assert_same_run(run, straight):
    assert not differing(run.state, straight.state)
    assert records(run.folder.path) == records(straight.folder.path)
