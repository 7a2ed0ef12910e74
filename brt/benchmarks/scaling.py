"""Time of collectives on clusters, estimated from compiled steps of few layers.

Bytes of layers, the vocabulary and activations are those of the compiled step, per parameter for
other models. A collective takes the bytes that a device must send, divided by the published
bandwidth of its links or network.
"""

import functools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from brt.benchmarks import slices, topologies
from brt.benchmarks.gpus import COMPILER_OPTIONS, Gpus
from brt.benchmarks.hlo import BYTES
from brt.benchmarks.hlo_costs import KINDS, Collective, axes_of
from brt.benchmarks.topologies import Target
from brt.experiment import Configuration
from brt.reporting.drawing.plots import Line, Plot, image
from brt.storage.csv_text import csv_text
from brt.storage.replaced_files import replace_file

SEGMENT, BATCH = 4096, 131_072
"""Tokens of a batch element and of the published batch."""
SIZES = {
    "150 M": "configs/pg19_rec_fixed_skip.gin",
    "650 M": "configs/pg19_size_650m_rec.gin",
    "1.3 B": "configs/pg19_size_1300m_rec.gin",
}
STACKS = {
    "150 M": {"Slide": (13, 0), "Rec": (11, 1)},
    "650 M": {"Slide": (26, 0), "Rec": (22, 2)},
    "1.3 B": {"Slide": (26, 0), "Rec": (22, 2)},
}
"""Plain and recurrent layers of each model."""
COMPILED_LAYERS = 2, 1
"""Plain and recurrent layers of the compiled steps."""
SAME_WIDTH = {"650 M": "150 M"}
"""The size whose compiled steps another one takes; the compiler divides parts of another width
differently.
"""
CLUSTERS = {
    "v5e-16": ("v5e-16", 2),
    "v5e-256": ("v5e-256", 2),
    "4xv5e-256": ("4xv5e-256", 2),
    "v4-512": ("v4-512", 2),
    "h100-8": ("h100-8", 4),
    "h100-4x8": ("h100-4x8", 4),
    "h100-32x8": ("h100-4x8", 4),
}
"""The cluster whose compiled step each takes, and batch elements of a device. Several nodes
exchange parts of a sum, as large for any number of nodes.
"""
STRONG = ("h100-8", "h100-2x8", "h100-4x8", "v5e-16")
"""Clusters for which the published batch has enough batch elements."""
LANES = 128
"""Numbers of the last axis of an array that a TPU's compiler has reshaped."""
SHARES = {"h100": 0.42, "v4": 0.49, "v5e": 0.52}
"""Of the chip's peak, in computation with kernels: estimates for `pg19_slide_13l`
(docs/benchmarks/gpu_compiler.md, tpu_compiler.md)."""
LAYERS, VOCABULARY, ACTIVATIONS, FLAT = "layers", "vocabulary", "activations", "flat"
NOTHING_HIDDEN = "share of computation, nothing hidden"
DRAWN = {"h100": "H100", "v5e": "v5e"}
STATES = {"weak": "batch elements a device constant", "strong": "batch constant"}


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
        ]


class Counts(NamedTuple):
    """Parameters of a model, and its floating-point operations for a token of a step."""

    layers: int
    vocabulary: int
    width: int
    flops: float


@functools.cache
def counts(config: str, plain: int, recurrent: int) -> Counts:
    step = Step(config, "h100", plain, recurrent, 32)
    experiment = Configuration([config], step.bindings).experiment()
    model: Any = experiment.model
    entries = model.vocabulary_size
    shapes = [x.shape for x in jax.tree.leaves(experiment.abstract_params)]
    vocabulary = sum(math.prod(shape) for shape in shapes if entries in shape)
    whole = sum(map(math.prod, shapes))
    return Counts(whole - vocabulary, vocabulary, model.width, 3 * model.flops_per_token())


