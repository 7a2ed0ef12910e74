"""Evaluates a run on a whole split: every document once, from its start.

    python -m brt.evaluate --workdir=runs/quickstart --gin.Evaluation.split='"test"'
    python -m brt.evaluate --workdir=runs/quickstart --step=1200
    python -m brt.evaluate --workdir=runs/quickstart --record
    python -m brt.evaluate --workdir=runs/quickstart --study=memory_use

Gin files and bindings override those of the run. Metrics are written to RUN/evaluation_SPLIT.json,
those of a named step to RUN/evaluation_SPLIT_step_N.json, those of a --text to
RUN/evaluation_own_text_NAME_SPLIT.json. With --record the loss of every token is kept, and a killed
evaluation continues. --study runs one of answers, attention, attention_length, compare,
continuations, memory_use, positions, reach, recl and topics instead; their settings are gin
bindings, such as --gin.Reach.tokens=100000.
"""

import math
import os
from collections.abc import Sequence

import jax
from absl import flags

from brt import command_line, config
from brt.data.text_flag import define_text, text_name
from brt.data.vocabularies.report import white_space_caveat
from brt.evaluation.evaluator import Evaluator
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording
from brt.evaluation.replay import recorded_scalars
from brt.experiment import Experiment
from brt.host.progress import say
from brt.model_folder import GIN, run_config, use_vocabulary
from brt.storage.paths import as_path
from brt.storage.replaced_files import replace_json
from brt.studies.output import table, write_study
from brt.studies.study import Study, choose_documents, run_study, settings, studies
from brt.training.checkpoints.parameters import check_step, check_vocabulary, load_params
from brt.training.sharding import make_mesh

FLAGS = flags.FLAGS
command_line.define_step()
define_text()
flags.DEFINE_bool("record", False, "Keep every token's loss in RUN/recordings; resumes if killed.")
STUDIES = studies()
flags.DEFINE_enum(
    "study", None, list(STUDIES), f"Run this study instead. Its settings: {', '.join(settings())}."
)
flags.DEFINE_list(
    "other", [], "Another run folder, to compare with; several for recl, topics, continuations."
)
flags.DEFINE_integer(
    "documents",
    None,
    "Documents that --record keeps or a study reads, drawn by --study_seed. Default: all.",
    1,
)
flags.DEFINE_integer("study_seed", 0, "Seed of everything that is drawn.", lower_bound=0)
HUGE = 1e6
"""Larger figures are shown in scientific notation if they are not whole."""
COUNTS = ("documents", "tokens", "words", "characters", "bytes")
SAMPLE = 4096
"""Tokens that test the vocabulary's white space."""


def main() -> None:
    if not FLAGS.workdir:
        raise ValueError("--workdir is missing: name the run folder to evaluate.")
    own = run_config(FLAGS.workdir)
    if not FLAGS.study and (FLAGS.other or (FLAGS.documents and not FLAGS.record)):
        raise ValueError(
            "An evaluation reads every document of one run: --other goes with --study, and "
            "--documents with --study or --record."
        )
    if FLAGS.study and FLAGS.record:
        raise ValueError("--study and --record are two commands: leave one of them out.")
    step, given = check_step(FLAGS.step), FLAGS.gin_file
    FLAGS.gin_file = [own, *given]  # type: ignore[assignment]  # absl names no types
    command_line.start(trains=False)
    study = STUDIES[FLAGS.study]() if FLAGS.study else None
    if any("Evaluation.max_steps" in line for line in FLAGS.gin_bindings or ()):
        say("Evaluation.max_steps is of evaluations in training: this one reads the whole split.")
    experiment = use_vocabulary(Experiment.from_gin(), FLAGS.workdir)
    mesh = make_mesh(experiment.trainer.mesh)
    with jax.set_mesh(mesh):
        if study:
            answer(study, experiment, mesh, FLAGS.workdir, given, step)
        else:
            evaluate(experiment, mesh, FLAGS.workdir, FLAGS.record, FLAGS.documents, step)


def answer(
    study: Study,
    experiment: Experiment,
    mesh: jax.sharding.Mesh,
    workdir: str,
    gin_files: Sequence[str],
    step: int | str | None = None,
) -> None:
    """Runs a study of a checkpoint, prints it and writes it to the run folder.

    step: as of `load_params`; a number is of `workdir` alone, not of the other runs.
    """
    run = studied_run(study, workdir, mesh, gin_files, experiment, step)
    step = None if isinstance(step, int) else step
    others = {other: studied_run(study, other, mesh, gin_files, step=step) for other in FLAGS.other}
    content = run_study(study, run, others, FLAGS.documents, FLAGS.study_seed)
    if jax.process_index() == 0:
        path = write_study(content)
        print(f"\n{table(content)}\nWritten to {path}")


