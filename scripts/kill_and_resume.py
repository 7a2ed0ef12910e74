"""Kills a training run at random moments, resumes it each time, and demands the same result.

    python scripts/kill_and_resume.py [--kills 20] [--seed 0]
    python scripts/kill_and_resume.py --gin_file=configs/small/compressive.gin

Two runs of one small config, on text made here: one undisturbed, one that gets SIGKILL at
random moments, start-up and checkpoint writing included. At the end parameters, optimizer,
caches and all train/* and eval/* records must be equal bit for bit. Exit status 0 if so.
Without --gin_file the model is a small Block-Recurrent one; the files of another are those of a
system without a corpus.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from brt import config
from brt.experiment import Experiment
from brt.training.checkpoint import Checkpoints
from brt.training.run_folder import read_metrics

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
RUN = """
Trainer.corpus = @Corpus()
Corpus.store = "{folder}/store"
Corpus.source = @TextFiles()
Corpus.vocabulary = "bytes"
TextFiles.path = "{folder}/text/{{split}}"
vocabulary_size = 256
Evaluation.max_steps = 3
CheckpointPolicy.every = 7
Trainer.steps = {steps}
Trainer.log_every = 3
Trainer.eval_every = 25
"""


def config_of(files: Sequence[str], bindings: Sequence[str], folder: Path, steps: int) -> str:
    """Returns the run's gin text: a system's files, or `MODEL`, with text and steps of its own."""
    system = "".join(f'include "{os.path.abspath(file)}"\n' for file in files) or MODEL
    return "\n".join([system, RUN.format(folder=folder, steps=steps), *bindings]) + "\n"


def make_text(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("etaoinshr"), rng.integers(1, 8))) for _ in range(300)]
    for split, count in (("train", 20), ("validation", 8)):
        (folder / "text" / split).mkdir(parents=True)
        for number in range(count):
            text = " ".join(rng.choice(words, rng.integers(20, 1500)))
            (folder / "text" / split / f"{number:02d}.txt").write_text(text)


def begin(folder: Path, name: str) -> subprocess.Popen:
    """Starts or resumes the run `name`; every process compiles to the same cached code."""
    command = [sys.executable, "-m", "brt.train", f"--gin_file={folder}/config.gin"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    with open(folder / f"{name}.log", "a", encoding="utf-8") as log:
        return subprocess.Popen(
            [*command, f"--workdir={folder}/{name}"], stdout=log, stderr=log, env=environment
        )


def steps_done(folder: Path, name: str) -> int:
    return max((record["step"] for record in read_metrics(str(folder / name))), default=0)


def undisturbed(folder: Path) -> float:
    """Runs to the end; returns the seconds until the first record."""
    begun = time.monotonic()
    process = begin(folder, "whole")
    first = None
    while process.poll() is None:
        if first is None and steps_done(folder, "whole"):
            first = time.monotonic() - begun
        time.sleep(0.05)
    if process.returncode or first is None:
        sys.exit((folder / "whole.log").read_text())
    return first


def being_written(folder: Path, since: float) -> bool:
    """Tells if there is an unfinished checkpoint that was begun after the wall time `since`."""
    for path in (folder / "killed" / "checkpoints").glob("*tmp*"):
        try:
            if path.stat().st_mtime > since:
                return True
        except FileNotFoundError:  # finished meanwhile
            pass
    return False


def kill_often(folder: Path, kills: int, steps: int, start_up: float, rng: random.Random) -> None:
    """Kills the run `killed` so often; prints where each kill fell; then lets it finish."""
    during_writing = 0
    for number in range(1, kills + 1):
        begun = time.monotonic()
        since = time.time()
        process = begin(folder, "killed")
        # A fifth while it starts up; the others spread over the steps, half of these as soon
        # as a checkpoint is being written.
        moment = rng.random()
        target = steps * (number - rng.random()) / (kills + 1)
        if moment < 0.2:
            time.sleep(rng.uniform(0, start_up))
        else:
            while steps_done(folder, "killed") < target and process.poll() is None:
                time.sleep(0.01)
            start_up = min(start_up, time.monotonic() - begun)
            if moment < 0.6:
                while not being_written(folder, since) and process.poll() is None:
                    time.sleep(0.0002)
                time.sleep(rng.uniform(0, 0.02))
            else:
                time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            sys.exit(
                f"The run ended before kill {number}; use more --steps.\n"
                + (folder / "killed.log").read_text()[-2000:]
            )
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        writing = being_written(folder, since)
        during_writing += writing
        what = "writing a checkpoint" if writing else ""
        step = steps_done(folder, "killed")
        print(f"kill {number:2d} of {kills} at step {step:4d}  {what}", flush=True)
    print(f"{during_writing} of {kills} kills fell into the writing of a checkpoint")
    if begin(folder, "killed").wait():
        sys.exit((folder / "killed.log").read_text())


def compare(folder: Path) -> bool:
    """Prints what differs between the two runs; returns True if nothing does."""
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
                {key: value for key, value in record.items() if not key.startswith("perf/")}
                for record in read_metrics(str(folder / name))
            ]
        )
    same = True
    flat = [jax.tree_util.tree_flatten_with_path(state)[0] for state in states]
    for (path, a), (_, b) in zip(*flat, strict=True):
        if np.asarray(a).tobytes() != np.asarray(b).tobytes():
            print(f"differs: {jax.tree_util.keystr(path)}")
            same = False
    if records[0] != records[1]:
        print("the train/* and eval/* records differ")
        same = False
    print(f"{len(flat[0])} arrays and {len(records[0])} records compared: ", end="")
    print("equal bit for bit" if same else "NOT equal")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gin_file", action="append", default=[], help="of another system")
    parser.add_argument("--gin_bindings", action="append", default=[], help="a binding more")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_text(folder, arguments.seed)
        bound = arguments.gin_file, arguments.gin_bindings, folder, arguments.steps
        (folder / "config.gin").write_text(config_of(*bound))
        start_up = undisturbed(folder)
        print(f"undisturbed run done; {start_up:.1f} s to its first record", flush=True)
        rng = random.Random(arguments.seed)
        kill_often(folder, arguments.kills, arguments.steps, start_up, rng)
        return 0 if compare(folder) else 1


if __name__ == "__main__":
    sys.exit(main())