def exchanges(
    costs: Iterable[Collective], mesh: Mapping[str, int], entries: int
) -> list[dict[str, Any]]:
    """Returns {"kind", "axes", "in_loops", "of", "bytes"} of a step's collectives.

    mesh: sizes of its axes. axes: those along which devices exchange data. entries: of the
    vocabulary. of: "layers", "vocabulary", "activations", or "flat" where the compiler joined
    arrays.
    """
    sums: dict[tuple, float] = {}
    for each in costs:
        axes = axes_of(each.groups, mesh)
        sizes = [math.prod(shape) * BYTES.get(kind, 0) for kind, shape in each.arrays]
        for (kind, shape), size in zip(each.arrays, sizes, strict=True):
            if each.kind == "all-to-all" or kind[0] in "psu":
                of = ACTIVATIONS
            elif entries in shape or entries / LANES in shape:
                of = VOCABULARY
            else:
                of = FLAT if len(shape) == 1 and size > 2**18 else LAYERS
            key = each.kind, axes, bool(each.loops), of
            part = each.bytes * each.times * size / sum(sizes)
            sums[key] = sums.get(key, 0.0) + part
    names = "kind", "axes", "in_loops", "of", "bytes"
    return [dict(zip(names, (*key, size), strict=True)) for key, size in sums.items()]


def compiled(steps: Iterable[Step], file: str) -> Iterator[list[dict[str, Any]]]:
    """Yields `exchanges` of each step.

    file: JSON lines; steps that it has are not compiled again, and others are added.
    """
    known = {}
    if os.path.exists(file):
        with open(file, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.endswith("\n")]  # not cut short
        known = {Step(*row["step"]): row["exchanges"] for row in rows}
    for step in steps:
        if step not in known:
            print(f"compiling {step}", flush=True)
            known[step] = compile_step(step)
            rows = [{"step": step, "exchanges": found} for step, found in known.items()]
            content = "".join(json.dumps(row) + "\n" for row in rows).encode()
            replace_file(Path(file).parent, Path(file).name, content)
        yield known[step]


def compile_step(step: Step) -> list[dict[str, Any]]:
    with slices.planned(step.topology) as target:
        experiment = Configuration([step.config], step.bindings).experiment()
        mesh = slices.slice_mesh(experiment, target)
        options = COMPILER_OPTIONS if isinstance(target, Gpus) else None
        with jax.set_mesh(mesh):
            program = slices.trace_step(experiment, mesh).lower().compile(options)
    return exchanges(slices.collectives(program), mesh.shape, experiment.model.vocabulary_size)


class Exchange(NamedTuple):
    """Bytes of a device and step, of collectives of a kind over the same axes of the mesh."""

    kind: str
    axes: tuple[str, ...]
    in_loops: bool
    bytes: float


def of_model(
    found: Sequence[Mapping[str, Any]], old: Counts, new: Counts, rows: float = 1
) -> list[Exchange]:
    """Returns the exchanges of a model, from those of another one.

    rows: batch elements of a device, divided by those of the other. Joined arrays over the data
    axis are the parts of sums that were scattered before.
    """
    factors = {
        LAYERS: new.layers / old.layers,
        VOCABULARY: new.vocabulary / old.vocabulary,
        ACTIVATIONS: rows * new.width / old.width,
    }

    def total(kind, axes, *of):
        every = (each for each in found if (each["kind"], (*each["axes"],)) == (kind, axes))
        return sum(each["bytes"] for each in every if each["of"] in of)

    scattered, summed = ("reduce-scatter", ("fsdp",)), ("all-reduce", ("data",))
    share = total(*scattered, VOCABULARY) / (total(*scattered, LAYERS, VOCABULARY) or 1)
    joined = total(*summed, FLAT)
    entries = share * total(*summed, LAYERS, VOCABULARY, FLAT) - total(*summed, VOCABULARY)
    share = min(max(entries, 0.0) / joined, 1.0) if joined else 0.0
    factors["sums"] = share * factors[VOCABULARY] + (1 - share) * factors[LAYERS]
    sums: dict[tuple[str, tuple[str, ...], bool], float] = {}
    for each in found:
        key = each["kind"], (*each["axes"],), each["in_loops"]
        of = "sums" if each["of"] == FLAT and key[1] == ("data",) else each["of"]
        factor = factors.get(of, factors[LAYERS])
        sums[key] = sums.get(key, 0.0) + factor * each["bytes"]
    return [Exchange(*key, size) for key, size in sums.items()]