def studied_run(
    study: Study,
    workdir: str,
    mesh: jax.sharding.Mesh,
    gin_files: Sequence[str],
    experiment: Experiment | None = None,
    step: int | str | None = None,
) -> RecordedRun:
    """Returns a run folder; gin files and bindings of this command override its own.

    experiment: of the run, if it is built already; without it gin is bound again. step: as of
    `load_params`.
    """
    files = [run_config(workdir), *gin_files]

    def rebuild(further: Sequence[str] = ()) -> Experiment:
        bindings = [*FLAGS.gin_bindings, *further]
        config.parse(files, bindings, FLAGS.gin_search_paths, FLAGS.allow_imports)
        type(study)()  # refuses unread bindings of the study
        return use_vocabulary(Experiment.from_gin(), workdir)

    experiment = experiment or rebuild()
    experiment.trainer.corpus.prepare(experiment.evaluation.split)
    return RecordedRun(experiment, mesh, workdir, rebuild, any_stream=study.any_stream, step=step)


def evaluate(
    experiment: Experiment,
    mesh: jax.sharding.Mesh,
    workdir: str,
    record: bool = False,
    number: int | None = None,
    step: int | str | None = None,
) -> None:
    """Evaluates a checkpoint, prints a table and writes it to the run folder.

    Args:
        record: keep the loss of every token.
        number: record only this many documents, and print their figures without writing them.
        step: as of `load_params`.
    """
    split = experiment.evaluation.split
    is_usual = step in (None, "best")
    experiment.trainer.corpus.prepare(split)
    store = experiment.open_store(split)
    evaluator = Evaluator(experiment, store, mesh)
    first = jax.process_index() == 0
    recordings: dict[str, Recording] = {}
    documents: list[int] | None = None
    if record:
        run = RecordedRun(experiment, mesh, workdir, step=step)
        if number is not None:
            documents = choose_documents(run.store, number, FLAGS.study_seed)
        cleared = experiment.evaluation.cleared and run.has_state
        states = ["kept", "cleared"] if cleared else ["kept"]
        recordings = {name: run.recording(name, documents) for name in states}
        step, best_by = run.step, run.best_by
        scalars = recorded_scalars(evaluator, recordings, documents)
    else:
        state, saved = load_params(workdir, experiment.abstract_state(mesh), step)
        check_vocabulary(saved, store.manifest["vocabulary"], store.folder)
        step, best_by = int(state.step), saved.get("best_by")
        scalars = evaluator.run(state.params, f"evaluating {split}, segments" if first else None)
    if not math.isfinite(scalars["loss"]):
        raise ValueError(
            f"The loss of {workdir} at step {step:,} is {scalars['loss']}: its parameters have "
            "diverged. Nothing was written; evaluate an earlier checkpoint with --step."
        )
    if not first:
        return
    # A task's store has tokens and no text.
    counts = {name: store.manifest[name] for name in COUNTS if store.manifest[name]}
    counts = counts if documents is None else {}
    caveat = ""
    if store.manifest["bytes"]:
        vocabulary = experiment.trainer.corpus.vocabulary
        caveat = white_space_caveat(vocabulary, store.tokens(0, 0, SAMPLE))
    read = "every document once" if documents is None else f"documents {documents}"
    chosen = f" (the best by {best_by})" if best_by else ""
    print(f"\n{workdir} at step {step:,}{chosen}, {split}, {read}")
    for name, value in {**counts, **scalars}.items():
        print(f"  {name:<32} {shown(value):>16}")
    if caveat:
        print(caveat)
    if documents is None:
        files, own = FLAGS.gin_file, os.path.join(workdir, GIN)
        text, given = "", []
        if own in files:  # `brt.train --eval_only` has the run's flags alone
            text = f"own_text_{text_name(FLAGS.text)}_" if FLAGS.text else ""
            given = [*files[files.index(own) + 1 :], *FLAGS.gin_bindings]
        name = f"evaluation_{text}{split}" + ("" if is_usual else f"_step_{step}") + ".json"
        figures = {"step": step, "split": split, **counts, **scalars}
        figures |= {"best_by": best_by} if best_by else {}
        figures |= {"caveat": caveat} if caveat else {}
        figures |= {"given": given} if given else {}
        replace_json(as_path(workdir), name, figures)
        print(f"Written to {os.path.join(workdir, name)}")
    for recording in recordings.values():
        print(f"Tokens of the state {recording.manifest['state']}: {recording.folder}")


def shown(value: float) -> str:
    """Counts in full, perplexities of millions in scientific notation."""
    if float(value).is_integer() and value < 2**50:  # beyond, all floats are nearly whole
        return f"{value:,.0f}"
    return f"{value:.6e}" if value >= HUGE else f"{value:,.6f}"


if __name__ == "__main__":
    command_line.run(main)
