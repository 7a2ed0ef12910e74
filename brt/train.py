"""Trains a model, or resumes its training.

python -m brt.train --gin_file=configs/quickstart.gin --workdir=runs/quickstart
"""

import signal
import sys

import gin
import jax
from absl import flags

from brt import command_line
from brt.data.text_flag import define_text
from brt.evaluation.evaluator import Evaluator
from brt.experiment import Experiment
from brt.host import processes
from brt.host.progress import say
from brt.run.checks import check_memory, warn_of_warmup
from brt.run.data import check_data, prepare_missing, store_contents
from brt.run.description import describe, settings
from brt.run.loop import TrainingRun
from brt.training.checkpoints.parameters import load_params
from brt.training.over_time.mesh import divided
from brt.training.profiling import ProfiledSteps, parse_steps
from brt.training.records.metric_writers import USUAL, check_kinds
from brt.training.records.run_folder import code_hash, versions
from brt.training.sharding import asked_mesh

FLAGS = flags.FLAGS
define_text()
command_line.define_topology()
command_line.define_folder("load_dir", "Begin with the parameters of this run or model folder.")
flags.DEFINE_bool(
    "eval_only", False, "Evaluate the run of this command, with its gin flags repeated, and stop."
)
flags.DEFINE_bool("dry_run", False, "Build the shapes, print what would run, and stop.")
flags.DEFINE_string(
    "devices", None, "N or NODESxN: refuse other devices, or with --dry_run plan for so many."
)
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
    if FLAGS.topology and (FLAGS.devices or not FLAGS.dry_run):
        raise ValueError("--topology compiles only: give --dry_run with it, and no --devices.")
    if FLAGS.dry_run and (FLAGS.topology or FLAGS.devices):
        from brt.benchmarks.slices import dry_run  # only here: training needs no compiler's tools

        return check_data(dry_run(FLAGS.topology, FLAGS.devices))
    experiment = Experiment.from_gin()
    packages = {f"version of {name}": str(version) for name, version in versions().items()}
    start = experiment.bindings | packages | {"hash of brt's code": code_hash()}
    processes.check_same("bindings and versions", start)
    trainer = experiment.trainer
    mesh = divided(trainer, experiment.model, asked_mesh(trainer.mesh, FLAGS.devices))
    experiment.check_mesh(mesh)
    is_first = jax.process_index() == 0
    if not FLAGS.eval_only:
        check_memory(experiment)
        warn_of_warmup(experiment)
    if is_first:
        print(describe(experiment, mesh), flush=True)
    if FLAGS.dry_run:
        if is_first:
            print(settings(experiment), flush=True)
            check_data(experiment)
        return
    with jax.set_mesh(mesh):
        if FLAGS.workdir is None:
            FLAGS.workdir = command_line.default_workdir(FLAGS.gin_file)  # type: ignore[assignment]
            if is_first:
                print(f"The run folder is {FLAGS.workdir} (--workdir).", flush=True)
        if FLAGS.eval_only:
            from brt import evaluate

            return evaluate.evaluate(experiment, mesh, FLAGS.workdir)
        prepare_missing(experiment)
        processes.check_same("token stores", store_contents(experiment))
        train(experiment, mesh, profile)


def train(
    experiment: Experiment, mesh: jax.sharding.Mesh, profile: ProfiledSteps | None = None
) -> None:
    def params():
        from brt.model_folder import located  # only with --load_dir

        # The last parameters, not their average: training continues with them.
        abstract = experiment.abstract_state(mesh)._replace(optimizer=None)
        return load_params(str(located(FLAGS.load_dir)), abstract)[0].params

    text, begin = gin.config_str(), params if FLAGS.load_dir else None
    run = TrainingRun(
        *(experiment, mesh, FLAGS.workdir, begin, FLAGS.allow_changes, profile),
        metrics=FLAGS.metrics,
        evaluator=Evaluator.in_loop(experiment, mesh),
    )
    try:
        if run.folder.writes and (run.done or run.resumed):
            resumed = f"Resuming in {FLAGS.workdir} from step {run.start:,}."
            print(run.end if run.done else resumed, flush=True)
        if not run.done:
            if run.folder.writes and (script := command_line.malloc_remedy()):
                say(f"Steps on a CPU can be 1.5 times as fast: source {script} before.")
            run.folder.describe(text)
            run.run()
        run.close()
    finally:
        run.folder.close()
    if run.stop.signal == signal.SIGINT:
        sys.exit(command_line.INTERRUPTED)


if __name__ == "__main__":
    command_line.run(main)