def sent(kind: str, size: float, devices: int) -> float:
    """Returns the bytes that each device of a group must send at least.

    size: of operands or results of a device, whichever are more (`hlo_costs.Collective`).
    """
    return (2 if kind == "all-reduce" else 1) * size * (devices - 1) / devices


class Times(NamedTuple):
    """Seconds of a device and step, estimates.

    links, network: of collectives inside of a slice or node, and between them. exposed: the part of
    both that computation cannot hide: in loops, except exchanges with neighbours, which overlap
    with products, and the excess over the computation of all layers but one. network_bytes:
    exchanged between slices or nodes.
    """

    computation: float
    links: float
    network: float
    exposed: float
    network_bytes: float

    @property
    def hidden(self) -> float:
        both = self.links + self.network
        return 1 - self.exposed / both if both else 1.0

    def share(self, waiting: float) -> float:
        return self.computation / (self.computation + waiting)


def times(found: Iterable[Exchange], target: Target, computation: float, layers: int) -> Times:
    """Returns the times of collectives on a (slices, devices of a slice, 1) mesh.

    computation: seconds. Over both axes slices exchange parts of a sum that each has computed.
    """
    number, inside = _sizes(target)
    on_links = on_network = exposed = crossing = 0.0
    for kind, axes, in_loops, size in found:
        within = over = 0.0
        if "fsdp" in axes:
            hops = target.hops if kind == "all-to-all" else 1
            within = sent(kind, size, inside) * hops / target.link_bytes
        if "data" in axes and number > 1:
            part = size / inside if "fsdp" in axes else size
            crossing += part
            over = sent(kind, part, number) / target.chip.network
        on_links, on_network = on_links + within, on_network + over
        exposed += (within + over) * (in_loops and kind != "collective-permute")
    rest = on_links + on_network - exposed
    exposed += max(0.0, rest - computation * (layers - 1) / layers)
    return Times(computation, on_links, on_network, exposed, crossing)


def _sizes(target):
    slices_ = target.nodes if isinstance(target, Gpus) else target.slices
    return slices_, target.devices // slices_


def figures(name: str, size: str, system: str, rows: int, file: str) -> dict[str, Any]:
    """Returns a row of the table; rows: batch elements a device."""
    base, base_rows = CLUSTERS.get(name, CLUSTERS["h100-4x8"])
    of, stack, target = SAME_WIDTH.get(size, size), STACKS[size][system], topologies.find(name)
    (known,) = compiled([Step(SIZES[of], base, *COMPILED_LAYERS, base_rows)], file)
    old, new = counts(SIZES[of], *COMPILED_LAYERS), counts(SIZES[size], *stack)
    number, inside = _sizes(target)
    found = of_model(known, old, new, rows / base_rows)
    flops = new.flops * SEGMENT * rows
    computation = flops / (SHARES[target.kind] * target.chip.peak_flops)
    taken = times(found, target, computation, sum(stack))
    mib = dict.fromkeys(KINDS[:5], 0.0)
    for each in found:
        mib[each.kind] += each.bytes / 2**20
    return {
        "model": f"{system} {size}",
        "devices": name,
        "number": target.devices,
        "mesh": f"{number} x {inside} x 1",
        "bytes": "compiled" if (size, name) == (of, base) else f"derived from {of} on {base}",
        "batch elements a device": rows,
        "computation ms": 1000 * computation,
        **{f"{kind} MiB": size for kind, size in mib.items()},
        "in loops MiB": sum(each.bytes for each in found if each.in_loops) / 2**20,
        "between slices or nodes MiB": taken.network_bytes / 2**20,
        "links ms": 1000 * taken.links,
        "network ms": 1000 * taken.network,
        "can be hidden": taken.hidden,
        "share of computation, all hidden that can be": taken.share(taken.exposed),
        NOTHING_HIDDEN: taken.share(taken.links + taken.network),
        "tokens per second": flops / new.flops * target.devices / (computation + taken.exposed),
    }


