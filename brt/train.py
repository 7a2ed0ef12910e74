"""Trains a model, or goes on training it.

python -m brt.train --gin_file=configs/quickstart.gin --workdir=runs/quickstart

Without --workdir the run folder is runs/, then the name of the config.
"""

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import gin
import jax
from absl import flags
from jax.experimental import multihost_utils

from brt import command_line, config, processes
from brt.data.extras import MissingExtra
from brt.evaluation.evaluator import Evaluator
from brt.experiment import Experiment
from brt.progress import say
from brt.training.checkpoints.parameters import load_params
from brt.training.loop import TrainingRun
from brt.training.profiling import ProfiledSteps, parse_steps
from brt.training.records.metric_writers import USUAL, check_kinds
from brt.training.records.run_folder import code_hash, versions
from brt.training.sharding import make_mesh

FLAGS = flags.FLAGS
PREPARATION_ENDED = "what is prepared is kept, and the same command goes on with the rest."
command_line.define_topology()
command_line.define_folder("load_dir", "Begin with the parameters of this run folder.")
flags.DEFINE_bool(
    "eval_only", False, "Evaluate the run of this command, with its gin flags repeated, and stop."
)
flags.DEFINE_bool("dry_run", False, "Build the shapes, print what would run, and stop.")
flags.DEFINE_bool(
    "allow_changes", False, "Resume although the bindings differ from the run folder's."
)
flags.DEFINE_list(
    "metrics", list(USUAL), "Where numbers go: jsonl, and tensorboard, wandb or both."
)
flags.DEFINE_string("profile", None, "FROM:TO, steps to be traced into --workdir.")


def main() -> None:
    command_line.start()
    profile = parse_steps(FLAGS.profile) if FLAGS.profile else None
    check_kinds(tuple(FLAGS.metrics))
    if FLAGS.topology:
        return show_on_slice(FLAGS.topology)
    experiment = Experiment.from_gin()
    processes.agree("bindings and versions", started_with(experiment))
    mesh = make_mesh(*experiment.trainer.mesh)
    experiment.check_mesh(mesh)
    if not FLAGS.eval_only:
        experiment.warn_of_warmup()
    with jax.set_mesh(mesh):
        if jax.process_index() == 0:
            print(experiment.describe(mesh), flush=True)
        if FLAGS.dry_run:
            if jax.process_index() == 0:
                print(settings(experiment), flush=True)
                check_data(experiment)
            return
        if FLAGS.workdir is None:
            FLAGS.workdir = usual_workdir(FLAGS.gin_file)  # type: ignore[assignment]
            if jax.process_index() == 0:
                print(f"The run folder is {FLAGS.workdir}; --workdir names another.", flush=True)
        if FLAGS.eval_only:
            from brt import evaluate

            evaluate.evaluate(experiment, mesh, FLAGS.workdir)
            return
        prepare_missing(experiment)
        processes.agree("token stores", store_contents(experiment))
        train(experiment, mesh, profile)


def usual_workdir(gin_files: Sequence[str]) -> str:
    """Returns the run folder of gin files without --workdir: `runs/MODEL-DATA` of two."""
    names = [Path(name).stem for given in gin_files for name in config.split_files(given)]
    if not names:
        raise ValueError("--workdir is missing: name a folder for checkpoints and records.")
    return os.path.join("runs", "-".join(names))


def show_on_slice(name: str) -> None:
    """Prints the dry run of a slice of TPUs, and what its compiler says of the step."""
    if not FLAGS.dry_run:
        raise ValueError("--topology compiles and trains nothing: give --dry_run with it.")
    from brt.benchmarks import slices, topologies  # only here: training needs neither

    topology = topologies.find(name)
    topologies.check_compiler()
    topologies.use_no_device()
    experiment = Experiment.from_gin()
    print(experiment.describe(slices.slice_mesh(experiment, topology)), flush=True)
    print(slices.line(slices.measure(experiment, topology), topology), flush=True)
    print(settings(experiment), flush=True)
    check_data(experiment)


def check_data(experiment: Experiment) -> None:
    """Refuses stores that are not prepared and cannot be, with the files of this machine.

    Libraries of extras may be installed elsewhere.
    """
    with contextlib.suppress(MissingExtra):
        experiment.check_vocabulary()
        experiment.check_documents(splits_read(experiment))


