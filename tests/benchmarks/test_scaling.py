"""Time of collectives on clusters: bytes of a compiled program, layers, and times by hand."""

import contextlib
import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tiny_run import mesh_of

from brt.benchmarks import hlo, hlo_costs, scaling, topologies
from brt.benchmarks.scaling import Costs, Step

MIB = 2**20
GRADIENT = "all-reduce", ("data",), False, False


def test_the_bytes_of_a_sum_over_an_axis_are_those_of_the_summed_array():
    mesh = mesh_of(4, 2, 1)
    x = jax.ShapeDtypeStruct((8, 1000), jnp.float32)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    summed = jax.jit(
        lambda x: x.sum(0), in_shardings=rows, out_shardings=NamedSharding(mesh, PartitionSpec())
    )
    program = hlo.parse(summed.lower(x).compile().as_text())
    (found,) = hlo_costs.exchanges(hlo_costs.collectives(program), mesh.shape)
    assert found == {
        "kind": "all-reduce",
        "axes": ("data",),
        "in_loops": False,
        "optimizer": False,
        "runs": 1,
        "bytes": 4 * 1000,
    }


@pytest.mark.parametrize(
    ("kind", "share"),
    [("all-reduce", 2 * 7 / 8), ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8)],
)
def test_a_device_sends_what_a_ring_of_eight_makes_it_send(kind, share):
    # In a ring an eighth of the array goes over each link in each of 7 turns, of a sum in 14.
    assert scaling.sent(kind, 800.0, 8) == pytest.approx(800 * share)


def times(name, bytes_by_key, seconds=1.0, layers=4):
    return scaling.times(Costs(seconds, 0.0, 0.0, bytes_by_key), topologies.find(name), layers)


def test_times_are_bytes_over_the_published_bandwidth():
    gathered = {("all-gather", ("fsdp",), False, False): 450e9}
    assert times("h100-8", gathered).links == pytest.approx(7 / 8)
    assert times("h100-8", gathered).network == 0
    # 3.125 GB a second for a chip of v5e: 2 x 3/4 of the array.
    crossing = times("4xv5e-256", {GRADIENT: 3.125e9})
    assert (crossing.links, crossing.network) == (0, pytest.approx(1.5))
    assert crossing.network_bytes == 3.125e9
    assert times("v5e-256", {GRADIENT: 3.125e9}).network == 0
    # Over both axes the slices exchange what is left after the sum inside of each.
    both = times("h100-4x8", {("all-reduce", ("data", "fsdp"), False, False): 8 * 50e9})
    assert both.links == pytest.approx(2 * 7 / 8 * 400 / 450)
    assert both.network == pytest.approx(2 * 3 / 4)


def test_a_slice_without_a_torus_has_half_of_the_links():
    gathered = {("all-gather", ("fsdp",), False, False): 1e9}
    assert times("v5e-256", gathered).links == pytest.approx(255 / 256 / 200)
    assert times("v5e-16", gathered).links == pytest.approx(15 / 16 / 100)
    assert times("v4-512", gathered).links == pytest.approx(255 / 256 / 300)


@pytest.mark.parametrize("name", ["v5e-16", "v5e-256", "v4-512"])
def test_hops_are_the_mean_of_the_shortest_ways(name):
    found = topologies.find(name)
    chips = [(a, b, c) for a in range(16) for b in range(16) for c in range(16)]
    sides = [*found.sides, 1][:3]
    chips = [chip for chip in chips if all(x < side for x, side in zip(chip, sides))]
    starts, total = chips[:: len(chips) // 16], 0.0
    for start in starts:
        distance, waiting = {start: 0}, [start]
        for chip in waiting:  # breadth first
            for axis, side in enumerate(sides):
                for step in (-1, 1):
                    to = [*chip]
                    to[axis] += step
                    if found.is_torus:
                        to[axis] %= side
                    if 0 <= to[axis] < side and (*to,) not in distance:
                        distance[*to,] = distance[chip] + 1
                        waiting.append((*to,))
        total += sum(distance.values()) / len(chips)
    assert found.hops == pytest.approx(total / len(starts))


def test_computation_hides_all_but_loops_optimizer_and_one_layer():
    size = 50e9 * 4 / 6  # a second on the network of four nodes
    hidden = times("h100-4x8", {GRADIENT: size})
    assert (hidden.network, hidden.exposed) == (pytest.approx(1), pytest.approx(1 - 3 / 4))
    assert hidden.hidden == pytest.approx(3 / 4)
    for place in ((True, False), (False, True)):
        assert times("h100-4x8", {(*GRADIENT[:2], *place): size}).exposed == pytest.approx(1)
    assert times("h100-4x8", {GRADIENT: size}, seconds=9).exposed == 0


def test_a_stack_has_its_layers_and_what_is_outside_of_them():
    def costs(plain, recurrent):
        total = 100 + 10 * plain + 7 * recurrent
        return Costs(total, 1.0, 3 * total, {GRADIENT: total} | {("all-gather",): 5})

    known = [costs(*layers) for layers in scaling.LAYERS]
    assert scaling.stack(known, 22, 2) == costs(22, 2)
    assert scaling.stack(known, 13, 0) == costs(13, 0)


def test_a_batch_changes_computation_and_activations_alone():
    moved = "all-to-all", ("fsdp",), False, False
    found = scaling.with_rows(Costs(11.0, 1.0, 0.0, {GRADIENT: 4, moved: 6}), 0.5)
    assert found == Costs(6.0, 1.0, 0.0, {GRADIENT: 4, moved: 3})


def test_the_step_that_is_compiled_has_the_layers_and_batch_it_is_named_for():
    bindings = Step("any.gin", "h100-4x8", 3, 2, 4).bindings
    assert "BlockRecurrentTransformer.num_layers = 5" in bindings
    assert "BlockRecurrentTransformer.recurrent_layers = (2, 3)" in bindings
    assert f"Trainer.tokens_per_step = {32 * 4 * 4096}" in bindings


def test_steps_of_the_file_are_not_compiled_again(tmp_path, monkeypatch):
    file = tmp_path / "compiled.jsonl"
    made = []

    def measure(experiment, topology):
        made.append(topology.name)
        return {"milliseconds": 1.0}

    monkeypatch.setattr(scaling.slices, "measure", measure)
    monkeypatch.setattr(scaling.Configuration, "experiment", lambda self: None)
    monkeypatch.setattr(
        scaling.slices, "planned", lambda name: contextlib.nullcontext(topologies.find(name))
    )
    steps = [Step("a.gin", "h100-8", *layers, 4) for layers in scaling.LAYERS]
    first = list(scaling.compiled(steps[:2], str(file)))
    again = list(scaling.compiled(steps, str(file)))
    assert made == ["h100-8"] * 3 and again[:2] == [json.loads(json.dumps(row)) for row in first]
