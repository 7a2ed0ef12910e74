"""How far a reader has to go: what one traced training step of the quickstart enters, on a CPU."""

import sys
from pathlib import Path

import jax
import pytest
from paths import ROOT

from brt.experiment import Configuration

PACKAGE = ROOT / "brt"
FRAMES, FILES_TO_THE_GATE = 12, 7
FUNCTIONS, FILES, LINES = 140, 22, 3_700
"""Lower these numbers, never raise them."""


class Trace:
    """Functions of brt that are entered, and the longest path from `train_step` to the gate."""

    def __init__(self):
        self.entered, self.path = set(), []

    def __call__(self, frame, event, _):
        name = name_of(frame)
        if event != "call" or name is None:
            return
        self.entered.add(name)
        if name[1].startswith("Gate."):
            path = self._path(frame)
            self.path = max(self.path, path, key=len)

    def _path(self, frame):
        path = []
        while frame is not None:
            path.append(name_of(frame))
            frame = frame.f_back
        path = [name for name in path if name is not None][::-1]
        start = [function.endswith("train_step") for _, function in path].index(True)
        return path[start:]


def name_of(frame):
    """File and name of a function of brt, or None."""
    path = frame.f_code.co_filename
    return (path, frame.f_code.co_qualname) if path.startswith(f"{PACKAGE}/") else None


@pytest.fixture(scope="module")
def trace():
    experiment = Configuration([str(ROOT / "configs/quickstart.gin")]).experiment()
    inputs = experiment.abstract_state(), experiment.abstract_batch()
    trace, before = Trace(), sys.getprofile()
    sys.setprofile(trace)
    try:
        jax.eval_shape(experiment.train_step, *inputs)
    finally:
        sys.setprofile(before)
    return trace


def test_the_path_to_the_gate_is_short(trace):
    assert trace.path[-1][1].startswith("Gate.")
    assert len(trace.path) <= FRAMES, trace.path
    assert len({file for file, _ in trace.path}) <= FILES_TO_THE_GATE


def test_a_step_enters_few_functions_and_files(trace):
    files = {file for file, _ in trace.entered}
    assert len(trace.entered) <= FUNCTIONS
    assert len(files) <= FILES
    lines = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert lines <= LINES


def test_the_tour_names_every_file_that_a_step_enters(trace):
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    files = {str(Path(file).relative_to(ROOT)) for file, _ in trace.entered}
    assert not sorted(file for file in files if file not in tour)


def test_no_kernel_is_entered_on_a_cpu(trace):
    assert not [name for name in trace.entered if "kernel" in name[0]]