def settings(experiment: Experiment) -> str:
    """Returns every setting in force, and what of the data is there already."""
    trainer = experiment.trainer
    width = max(map(len, experiment.bindings))
    lines = [f"{name:<{width}} = {value}" for name, value in sorted(experiment.bindings.items())]
    lines.append("")
    try:
        lines.append(f"vocabulary: {trainer.corpus.vocabulary_size:,} ids")
    except (OSError, ValueError, MissingExtra) as error:
        lines.append(f"vocabulary: {error}")
    for split in dict.fromkeys(("train", experiment.evaluation.split)):
        ready = "is prepared" if trainer.corpus.exists(split) else "is to be prepared"
        lines.append(f"store of split {split}: {ready}")
    return "\n" + "\n".join(lines)


def train(
    experiment: Experiment, mesh: jax.sharding.Mesh, profile: ProfiledSteps | None = None
) -> None:
    """Trains in --workdir from its newest checkpoint, or from the beginning.

    profile: steps to be traced.
    """
    params = None
    if FLAGS.load_dir:
        # The last parameters, not their average: training goes on from there.
        abstract = experiment.abstract_state(mesh)._replace(optimizer=None)
        state, _ = load_params(FLAGS.load_dir, abstract)
        params = state.params
    config = gin.config_str()
    run = TrainingRun(
        *(experiment, mesh, FLAGS.workdir, params, FLAGS.allow_changes, profile),
        metrics=FLAGS.metrics,
        evaluator=Evaluator.in_loop(experiment, mesh),
    )
    try:
        report_and_run(run, config)
        run.close()
    finally:
        run.folder.close()
    if run.stop.signal == signal.SIGINT:
        sys.exit(command_line.INTERRUPTED)


def report_and_run(run: TrainingRun, config: str) -> None:
    """Says where a run goes on, and runs it if there is something left to do."""
    if jax.process_index() == 0:
        if run.done:
            print(run.end)
        elif run.resumed:
            print(f"Going on in {FLAGS.workdir} from step {run.start:,}.", flush=True)
    if not run.done:
        if jax.process_index() == 0 and malloc_is_slow():
            say(
                "Steps on a CPU can be 1.5 times as fast: the malloc settings of scripts/malloc.sh "
                "are missing, source it before the command."
            )
        run.folder.describe(config)
        run.run()


def malloc_is_slow() -> bool:
    """Tells if glibc will give back a step's work memory every step (docs/benchmarks/training.md).

    Not in notebooks, where nobody can set it before the kernel starts.
    """
    return (
        jax.default_backend() == "cpu"
        and platform.libc_ver()[0] == "glibc"
        and "glibc.malloc." not in os.environ.get("GLIBC_TUNABLES", "")
        and "JPY_PARENT_PID" not in os.environ
    )


def started_with(experiment: Experiment) -> dict[str, str]:
    """Returns the bindings and versions that all processes of a run must share."""
    packages = {f"version of {name}": str(version) for name, version in versions().items()}
    return {**experiment.bindings, **packages, "hash of brt's code": code_hash()}


def store_contents(experiment: Experiment) -> dict[str, str]:
    """Returns, for each store that is read, a short hash of what the manifest says is in it."""
    found = {}
    for split in splits_read(experiment):
        for number, corpus in enumerate(experiment.trainer.corpus.corpora):
            manifest = corpus.open(split).manifest
            content = json.dumps([manifest["hashes"], manifest["vocabulary"]], sort_keys=True)
            name = f"tokens of split {split}, corpus {number}"
            found[name] = hashlib.sha256(content.encode()).hexdigest()[:16]
    return found


def splits_read(experiment: Experiment) -> list[str]:
    """Returns the splits that training reads."""
    evaluated = [experiment.evaluation.split] if experiment.trainer.eval_every else []
    return ["train", *evaluated]


def prepare_missing(experiment: Experiment) -> None:
    """Has missing token stores made by another process, which may need TensorFlow."""
    trainer = experiment.trainer
    splits = splits_read(experiment)
    missing = [split for split in splits if not trainer.corpus.exists(split)]
    if jax.process_index() == 0:
        experiment.check_vocabulary()
        experiment.check_documents(splits)
        for corpus in trainer.corpus.corpora:
            for split in dict.fromkeys(splits):
                if corpus.exists(split):
                    corpus.warn_of_changes(split)
    if missing and jax.process_index() == 0:
        command = [sys.executable, "-m", "brt.prepare", *command_line.gin_flags()]
        with command_line.terminable(PREPARATION_ENDED):
            status = subprocess.run([*command, f"--splits={','.join(missing)}"], check=False)
        if status.returncode:
            raise ValueError("The token stores could not be prepared; the reason stands above.")
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("token stores")


if __name__ == "__main__":
    command_line.run(main)
