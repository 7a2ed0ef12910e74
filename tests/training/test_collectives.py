"""What devices exchange while the sharded step is in a loop: nothing over data and fsdp."""

import functools
import math
from collections import Counter

import jax
import pytest
from architectures import ARCHITECTURES
from marking import slow
from tiny_models import QUICK
from tiny_run import mesh_of

from brt.benchmarks import hlo
from brt.benchmarks.hlo_costs import across_slices, axes_of, collectives
from brt.models.fast import chunked_losses
from brt.models.sizes import tile_size

ROWS = 8
SIZES = dict(vocabulary_size=256, width=16, num_heads=8, head_size=2, feed_forward_size=32)
"""Sizes that eight devices of either axis divide."""

MESHES = [(8, 1), (2, 2, 2), *(slow(x) for x in ((4, 2), (1, 8)))]


@functools.cache
def compiled(name, mesh_shape):
    """Experiment and program of a training step."""
    entry = ARCHITECTURES[name]
    sizes = {**SIZES}
    if name.endswith("kernel"):  # interpreted kernels compile slowly
        sizes["num_layers"] = 2
    experiment = entry.experiment(ROWS, entry.divisible | sizes)
    mesh = mesh_of(*mesh_shape)
    with jax.set_mesh(mesh):
        lowered = experiment.jit_step(mesh).lower(
            experiment.abstract_state(mesh), experiment.abstract_batch()
        )
        return experiment, hlo.parse(lowered.compile(compiler_options=QUICK).as_text())


def in_loops(name, mesh_shape):
    """Axes and kinds of the collectives in loops of a training step, in the program's order."""
    found, shape = collectives(compiled(name, mesh_shape)[1]), mesh_of(*mesh_shape).shape
    assert any(not one.loops for one in found), "nothing is exchanged at all"
    return Counter(
        (axis, one.kind, one.scope)
        for one in found
        if one.loops
        for axis in axes_of(one.groups, shape)
    )


@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
def test_the_loop_over_blocks_exchanges_one_sum_over_model(mesh_shape):
    found = in_loops("rec_fixed_skip", mesh_shape)
    # The heads' contributions to the states, and in the backward pass to their gradient.
    sums = {("model", "all-reduce")} if mesh_shape[-1] > 1 else set()
    assert {key[:2] for key in found} == sums and sum(found.values()) <= 2


OTHERS = "feedback_fixed_skip", "gated_delta"
SLOW = "melodi", "rec_lstm_dual", "associative_delta", "rec_kernel", "feedback_kernel"


@pytest.mark.parametrize("name", [*OTHERS, *(slow(name) for name in SLOW)])
def test_other_loops_exchange_nothing_over_data_and_fsdp(name):
    assert {axis for axis, *_ in in_loops(name, (2, 2, 2))} <= {"model"}


def between_halves(name, mesh_shape):
    """Bytes a device that cross from the first four devices to the others, and of parameters."""
    experiment, program = compiled(name, mesh_shape)
    leaves = jax.tree.leaves(experiment.abstract_state(mesh_of(*mesh_shape)).params)
    params = 4 * sum(math.prod(x.sharding.shard_shape(x.shape)) for x in leaves)
    kinds = across_slices(collectives(program), [0, 0, 0, 0, 1, 1, 1, 1])
    return {kind: entry["bytes"] for kind, entry in kinds.items()}, params


@pytest.mark.parametrize(
    ("name", "most"),
    # MELODI's tables of position biases cross whole.
    [("rec_fixed_skip", 1.15), slow("melodi", 1.8)],
)
@pytest.mark.parametrize("mesh_shape", [(2, 4, 1), (2, 2, 2)])
def test_slices_exchange_each_gradient_once_in_parts(name, most, mesh_shape):
    found, params = between_halves(name, mesh_shape)
    assert found.keys() == {"all-reduce"}
    assert params <= found["all-reduce"] < most * params


@pytest.mark.parametrize("name", ["rec_fixed_skip", slow("rec_kernel")])
@pytest.mark.parametrize("mesh_shape", [(8, 1), (2, 4, 1), (2, 2, 2)])
def test_gradients_of_position_biases_are_summed_by_distance(name, mesh_shape):
    experiment, program = compiled(name, mesh_shape)
    window = experiment.model.layers[0].window
    shapes = [shape for each in collectives(program) for _, shape in each.arrays]
    heads = SIZES["num_heads"] // mesh_shape[-1]
    assert (heads, window) in [shape[-2:] for shape in shapes]
    queries = tile_size(window)
    table = (window + queries, queries) if name == "rec_kernel" else (window, 2 * window)
    found = (shape[:-2] for shape in shapes if shape[-2:] == table)
    assert not [axes for axes in found if math.prod(axes) >= heads]


def test_parameters_divided_over_slices_cross_several_times():
    found, params = between_halves("rec_fixed_skip", (8, 1))
    assert sum(found.values()) > 8 * params


def test_the_loss_is_read_in_chunks_that_exchange_nothing(monkeypatch):
    monkeypatch.setitem(chunked_losses.CHUNKS, "cpu", 256)
    compiled.cache_clear()
    assert not in_loops("slide", (4, 2))
    _, program = compiled("slide", (4, 2))
    loops = [each for each in program.instructions().values() if each.opcode == "while"]
    # A device has 16 tokens and 128 logits of each.
    assert 16 * 128 // 256 in [hlo.trip_count(program, loop) for loop in loops]
    compiled.cache_clear()
