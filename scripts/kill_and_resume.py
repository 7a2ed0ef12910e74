"""Stops and resumes a training run at random moments, and compares the result.

    python scripts/kill_and_resume.py [--kills 20] [--seed 0]
    python scripts/kill_and_resume.py --systems=all --kills 15 --steps 300
    python scripts/kill_and_resume.py --gin_file=configs/small/compressive.gin

Stops (SIGKILL, SIGTERM, Ctrl-C) fall into start, preparation, checkpoints, evaluations and
training. Parameters, optimizer, caches and records, except timings, must be equal bit for bit: exit
status 0. --gin_file names a system without a corpus. --keep=FOLDER keeps runs that differ.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import jax
import numpy as np

from brt import config
from brt.experiment import Experiment
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.records.run_folder import read_metrics

MODEL = """
Trainer.optimizer = @adafactor
Trainer.schedule = @rsqrt
rsqrt.warmup_steps = 50
Trainer.evaluation = @Evaluation()
Trainer.checkpoints = @CheckpointPolicy()
Trainer.segment_length = 64
Trainer.tokens_per_step = 512
BlockRecurrentTransformer.vocabulary_size = %vocabulary_size
BlockRecurrentTransformer.num_layers = 2
BlockRecurrentTransformer.width = 64
BlockRecurrentTransformer.num_heads = 2
BlockRecurrentTransformer.head_size = 16
BlockRecurrentTransformer.feed_forward_size = 128
BlockRecurrentTransformer.window = 16
BlockRecurrentTransformer.recurrent_layers = (1,)
BlockRecurrentTransformer.dropout = 0.1
RecurrentCell.num_states = 16
"""
TEXT = """
include "configs/corpora/text.gin"
Corpus.store = "{folder}/store"
TextFiles.path = "{folder}/text/{{split}}"
"""
MIXTURE = """
Trainer.corpus = @Mixture()
Mixture.corpora = [@first/Corpus(), @second/Corpus()]
Mixture.weights = [0.7, 0.3]
Mixture.names = ["first", "second"]
first/Corpus.store = "{folder}/store/first"
second/Corpus.store = "{folder}/store/second"
first/Corpus.source = @first/TextFiles()
second/Corpus.source = @second/TextFiles()
Corpus.vocabulary = "bytes"
first/TextFiles.path = "{folder}/text/{{split}}"
second/TextFiles.path = "{folder}/text/{{split}}"
vocabulary_size = 256
"""
RUN = """
Evaluation.max_steps = 3
CheckpointPolicy.every = 7
Trainer.steps = {steps}
Trainer.log_every = 3
Trainer.eval_every = 24
"""
RMT = """
include "configs/task_models/minutes_rmt.gin"
include "configs/tasks/copy.gin"
Corpus.store = "{folder}/store"
Trainer.tokens_per_step = 576
Evaluation.tokens_per_step = 720
"""
EVALUATED = 24
SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
BY_THE_CLOCK = "perf/", "alert/stall"
"""Prefixes of timings."""
MOMENTS = "starting", "preparing", "checkpoint", "evaluation", "training"
MEMORIZING = """
BlockRecurrentTransformer.memorizing_layers = (0,)
ExternalMemory.size = 128
ExternalMemory.neighbours = 4
"""
PLATEAU = "Trainer.plateau = @ReduceOnPlateau()\nReduceOnPlateau.patience = 0\n"
SYSTEMS = {
    "recurrent": MODEL + TEXT,
    "feedback": MODEL + "BlockRecurrentTransformer.feedback = True\n" + TEXT,
    "memorizing": MODEL + MEMORIZING + TEXT,
    "mixture": MODEL + MIXTURE,
    "plateau": MODEL + PLATEAU + TEXT,
    "microbatches": MODEL + "Trainer.accumulation = 4\n" + TEXT,
    "average": MODEL + "Trainer.average = @WeightAverage()\n" + TEXT,
    "memory tokens": RMT,
}
"""Name to gin text of model and corpus."""


def make_text(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("etaoinshr"), rng.integers(1, 8))) for _ in range(300)]
    for split, count in (("train", 20), ("validation", 8)):
        (folder / "text" / split).mkdir(parents=True)
        for number in range(count):
            text = " ".join(rng.choice(words, rng.integers(20, 1500)))
            (folder / "text" / split / f"{number:02d}.txt").write_text(text)


def begin(folder: Path, name: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "brt.train", f"--gin_file={folder}/config.gin"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    with open(folder / f"{name}.log", "a", encoding="utf-8") as log:
        return subprocess.Popen(
            [*command, f"--workdir={folder}/{name}"],
            stdout=log,
            stderr=log,
            env=environment,
            process_group=0,
        )


def last_step(folder: Path, name: str, scalar: str = "step") -> int:
    """Returns the last recorded step of a run, or of the records with a scalar."""
    records = read_metrics(str(folder / name))
    return max((record["step"] for record in records if scalar in record), default=0)


def wait(process: subprocess.Popen, until: Callable[[], object], pause: float) -> None:
    """Waits until something is true, or the process has ended."""
    while not until() and process.poll() is None:
        time.sleep(pause)


def undisturbed(folder: Path) -> float:
    """Runs undisturbed; returns the seconds until the first record."""
    begun = time.monotonic()
    process = begin(folder, "whole")
    wait(process, partial(last_step, folder, "whole"), 0.05)
    first = time.monotonic() - begun
    if process.wait():
        sys.exit((folder / "whole.log").read_text())
    return first


def has_reached(folder: Path, step: float) -> bool:
    return last_step(folder, "killed") >= step


def being_written(folder: Path, since: float) -> bool:
    with suppress(FileNotFoundError):  # finished meanwhile
        files = (folder / "killed" / "checkpoints").glob("*tmp*")
        return any(path.stat().st_mtime > since for path in files)
    return False


def evaluates(folder: Path) -> bool:
    trained, evaluated = (last_step(folder, "killed", f"{of}/loss") for of in ("train", "eval"))
    return trained // EVALUATED * EVALUATED > evaluated


def stop_often(folder: Path, kills: int, steps: int, start_up: float, rng: random.Random) -> int:
    """Stops the run `killed`, then lets it finish; returns the number of wrong exit statuses."""
    counts = dict.fromkeys(MOMENTS, 0)
    kinds = {signal.name: 0 for signal in SIGNALS}
    wrong = 0
    for number in range(1, kills + 1):
        how = rng.choices(SIGNALS, (0.7, 0.15, 0.15))[0]
        moment = rng.choice(MOMENTS)
        if moment == "preparing":
            shutil.rmtree(folder / "store", ignore_errors=True)
        begun, since = time.monotonic(), time.time()
        process = begin(folder, "killed")
        target = steps * (number - rng.random()) / (kills + 1)
        if moment == "starting":
            time.sleep(rng.uniform(0, start_up))
        elif moment == "preparing":
            wait(process, (folder / "store").exists, 0.005)
            time.sleep(rng.uniform(0, 0.2))
        else:
            wait(process, partial(has_reached, folder, target), 0.05)
            start_up = min(start_up, time.monotonic() - begun)
            if moment == "checkpoint":
                wait(process, partial(being_written, folder, since), 0.001)
                time.sleep(rng.uniform(0, 0.02))
            elif moment == "evaluation":
                wait(process, partial(evaluates, folder), 0.005)
            else:
                time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            if process.returncode:
                sys.exit((folder / "killed.log").read_text()[-2000:])
            print(f"The run ended before stop {number}: use more --steps.", flush=True)
            break
        os.kill(process.pid, how)
        status = process.wait()
        with suppress(ProcessLookupError):  # ends its preparation too
            os.killpg(process.pid, signal.SIGKILL)
        counts[moment] += 1
        kinds[how.name] += 1
        # During the start, Python itself handles the signal.
        expected = {-how, 0, 1, 130, 143} if how != signal.SIGKILL else {-how}
        wrong += status not in expected
        print(
            f"stop {number:2d} of {kills} at step {last_step(folder, 'killed'):4d}  "
            f"{how.name:7} {moment:10} {status}",
            flush=True,
        )
    print("stops: " + ", ".join(f"{n} {name}" for name, n in [*counts.items(), *kinds.items()]))
    if begin(folder, "killed").wait():
        sys.exit((folder / "killed.log").read_text())
    return wrong


def compare(folder: Path) -> bool:
    config.parse([str(folder / "config.gin")])
    abstract = Experiment.from_gin().abstract_state()
    states, records = [], []
    for name in ("whole", "killed"):
        checkpoints = Checkpoints(str(folder / name / "checkpoints"))
        restored = checkpoints.restore_latest(abstract)
        checkpoints.close()
        if restored is None:
            sys.exit(f"The run {name} has left no checkpoint.")
        states.append(restored[0])
        records.append(
            [
                {key: value for key, value in record.items() if not key.startswith(BY_THE_CLOCK)}
                for record in read_metrics(str(folder / name))
            ]
        )
    same = True
    flat = [jax.tree_util.tree_flatten_with_path(state)[0] for state in states]
    for (path, a), (_, b) in zip(*flat, strict=True):
        if np.asarray(a).tobytes() != np.asarray(b).tobytes():
            print(f"differs: {jax.tree_util.keystr(path)}")
            same = False
    for whole, killed in itertools.zip_longest(*records):
        if whole != killed:
            print(f"the records differ, first in\n  {whole}\n  {killed}")
            same = False
            break
    print(f"{len(flat[0])} arrays and {len(records[0])} records compared: ", end="")
    print("equal bit for bit" if same else "NOT equal")
    return same


def soak(name: str, system: str, arguments: argparse.Namespace) -> bool:
    """Stops one system often; returns whether all results are equal."""
    print(f"--- {name}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_text(folder, arguments.seed)
        text = (system + RUN).format(folder=folder, steps=arguments.steps)
        (folder / "config.gin").write_text("\n".join([text, *arguments.gin_bindings]))
        start_up = undisturbed(folder)
        print(f"undisturbed run done; {start_up:.1f} s to its first record", flush=True)
        rng = random.Random(f"{arguments.seed} {name}")
        wrong = stop_often(folder, arguments.kills, arguments.steps, start_up, rng)
        if wrong:
            print(f"{wrong} stops ended with a status of their own")
        same = compare(folder) and not wrong
        if not same and arguments.keep:
            kept = Path(arguments.keep) / name.replace("/", "_")
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            print(f"Both runs are left in {kept}")
        return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="stops of each system")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--systems", default="recurrent", help=f"'all', or of {', '.join(SYSTEMS)}, with commas"
    )
    parser.add_argument("--gin_file", action="append", default=[], help="of another system")
    parser.add_argument("--gin_bindings", action="append", default=[], help="a binding more")
    parser.add_argument("--keep", help="folder for runs that differ")
    arguments = parser.parse_args()
    if arguments.gin_file:
        files = (f'include "{os.path.abspath(file)}"\n' for file in arguments.gin_file)
        chosen = {", ".join(arguments.gin_file): "".join([*files, TEXT])}
    elif arguments.systems == "all":
        chosen = SYSTEMS
    else:
        names = arguments.systems.split(",")
        if unknown := [name for name in names if name not in SYSTEMS]:
            parser.error(f"There is no system {unknown[0]!r}: {', '.join(SYSTEMS)} are known.")
        chosen = {name: SYSTEMS[name] for name in names}
    results = [soak(name, system, arguments) for name, system in chosen.items()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
