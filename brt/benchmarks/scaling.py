"""Time of collectives on clusters, estimated from steps of few layers compiled for them.

Bytes and times of a step are linear in its plain and recurrent layers: three small steps give those
of any stack. A collective takes the bytes that a device must send, divided by the published
bandwidth of its links or of its network. Nothing was run.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from brt.benchmarks import slices, topologies
from brt.benchmarks.gpus import Gpus
from brt.benchmarks.topologies import GIB, Target
from brt.experiment import Configuration
from brt.reporting.drawing.plots import Line, Plot, image
from brt.storage.csv_text import csv_text

SEGMENT, BATCH = 4096, 131_072
"""Tokens of a batch element and of the published batch."""
MODELS = {
    "150 M": ("configs/pg19_rec_fixed_skip.gin", {"Slide": (13, 0), "Rec": (11, 1)}),
    "650 M": ("configs/pg19_size_650m_rec.gin", {"Slide": (26, 0), "Rec": (22, 2)}),
    "1.3 B": ("configs/pg19_size_1300m_rec.gin", {"Slide": (26, 0), "Rec": (22, 2)}),
}
"""Config, and plain and recurrent layers of each model."""
LAYERS = ((2, 0), (2, 1), (3, 1))
"""Of the steps that are compiled, as above."""
CLUSTERS = {
    "v5e-16": ("v5e-16", 2),
    "v5e-256": ("v5e-256", 2),
    "4xv5e-256": ("4xv5e-256", 2),
    "v4-512": ("v4-512", 2),
    "h100-8": ("h100-4x8", 4),
    "h100-4x8": ("h100-4x8", 4),
    "h100-32x8": ("h100-4x8", 4),
}
"""The cluster whose compiled step each takes, and batch elements of a device. Nodes exchange parts
of a sum, as large for any number of nodes; one node exchanges nothing with others."""
FEWER = ("h100-8", "h100-2x8", "h100-4x8")
"""Clusters for which the published batch has enough batch elements."""


class Step(NamedTuple):
    """A step to compile: a config with other numbers of layers.

    rows: batch elements of a device.
    """

    config: str
    topology: str
    plain: int
    recurrent: int
    rows: int

    @property
    def bindings(self) -> list[str]:
        """The recurrent layers come after the first two."""
        found, first = topologies.find(self.topology), min(self.plain, 2)
        recurrent = (*range(first, first + self.recurrent),)
        return [
            f"BlockRecurrentTransformer.num_layers = {self.plain + self.recurrent}",
            f"BlockRecurrentTransformer.recurrent_layers = {recurrent}",
            f"Trainer.tokens_per_step = {SEGMENT * self.rows * found.devices}",
            *['BlockRecurrentTransformer.attention_form = "kernel"'] * isinstance(found, Gpus),
        ]


class Costs(NamedTuple):
    """Figures of a device and step.

    seconds: of computation; `fixed` of them do not depend on the batch, those of the optimizer.
    memory: bytes. bytes: those of collectives by (kind, axes, in loops, of the optimizer).
    """

    seconds: float
    fixed: float
    memory: float
    bytes: Mapping[tuple, float]

    def plus(self, other: "Costs", times: float = 1) -> "Costs":
        keys = {**self.bytes, **other.bytes}
        sums = {key: self.bytes.get(key, 0) + times * other.bytes.get(key, 0) for key in keys}
        numbers = (a + times * b for a, b in zip(self[:3], other[:3], strict=True))
        return Costs(*numbers, sums)


def costs_of(figures: Mapping[str, Any]) -> Costs:
    """Returns the costs of `slices.measure`."""
    unit = "ns" if "ns" in figures else "cycles"
    seconds = figures["milliseconds"] / 1000
    optimizer = figures[f"{unit}_by_part"].get("optimizer", 0) / figures[unit]
    exchanged = {
        (each["kind"], (*each["axes"],), each["in_loops"], each["optimizer"]): each["bytes"]
        for each in figures["exchanges"]
    }
    return Costs(seconds, optimizer * seconds, figures["hbm_bytes"], exchanged)


def stack(known: Sequence[Costs], plain: int, recurrent: int) -> Costs:
    """Returns the costs of a stack, from those of stacks of `LAYERS`."""
    two, with_cell, three = known
    one_plain, one_recurrent = three.plus(with_cell, -1), with_cell.plus(two, -1)
    return two.plus(one_plain, plain - 2).plus(one_recurrent, recurrent)


def with_rows(costs: Costs, factor: float) -> Costs:
    """Returns the costs with more or fewer batch elements a device.

    Activations are exchanged by all-to-all, and parameters by the other kinds.
    """
    sums = {key: n * (factor if key[0] == "all-to-all" else 1) for key, n in costs.bytes.items()}
    seconds = costs.fixed + factor * (costs.seconds - costs.fixed)
    return costs._replace(seconds=seconds, bytes=sums)


class Times(NamedTuple):
    """Seconds of a device and step, estimates.

    links, network: of collectives inside of a slice or node, and between them. exposed: of both,
    what computation cannot hide: in loops, of the optimizer, and what exceeds the computation of
    all layers but one.
    """

    seconds: float
    links: float
    network: float
    exposed: float
    network_bytes: float

    @property
    def hidden(self) -> float:
        both = self.links + self.network
        return 1 - self.exposed / both if both else 1.0


def sent(kind: str, size: float, devices: int) -> float:
    """Returns the bytes that each device of a group must send at least.

    size: of operands or results of a device, whichever are more (`hlo_costs.Collective`).
    """
    return (2 if kind == "all-reduce" else 1) * size * (devices - 1) / devices


def times(costs: Costs, target: Target, layers: int) -> Times:
    """Returns the times of the collectives of a (slices, devices of a slice, 1) mesh.

    Over both axes devices exchange parts of a sum that is complete inside of a slice.
    """
    slices_, inside = _sizes(target)
    links, network, hops = target.link_bytes, target.chip.network, target.hops
    on_links = on_network = exposed = crossing = 0.0
    for (kind, axes, in_loops, optimizer), size in costs.bytes.items():
        within = over = 0.0
        if "fsdp" in axes:
            within = sent(kind, size, inside) * (hops if kind == "all-to-all" else 1) / links
        if "data" in axes and slices_ > 1:
            part = size / inside if "fsdp" in axes else size
            crossing += part
            over = sent(kind, part, slices_) / network
        on_links, on_network = on_links + within, on_network + over
        exposed += (within + over) * (in_loops or optimizer)
    hideable = on_links + on_network - exposed
    exposed += max(0.0, hideable - costs.seconds * (layers - 1) / layers)
    return Times(costs.seconds, on_links, on_network, exposed, crossing)


def _sizes(target):
    slices_ = target.nodes if isinstance(target, Gpus) else target.slices
    return slices_, target.devices // slices_


def compiled(steps: Iterable[Step], file: str) -> Iterator[dict[str, Any]]:
    """Yields the figures of `slices.measure` of each step.

    file: JSON lines; steps that it has are not compiled again, and others are added.
    """
    known = {}
    if os.path.exists(file):
        with open(file, encoding="utf-8") as lines:
            known = {Step(*row["step"]): row for row in map(json.loads, lines)}
    for step in steps:
        if step not in known:
            print(f"compiling {step}", flush=True)
            with slices.planned(step.topology) as topology:
                experiment = Configuration([step.config], step.bindings).experiment()
                known[step] = {"step": step} | slices.measure(experiment, topology)
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(known[step]) + "\n")
        yield known[step]


def figures(name: str, model: str, system: str, rows: int, file: str) -> dict[str, Any]:
    """Returns a row of the table: a model on a cluster with so many batch elements a device."""
    base, base_rows = CLUSTERS.get(name, CLUSTERS["h100-4x8"])
    config, systems = MODELS[model]
    plain, recurrent = systems[system]
    steps = (Step(config, base, *layers, base_rows) for layers in LAYERS)
    known = [costs_of(row) for row in compiled(steps, file)]
    costs = with_rows(stack(known, plain, recurrent), rows / base_rows)
    target = topologies.find(name)
    found = times(costs, target, plain + recurrent)
    if _sizes(target)[0] == 1:
        costs = costs._replace(bytes={k: n for k, n in costs.bytes.items() if k[1] != ("data",)})
    mib = {kind: 0.0 for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")}
    in_loops = 0.0
    for (kind, _, looped, _), size in costs.bytes.items():
        mib[kind] = mib.get(kind, 0.0) + size / 2**20
        in_loops += looped * size / 2**20
    both = found.links + found.network
    return {
        "model": f"{system} {model}",
        "devices": name,
        "number": target.devices,
        "mesh": " x ".join(map(str, (*_sizes(target), 1))),
        "from": f"{base}, {', '.join(f'{a}+{b}' for a, b in LAYERS)} layers",
        "batch elements a device": rows,
        "GiB": costs.memory / GIB if rows == base_rows else None,
        "computation ms": 1000 * costs.seconds,
        **{f"{kind} MiB": size for kind, size in mib.items()},
        "in loops MiB": in_loops,
        "between slices or nodes MiB": found.network_bytes / 2**20,
        "links ms": 1000 * found.links,
        "network ms": 1000 * found.network,
        "can be hidden": found.hidden,
        "share of computation, all hidden that can be": _share(costs.seconds, found.exposed),
        "share of computation, nothing hidden": _share(costs.seconds, both),
        "tokens per second": SEGMENT * rows * target.devices / (costs.seconds + found.exposed),
    }


def _share(seconds, waiting):
    return seconds / (seconds + waiting)


def show(folder: str) -> list[dict[str, Any]]:
    """Compiles what the folder's `compiled.jsonl` lacks, and writes the table and the figures."""
    file = os.path.join(folder, "compiled.jsonl")
    weak = [
        figures(name, model, system, rows, file)
        for model, (_, systems) in MODELS.items()
        for system in systems
        for name, (_, rows) in CLUSTERS.items()
    ]
    strong = [
        figures(name, model, system, BATCH // SEGMENT // topologies.find(name).devices, file)
        for model, (_, systems) in MODELS.items()
        for system in systems
        for name in (*FEWER, "v5e-16")
    ]
    rows = [{"scaling": "weak"} | row for row in weak] + [{"scaling": "strong"} | r for r in strong]
    with open(os.path.join(folder, "scaling.csv"), "w", encoding="utf-8") as out:
        table = [[_cell(value) for value in row.values()] for row in rows]
        out.write(csv_text([list(rows[0]), *table]))
    for plot in (weak_plot(weak), strong_plot(strong)):
        with open(os.path.join(folder, f"{plot.name}.png"), "wb") as picture:
            picture.write(image(plot, "png"))
    return rows


def _cell(value):
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else value
