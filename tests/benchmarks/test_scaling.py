"""Time of collectives on clusters: bytes of a program, other models, and times computed here."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from paths import ROOT
from tiny_run import mesh_of

from brt.benchmarks import hlo, hlo_costs, scaling, topologies
from brt.benchmarks.scaling import Counts, Exchange, Step


@pytest.mark.parametrize(("shape", "of"), [((8, 1000), "vocabulary"), ((8, 999), "layers")])
def test_a_sum_over_an_axis_has_the_bytes_of_its_array(shape, of):
    mesh = mesh_of(4, 2, 1)
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))

    def summed(x):
        return (x[:, None] * x[:, :7, None]).sum(0)

    step = jax.jit(summed, in_shardings=rows, out_shardings=whole)
    compiled = step.lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile()
    found = hlo_costs.collectives(hlo.parse(compiled.as_text()))
    assert scaling.exchanges(found, mesh.shape, entries=1000) == [
        {
            "kind": "all-reduce",
            "axes": ("data",),
            "in_loops": False,
            "of": of,
            "bytes": 4 * 7 * shape[1],
        }
    ]


@pytest.mark.parametrize(
    ("kind", "share"), [("all-reduce", 2 * 7 / 8), ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8)]
)
def test_a_device_sends_what_a_ring_of_eight_makes_it_send(kind, share):
    # In a ring an eighth of the array goes over each link in each of 7 steps, of a sum in 14.
    assert scaling.sent(kind, 800.0, 8) == pytest.approx(800 * share)


def times(name, *found, computation=1.0, layers=4):
    return scaling.times(found, topologies.find(name), computation, layers)


def test_times_are_bytes_over_the_published_bandwidth():
    gathered = Exchange("all-gather", ("fsdp",), False, 450e9)
    assert times("h100-8", gathered).links == pytest.approx(7 / 8)
    assert times("h100-8", gathered).network == 0
    # 3.125 GB a second for a chip of v5e: 2 x 3/4 of the array.
    crossing = times("4xv5e-256", Exchange("all-reduce", ("data",), False, 3.125e9))
    assert (crossing.links, crossing.network) == (0, pytest.approx(1.5))
    assert crossing.network_bytes == 3.125e9
    # Over both axes the nodes exchange an eighth of the sum for each card.
    both = times("h100-4x8", Exchange("all-reduce", ("data", "fsdp"), False, 8 * 50e9))
    assert both.links == pytest.approx(2 * 7 / 8 * 400 / 450)
    assert both.network == pytest.approx(2 * 3 / 4)


def test_a_slice_without_a_torus_has_half_of_the_links():
    gathered = Exchange("all-gather", ("fsdp",), False, 1e9)
    assert times("v5e-256", gathered).links == pytest.approx(255 / 256 / 200)
    assert times("v5e-16", gathered).links == pytest.approx(15 / 16 / 100)
    assert times("v4-512", gathered).links == pytest.approx(255 / 256 / 300)


@pytest.mark.parametrize("name", ["v5e-16", "v5e-256", "v4-512"])
def test_hops_are_the_mean_of_the_shortest_ways(name):
    found = topologies.find(name)
    sides = [*found.sides, 1][:3]
    chips = [(a, b, c) for a in range(sides[0]) for b in range(sides[1]) for c in range(sides[2])]
    total = 0
    for start in chips:
        distance, waiting = {start: 0}, [start]
        for chip in waiting:  # breadth first
            for axis, side in enumerate(sides):
                for step in (-1, 1):
                    at = chip[axis] + step
                    at = at % side if found.is_torus else at
                    to = (*chip[:axis], at, *chip[axis + 1 :])
                    if 0 <= at < side and to not in distance:
                        distance[to] = distance[chip] + 1
                        waiting.append(to)
        total += sum(distance.values())
    assert found.hops == pytest.approx(total / len(chips) ** 2)


def test_computation_hides_all_but_loops_and_one_layer():
    size = 50e9 * 4 / 6  # a second between four nodes
    hidden = times("h100-4x8", Exchange("all-reduce", ("data",), False, size))
    assert (hidden.network, hidden.exposed) == (pytest.approx(1), pytest.approx(1 - 3 / 4))
    assert hidden.hidden == pytest.approx(3 / 4)
    assert hidden.share(hidden.exposed) == pytest.approx(0.8)
    looped = Exchange("all-reduce", ("data",), True, size)
    assert times("h100-4x8", looped).exposed == pytest.approx(1)
    unlooped = looped._replace(in_loops=False)
    assert times("h100-4x8", unlooped, computation=9.0).exposed == 0


def test_exchanges_follow_from_parameters_width_and_batch():
    found = [
        dict(kind=kind, axes=axes, in_loops=False, of=of, bytes=size)
        for kind, axes, of, size in [
            ("all-gather", ("fsdp",), "layers", 100),
            ("all-gather", ("fsdp",), "vocabulary", 10),
            ("all-to-all", ("fsdp",), "activations", 6),
            ("reduce-scatter", ("fsdp",), "layers", 30),
            ("reduce-scatter", ("fsdp",), "vocabulary", 10),
            ("all-reduce", ("data",), "flat", 8),
            ("all-reduce", ("data", "fsdp"), "flat", 1),
        ]
    ]
    old, new = Counts(1000, 50, 64, 1.0), Counts(5000, 100, 128, 1.0)
    assert scaling.of_model(found, old, old) == [
        Exchange("all-gather", ("fsdp",), False, 110),
        Exchange("all-to-all", ("fsdp",), False, 6),
        Exchange("reduce-scatter", ("fsdp",), False, 40),
        Exchange("all-reduce", ("data",), False, 8),
        Exchange("all-reduce", ("data", "fsdp"), False, 1),
    ]
    sizes = [each.bytes for each in scaling.of_model(found, old, new, rows=0.5)]
    # Of the scattered sums the layers' are 30 of 40, and so of the eight bytes 6.
    assert sizes == pytest.approx([520, 6, 170, 5 * 6 + 2 * 2, 5])
    # And if two bytes of the vocabulary are not joined, of ten bytes 7.5.
    found.append(found[5] | {"of": "vocabulary", "bytes": 2})
    assert scaling.of_model(found, old, new)[3].bytes == pytest.approx(5 * 7.5 + 2 * 2.5)


def test_the_compiled_step_has_the_named_layers_and_batch():
    bindings = Step("any.gin", "h100-4x8", 3, 2, 4).bindings
    assert "BlockRecurrentTransformer.num_layers = 5" in bindings
    assert "BlockRecurrentTransformer.recurrent_layers = (2, 3)" in bindings
    assert f"Trainer.tokens_per_step = {32 * 4 * 4096}" in bindings


def test_steps_of_the_file_are_not_compiled_again(tmp_path, monkeypatch):
    made = []

    def compile_step(step):
        made.append(step)
        return [{"kind": "all-gather", "axes": ("fsdp",), "bytes": step.rows}]

    monkeypatch.setattr(scaling, "compile_step", compile_step)
    steps = [Step("a.gin", "h100-8", 2, 1, rows) for rows in (1, 2, 3)]
    path = tmp_path / "compiled.jsonl"
    first = list(scaling.compiled(steps[:2], str(path)))
    again = list(scaling.compiled(steps, str(path)))
    assert made == steps
    assert json.loads(json.dumps(again[:2])) == json.loads(json.dumps(first))
    written = path.read_text()
    path.write_text(written[:-9])
    list(scaling.compiled(steps, str(path)))
    assert made == [*steps, steps[2]] and path.read_text() == written


def test_a_new_folder_is_made_for_the_table_and_the_figure(tmp_path, monkeypatch):
    shown, new = ROOT / "docs" / "benchmarks" / "scaling", tmp_path / "new"
    known = [json.loads(line) for line in (shown / "compiled.jsonl").read_text().splitlines()]
    found = {Step(*row["step"]): row["exchanges"] for row in known}
    monkeypatch.setattr(scaling, "compile_step", found.get)
    monkeypatch.setattr(scaling, "image", lambda *_: b"")
    scaling.show(str(new))
    assert (new / "scaling.csv").read_bytes() == (shown / "scaling.csv").read_bytes()
    assert (new / "scaling.png").exists()


def test_the_page_has_the_table_of_the_compiled_steps(monkeypatch):
    monkeypatch.delattr(scaling, "compile_step")
    folder = ROOT / "docs" / "benchmarks" / "scaling"
    rows = scaling.rows_of(str(folder / "compiled.jsonl"))
    assert scaling.as_csv(rows) == (folder / "scaling.csv").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert "\n".join(scaling.markdown(rows)) in page
