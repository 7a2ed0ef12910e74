"""Microbatches of a step give the gradient, the caches and the run of the undivided batch."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import VOCABULARY, kinds, random_model, segment_length
from flax import nnx
from marking import slow
from tiny_models import parameters, quick_jit, wide_types  # noqa: F401
from tiny_run import build, mesh_of, records, train_here, write_config

from brt.benchmarks import hlo
from brt.benchmarks.hlo_costs import collectives
from brt.data.streams.batch import Batch
from brt.training.optimization.optimizers import adamw
from brt.training.train_step import TrainState, bind, make_train_step

K, B = 3, 4
TOLERANCE = 1e-9
SGD = adamw(lambda step: 0.1, eps=1.0)
"""Not far from plain gradient steps, as Adam's first step does not show a gradient's size."""
CASES = [slow(*case.values, when=case.values[0] != "lstm") for case in kinds()]


def batch(length, seed=0):
    """Random tokens and weights; documents begin in some batch elements."""
    rng = np.random.default_rng(seed)
    inputs, targets = rng.integers(0, VOCABULARY, (2, K, B, length)).astype(np.int32)
    weights = rng.random((K, B, length)) * (rng.random((K, B, 1)) < 0.7)
    return Batch(inputs, targets, weights, rng.random((K, B)) < 0.3)


def first_state(model):
    rng = np.random.default_rng(1)
    params, caches = parameters(model), model.init_caches(B)
    caches = jax.tree.map(
        lambda x: x if x.dtype.kind in "bi" else jnp.asarray(0.3 * rng.normal(size=x.shape)), caches
    )
    return TrainState(jnp.int32(3), params, SGD.init(params), caches)


def after_a_step(model, number, length, **options):
    step = make_train_step(
        functools.partial(bind, nnx.graphdef(model)),
        *(SGD, lambda step: 0.1),
        accumulation=number,
        **options,
    )
    return quick_jit(step)(first_state(model), batch(length))


def assert_equal(found, expected):
    (state, metrics), (own_state, own_metrics) = expected, found
    pairs = zip(jax.tree.leaves(own_state), jax.tree.leaves(state), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    for name in ("nats", "weight", "correct"):
        np.testing.assert_allclose(getattr(own_metrics, name), getattr(metrics, name), TOLERANCE)
    assert own_metrics.means.keys() == metrics.means.keys()
    for name in ("grad_norm", "update_norm"):
        np.testing.assert_allclose(own_metrics.means[name], metrics.means[name], TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_microbatches_are_the_undivided_batch(name):
    model, length = random_model(name, dtype="float64"), segment_length(name)
    expected = after_a_step(model, 1, length)
    assert_equal(after_a_step(model, 4, length), expected)


OPTIONS = {
    "half scored": (4, {"scores": "half"}),
    "dropout": (4, {"dropout": True}),
    "read again": (2, {"reread_segments": 2}),
    "one step back": (4, {"bptt_depth": 1}),
    "cleared": (2, {"clear": True}),
    "skipping": (2, {"skip_nonfinite": True}),
    "recomputed": (4, {"remat_segments": True}),
}


@pytest.mark.parametrize("option", [slow(name, when=name != "half scored") for name in OPTIONS])
def test_every_option_of_a_step_takes_microbatches(option):
    number, options = OPTIONS[option]
    rate = 0.3 if option == "dropout" else 0.0
    model = random_model("rec_fixed_skip", dtype="float64", dropout=rate)
    length = segment_length("rec_fixed_skip")
    expected = after_a_step(model, 1, length, **options)
    assert_equal(after_a_step(model, number, length, **options), expected)


STREAMS = {
    "documents": (),
    "shuffled": ('Trainer.stream = "shuffled"',),
    "contiguous": ('Trainer.stream = "contiguous"', "Trainer.reread_segments = 1"),
}


@pytest.mark.parametrize("stream", [slow(name, when=name != "documents") for name in STREAMS])
def test_a_run_in_microbatches_is_the_undivided_run(stream, tmp_path):
    with jax.enable_x64(False):
        path = write_config(tmp_path, *STREAMS[stream])
        train_here(build(path), tmp_path / "undivided")
        train_here(build(path, "Trainer.accumulation = 2"), tmp_path / "divided")
    np.testing.assert_allclose(
        losses(tmp_path / "divided"), losses(tmp_path / "undivided"), rtol=1e-4
    )


def losses(workdir):
    return [record["train/loss"] for record in records(workdir, "train/loss")]


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_a_run_on_a_mesh_is_that_on_one_device(tmp_path):
    with jax.enable_x64(False):
        bindings = "Trainer.tokens_per_step = 128", "Trainer.accumulation = 2"
        tiny = build(write_config(tmp_path), *bindings)
        train_here(tiny, tmp_path / "mesh", mesh=mesh_of(4, 2))
        train_here(tiny, tmp_path / "one")
    sharded, alone = (losses(tmp_path / folder) for folder in ("mesh", "one"))
    np.testing.assert_allclose(sharded, alone, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_batch_elements_stay_on_their_device(tmp_path):
    def moved(number):
        bindings = "Trainer.tokens_per_step = 128", f"Trainer.accumulation = {number}"
        experiment, mesh = build(write_config(tmp_path), *bindings).experiment, mesh_of(4, 2)
        with jax.set_mesh(mesh):
            state, batch = experiment.abstract_state(mesh), experiment.abstract_batch()
            program = experiment.jit_step(mesh).lower(state, batch).compile().as_text()
        kinds = (one.kind for one in collectives(hlo.parse(program)))
        return Counter(kind for kind in kinds if kind in ("all-to-all", "collective-permute"))

    with jax.enable_x64(False):
        assert moved(2) == moved(1)


@pytest.mark.parametrize("number", [3, 8])
def test_microbatches_that_do_not_divide_the_batch_are_refused(number, tmp_path):
    with pytest.raises(ValueError, match=r"Trainer\.accumulation"):
        build(write_config(tmp_path), f"Trainer.accumulation = {number}")


def test_an_evaluation_names_what_a_microbatch_leaves_it(tmp_path):
    bindings = "Trainer.accumulation = 4", "Evaluation.segment_length = 64"
    with pytest.raises(ValueError, match=r"Trainer\.accumulation = 16 is not a multiple .* 64 "):
        build(write_config(tmp_path), *bindings)