def rows_of(file: str) -> list[dict[str, Any]]:
    """Returns the rows of all models and clusters; compiles steps that the file lacks."""
    models = [(size, system) for size, systems in STACKS.items() for system in systems]
    rows = [
        {"scaling": "weak"} | figures(name, *model, rows, file)
        for model in models
        for name, (_, rows) in CLUSTERS.items()
    ]
    for name in STRONG:
        batch = BATCH // SEGMENT // topologies.find(name).devices
        rows += [{"scaling": "strong"} | figures(name, *model, batch, file) for model in models]
    return rows


def show(folder: str) -> list[dict[str, Any]]:
    """Writes `rows_of` as a table and a figure to the folder, which caches compiled steps."""
    os.makedirs(folder, exist_ok=True)
    rows = rows_of(os.path.join(folder, "compiled.jsonl"))
    print(*markdown(rows), sep="\n")
    with open(os.path.join(folder, "scaling.csv"), "w", encoding="utf-8") as out:
        out.write(as_csv(rows))
    with open(os.path.join(folder, "scaling.png"), "wb") as picture:
        picture.write(image(plot(rows)))
    return rows


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    def cell(value):
        return f"{value:.4g}" if isinstance(value, float) else value

    return csv_text([list(rows[0]), *(map(cell, row.values()) for row in rows)])


SHOWN = {
    "devices": ("devices", ""),
    **{f"{kind} MiB": (kind, ",.0f") for kind in KINDS[:5]},
    "between slices or nodes MiB": ("network", ",.0f"),
    "computation ms": ("computation, ms", ",.0f"),
    "links ms": ("links, ms", ".1f"),
    "network ms": ("network, ms", ".1f"),
    NOTHING_HIDDEN: ("computation, of the step", ".0%"),
}
"""Columns of the documentation's table: titles and forms."""


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a table of weak scaling of the published recurrent model."""
    found = [row for row in rows if (row["scaling"], row["model"]) == ("weak", "Rec 150 M")]
    cells = [[f"{row[name]:{form}}" for name, (_, form) in SHOWN.items()] for row in found]
    for row, cell in zip(found, cells, strict=True):
        cell[0] += "" if row["bytes"] == "compiled" else r"\*"
    titles = [title for title, _ in SHOWN.values()]
    lines = [f"| {' | '.join(line)} |".replace("%", " %") for line in (titles, *cells)]
    return [lines[0], f"|---|{'---:|' * (len(SHOWN) - 1)}", *lines[1:]]


def plot(rows: Sequence[Mapping[str, Any]]) -> Plot:
    """Plots the share of computation in a step by the number of devices."""
    lines = []
    for kind, shown in DRAWN.items():
        for size in SIZES:
            for scaling, state in STATES.items():
                found = [
                    (row["number"], 100 * row[NOTHING_HIDDEN])
                    for row in rows
                    if (row["scaling"], row["model"]) == (scaling, f"Rec {size}")
                    and kind in row["devices"]
                ]
                x, y = zip(*sorted(found))
                if len(found) > 1:
                    lines.append(Line(f"{size}, {shown}", x, y, "points", state=state))
    label = "computation, % of the step"
    return Plot("scaling", "Estimates by compilation", "", "devices", label, lines, log_x=True)
