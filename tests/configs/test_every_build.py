"""Every command of a header and every row of a sweep can train and evaluate, or says why not."""

import re

import jax
import pytest
from header_commands import COMMANDS, FURTHER
from paths import CONFIGS
from published_checks import built_once

from brt import config
from brt.experiment import Experiment
from brt.reporting.gin_text import write_gin
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import SCALES
from brt.training.sharding import abstract_mesh, make_mesh

DEVICES = 1, 4, 8
SWEEPS = sorted((CONFIGS / "sweeps").glob("*.txt"))
FEW = (
    "pg19_rec_fixed_skip.gin",
    "rmt/rmt_wt103_150.gin",
    "pretrained/gpt2_pooled.gin",
    "readers/t5.gin",
    "task_models/rmt_4x128.gin",
)


def check(files, bindings):
    """Returns the experiment, and the numbers of devices that it can be divided over."""
    config.parse(files, bindings)
    experiment = Experiment.from_gin()
    trainer, fitting = experiment.trainer, []
    for devices in DEVICES:
        try:
            mesh = abstract_mesh(trainer.mesh, devices)
            experiment.check_mesh(mesh)
        except ValueError as error:
            assert trainer.rows % devices and devices > 1
            assert re.search(r"Trainer\.tokens_per_step.*Trainer\.mesh", str(error))
            continue
        rows = trainer.rows // trainer.accumulation
        assert rows % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0
        fitting.append(devices)
    return experiment, fitting


@pytest.mark.parametrize("name", FEW)
def test_a_config_trains_on_1_4_and_8_devices_or_is_refused(name):
    check(*COMMANDS[name])


@pytest.mark.parametrize("name", [*FURTHER][::4])  # the others with the slow tests
def test_further_flags_of_a_header_fit_training_and_evaluation(name):
    experiment = built_once(*FURTHER[name])
    rows, segment_length = experiment.evaluated_shape
    assert rows and experiment.evaluated_model(segment_length)


@pytest.mark.parametrize("row", [1, 15])
def test_a_published_overlap_evaluates_as_many_windows(row):
    path = CONFIGS / "sweeps/arpt_tables.txt"
    entry = read_sweep(path, SCALES["paper"], None, [], None)[row]
    experiment, _ = check([], [write_gin(entry.settings)])
    trained = experiment.trainer.tokens_per_step
    rows, segment_length = experiment.evaluated_shape
    assert segment_length < 300 and 0 <= trained - rows * segment_length < segment_length


MIXED = "Trainer.corpus = @Mixture(); Mixture.corpora = [@Corpus()]; Mixture.weights = [1]"


@pytest.mark.parametrize(
    ("bindings", "named"),
    [
        ("Evaluation.segment_length = 96", r"Evaluation\.segment_length.*window = 64"),
        ("Evaluation.segment_length = 8192", r"accumulation = 4096 .* 8192 "),
        ("Evaluation.tokens_per_step = 1000", r"Evaluation\.tokens_per_step = 1000 "),
        ("Evaluation.stride = 4000", r"Evaluation\.stride = 4000 must be"),
        ("Evaluation.score = @FreeRunning()", r"Evaluation\.score = @FreeRunning"),
        (f"{MIXED}; Trainer.stream = 'contiguous'", r"Trainer\.stream = 'contiguous' has no order"),
    ],
)
def test_what_cannot_be_evaluated_or_read_is_refused(bindings, named):
    files = [str(CONFIGS / name) for name in ("small/rec_fixed_skip.gin", "corpora/text.gin")]
    config.parse(files, bindings.split("; "))
    with pytest.raises(ValueError, match=named):
        Experiment.from_gin()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMMANDS, *FURTHER])
def test_every_header_command_trains_or_is_refused(name):
    experiment, _ = check(*(COMMANDS | FURTHER)[name])
    jax.eval_shape(experiment.train_step, experiment.abstract_state(), experiment.abstract_batch())


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_a_config_is_traced_over_the_devices_that_divide_it(name):
    experiment, fitting = check(*COMMANDS[name])
    mesh = make_mesh(experiment.trainer.mesh, devices=jax.devices()[: fitting[-1]])
    with jax.set_mesh(mesh):
        state, batch = experiment.abstract_state(mesh), experiment.abstract_batch()
        jax.eval_shape(experiment.train_step, state, batch)


@pytest.mark.slow
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_row_of_a_sweep_trains_and_evaluates_or_says_why(path):
    for entry in read_sweep(path, SCALES["paper"], None, [], None):
        check([], [write_gin(entry.settings)])
