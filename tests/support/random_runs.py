"""Runs of random parameters, with no checkpoint to read them from."""

from tiny_run import one_device, random_params

from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.segment_reader import SegmentReader


def random_run(folder, experiment, length, window) -> RecordedRun:
    """Returns a run that reads the validation split, three segments of `length` tokens a step."""
    evaluation = experiment.evaluation
    evaluation.tokens_per_step, evaluation.segment_length = 3 * length, length
    run = RecordedRun.__new__(RecordedRun)
    run.experiment, run.mesh, run.workdir, run.quiet = experiment, one_device(), folder, True
    run.store = experiment.open_store("validation")
    run.vocabulary = experiment.trainer.corpus.vocabulary
    run.split, run.rows, run.segment_length, run.window = "validation", 3, length, window
    run.reader = SegmentReader(experiment, run.mesh, 3, length, entropy=True)
    run.has_state, run.step = run.reader.has_state, 0
    run.params = random_params(experiment)
    return run
