"""Runs of random parameters, with no checkpoint to read them from."""

from contextlib import contextmanager

import jax
from tiny_run import build, one_device, random_params, write_config

from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.segment_reader import SegmentReader


@contextmanager
def random_run(folder, *lines, length=16, window=8):
    """Yields a `RecordedRun` of the tiny experiment with these lines, on one device.

    It reads the validation split, three segments of `length` tokens a step.
    """
    experiment = build(write_config(folder, *lines)).experiment
    evaluation = experiment.evaluation
    evaluation.tokens_per_step, evaluation.segment_length = 3 * length, length
    run = RecordedRun.__new__(RecordedRun)
    run.experiment, run.mesh, run.workdir, run.quiet = experiment, one_device(), folder, True
    run.store = experiment.open_store("validation")
    run.vocabulary = experiment.trainer.corpus.vocabulary
    run.split, run.rows, run.segment_length, run.window = "validation", 3, length, window
    with jax.set_mesh(run.mesh):
        run.reader = SegmentReader(experiment, run.mesh, 3, length, entropy=True)
        run.has_state, run.step = run.reader.has_state, 0
        run.params = random_params(experiment)
        yield run
