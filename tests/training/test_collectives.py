"""What devices exchange while the sharded step is in a loop: nothing over data and fsdp."""

import functools
from collections import Counter

import jax
import optax
import pytest
from architectures import ARCHITECTURES
from tiny_models import QUICK
from tiny_run import mesh_of

from brt.benchmarks import hlo
from brt.benchmarks.hlo_costs import axes_of, collectives
from brt.experiment import Experiment
from brt.models.fast import chunked_losses
from brt.training.optimization.schedules import constant_rate
from brt.training.settings import Trainer

ROWS = 8
SIZES = dict(vocabulary_size=256, width=16, num_heads=8, head_size=2, feed_forward_size=32)
"""Sizes that eight devices of either axis divide."""

MESHES = [(8, 1), (4, 2), (2, 2, 2), pytest.param((1, 8), marks=pytest.mark.slow)]


@functools.cache
def in_loops(name, mesh_shape, dtype="float32", remat="none"):
    """Axes and kinds of the collectives in loops of a training step, in the program's order."""
    entry = ARCHITECTURES[name]
    sizes = SIZES | dict(activation_dtype=dtype, remat=remat)
    if name.endswith("kernel"):  # interpreted kernels compile slowly
        sizes["num_layers"] = 2
    trainer = Trainer(
        corpus=object(),
        optimizer=optax.sgd,
        schedule=lambda total_steps: constant_rate(total_steps, 0.01, 0),
        steps=1,
        segment_length=entry.segment,
        tokens_per_step=ROWS * entry.segment,
        model=lambda rngs: entry.build(rngs, **entry.divisible | sizes),
    )
    experiment = Experiment(trainer)
    mesh = mesh_of(*mesh_shape)
    with jax.set_mesh(mesh):
        lowered = experiment.jit_step(mesh).lower(
            experiment.abstract_state(mesh), experiment.abstract_batch()
        )
        program = hlo.parse(lowered.compile(compiler_options=QUICK).as_text())
        found = collectives(program)
    assert any(not one.loops for one in found), "nothing is exchanged at all"
    return Counter(
        (axis, one.kind, one.scope)
        for one in found
        if one.loops
        for axis in axes_of(one.groups, mesh.shape)
    )


def over(axis, found):
    return {key[1:]: number for key, number in found.items() if key[0] == axis}


@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
def test_the_loop_over_blocks_exchanges_one_sum_over_model_and_nothing_else(mesh_shape):
    found = in_loops("rec_fixed_skip", mesh_shape)
    assert not over("data", found) and not over("fsdp", found)
    if mesh_shape[-1] == 1:
        assert not found
    # The heads' contributions to the states, and in the backward pass to their gradient.
    assert sum(over("model", found).values()) <= 2
    assert {kind for kind, _ in over("model", found)} <= {"all-reduce"}


@pytest.mark.parametrize(
    "name",
    [
        *("feedback_fixed_skip", "gated_delta", "melodi"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("rec_lstm_dual", "associative_delta", "rec_kernel", "feedback_kernel")
        ),
    ],
)
def test_other_loops_exchange_nothing_over_data_and_fsdp(name):
    found = in_loops(name, (2, 2, 2))
    assert not over("data", found) and not over("fsdp", found)


def test_the_loss_is_read_in_chunks_that_exchange_nothing(monkeypatch):
    monkeypatch.setitem(chunked_losses.CHUNKS, "cpu", 256)
    in_loops.cache_clear()
    assert not in_loops("slide", (4, 2))
    in_loops.cache_clear()
