"""Memory, cycles and collectives of a training step that libtpu compiles for a slice without a TPU.

Cycles are the compiler's estimates, without waiting for other chips and for the host.
"""

import re
import time
from collections.abc import Sequence
from typing import Any

import gin
import jax

from brt.benchmarks import hlo, hlo_costs, kernels, memory_budget, topologies
from brt.benchmarks.steps import stem
from brt.benchmarks.tables import Column, aligned
from brt.benchmarks.topologies import GIB, Topology, devices_of
from brt.experiment import Configuration, Experiment
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import system_and_size
from brt.run.description import describe, settings
from brt.training.records.metrics import compiled_bytes
from brt.training.sharding import make_mesh, shardings

ESTIMATES = (
    "Cycles, and what follows from them, are the compiler's estimates: nothing was run. "
    f"{kernels.NOTE}"
)

SHOWN = 0.02  # loops with this share of the cycles
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_USED = re.compile(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds)")
"""How much a step that does not fit needs, in either of the compiler's two sentences."""


def slice_mesh(experiment: Experiment, topology: Topology) -> jax.sharding.Mesh:
    mesh = make_mesh(*experiment.trainer.mesh, devices=devices_of(topology))
    experiment.check_mesh(mesh)
    return mesh


def trace_step(experiment: Experiment, mesh: jax.sharding.Mesh) -> jax.stages.Traced:
    batch = experiment.abstract_batch()
    batch = jax.tree.map(
        lambda x, sharding: x.update(sharding=sharding), batch, shardings(batch, mesh)
    )
    with jax.set_mesh(mesh):
        return experiment.jit_step(mesh).trace(experiment.abstract_state(mesh), batch)


def measure(experiment: Experiment, topology: Topology) -> dict[str, Any]:
    """Compiles the training step of an experiment for a slice, and its Pallas kernels alone.

    Returns figures of one chip and one step, for JSON. A step that does not fit (`fits`) has only
    its `hbm_bytes`. `cycles_by_scope`, `cycles_by_part` and `kernel_cycles` add up to `cycles`.
    """
    mesh = slice_mesh(experiment, topology)
    chip = topology.chip
    trainer = experiment.trainer
    figures: dict[str, Any] = {
        "tokens_per_step": trainer.tokens_per_step,
        "rows": trainer.rows,
        "rows_per_chip": trainer.rows / mesh.shape["data"],
        "mesh": dict(mesh.shape),
        "hbm_available": chip.hbm_bytes,
        "flops": 3 * experiment.model.flops_per_token() * trainer.tokens_per_step / mesh.size,
    }
    begun = time.perf_counter(), time.process_time()
    try:
        traced = trace_step(experiment, mesh)
        with jax.set_mesh(mesh):
            compiled = traced.lower().compile()
    except RuntimeError as error:
        used = _USED.search(str(error))
        if not used or "memory space vmem" in str(error):  # of a kernel, whatever the batch
            raise
        need = float(used[1]) * _UNITS[used[2]]
        return figures | {"fits": False, "hbm_bytes": int(need)} | _seconds(begun)
    figures |= _seconds(begun)
    bundles = kernels.kernel_cycles(traced.jaxpr, topology)
    return figures | {"fits": True} | step_figures(compiled, figures["flops"], topology, bundles)


def _seconds(begun):
    wall, processor = begun
    return {
        "compile_seconds": time.perf_counter() - wall,
        "compile_cpu_seconds": time.process_time() - processor,
    }


def step_figures(
    compiled: jax.stages.Compiled, flops: float, topology: Topology, bundles: dict[str, int]
) -> dict[str, Any]:
    """Returns the figures of a compiled step.

    flops: of one chip, by the model's count. bundles: cycles of Pallas kernels, by name.
    """
    chip = topology.chip
    plan: Any = compiled.memory_analysis()
    program = hlo.parse(compiled.as_text() or "")
    cycles = hlo_costs.estimated_cycles(program)
    total = cycles.total + sum(bundles.values())
    seconds = total / chip.clock
    return {
        "hbm_bytes": compiled_bytes(compiled),
        "argument_bytes": plan.argument_size_in_bytes,
        "temporary_bytes": plan.temp_size_in_bytes,
        "compiler_flops": (compiled.cost_analysis() or {}).get("flops"),
        "cycles": total,
        "kernel_cycles": sum(bundles.values()),
        "cycles_by_kernel": bundles,
        "milliseconds": 1000 * seconds,
        "share_of_peak": flops / (seconds * chip.peak_flops) if seconds else 0.0,
        "cycles_by_part": cycles.by_part,
        "cycles_by_scope": cycles.by_scope,
        "loops": [loop._asdict() for loop in cycles.loops],
        "collectives": hlo_costs.collective_sums(hlo_costs.collectives(program)),
    }


def with_ratios(rows: Sequence[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """Adds `ratio`, cycles per token to the baseline's; None if either has no estimate."""
    (base,) = (row for row in rows if row["name"] == baseline)

    def ratio(row):
        if not (row["fits"] and base["fits"] and base["cycles"]):
            return None
        tokens = row["tokens_per_step"] / base["tokens_per_step"]
        return row["cycles"] / base["cycles"] / tokens

    return [{"name": row["name"], "ratio": ratio(row)} | row for row in rows]


def line(row: dict[str, Any], topology: Topology) -> str:
    needed = f"{row['hbm_bytes'] / GIB:.2f} of {row['hbm_available'] / GIB:g} GiB of HBM a device"
    if not row["fits"]:
        return f"{topology.friendly} ({topology.name}): does not fit, {needed}"
    return (
        f"{topology.friendly} ({topology.name}): {needed}, {row['milliseconds']:.1f} ms a step, "
        f"{row['share_of_peak']:.1%} of peak (the compiler's estimates), compiled in "
        f"{row['compile_seconds']:.0f} s"
    )


COLUMNS = (
    Column("ratio", "ratio", "{:.3f}"),
    Column("hbm_bytes", "HBM GiB", "{:.2f}", GIB),
    Column("hbm_available", "of GiB", "{:g}", GIB),
    Column("rows_per_chip", "rows/device", "{:g}"),
    Column("cycles", "M cycles", "{:.2f}", 1e6),
    Column("kernel_cycles", "in kernels", "{:.2f}", 1e6),
    Column("milliseconds", "ms", "{:.1f}"),
    Column("share_of_peak", "of peak", "{:.1%}"),
    Column("flops", "TFLOP", "{:.2f}", 1e12),
    Column("compile_seconds", "compile s", "{:.0f}"),
    Column("compile_cpu_seconds", "CPU s", "{:.0f}"),
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    title, *lines = aligned(rows, COLUMNS)
    notes = ("" if row["fits"] else "   does not fit" for row in rows)
    return "\n".join([title, *(line + note for line, note in zip(lines, notes))])


def details(row: dict[str, Any]) -> str:
    if not row["fits"]:
        return ""
    total = max(row["cycles"], 1)
    shares = ", ".join(
        f"{part.replace('_', '-')} {cycles / total:.1%}"
        for part, cycles in row["cycles_by_part"].items()
    )
    lines = [row["name"], f"  cycles by part: {shares}"]
    for loop in row["loops"]:
        if loop["cycles"] < SHOWN * total:
            continue
        direction = "backward" if loop["backward"] else "forward"
        trips = "?" if loop["trips"] is None else loop["trips"]
        lines.append(
            f"  loop in {loop['scope'] or 'no scope'}, {direction}: {trips} x "
            f"{loop['body_cycles']:,} cycles, {loop['cycles'] / total:.1%}"
        )
    for place, title in (("in_loops", "inside of loops"), ("outside", "outside of loops")):
        kinds = row["collectives"][place]
        text = ", ".join(
            f"{entry['count']} {kind} ({entry['runs']} runs, {entry['bytes'] / 2**20:,.1f} MiB)"
            for kind, entry in kinds.items()
        )
        lines.append(f"  collectives {title}: {text or 'none'}")
    return "\n".join(lines)


def dry_run(name: str) -> Experiment:
    topology = topologies.find(name)
    topologies.check_compiler()
    topologies.use_no_device()
    experiment = Experiment.from_gin()
    print(describe(experiment, slice_mesh(experiment, topology)), flush=True)
    print(line(measure(experiment, topology), topology), flush=True)
    print(settings(experiment), flush=True)
    return experiment


def largest_batch(
    configuration: Configuration, topology: Topology, known: dict[str, Any]
) -> dict[str, Any]:
    """Returns the figures of the step with the most batch elements per chip, by compiling.

    known: figures of one batch size.
    """
    trainer = configuration.experiment().trainer
    tokens = trainer.tokens_per_step // trainer.rows
    groups = slice_mesh(configuration.experiment(), topology).shape["data"]
    tried: dict[float, dict[str, Any]] = {known["rows_per_chip"]: known}

    def bytes_of(rows):
        if rows not in tried:
            bindings = [f"Trainer.tokens_per_step = {rows * groups * tokens}"]
            tried[rows] = measure(configuration.experiment(bindings), topology)
        figures = tried[rows]
        need = f"{figures['hbm_bytes'] / GIB:.2f} GiB"
        verdict = "" if figures["fits"] else ", does not fit"
        print(f"{rows:>6} batch elements a device: {need}{verdict}", flush=True)
        return figures["hbm_bytes"] if figures["fits"] else topology.chip.hbm_bytes + 1

    found = memory_budget.longest_fitting(bytes_of, topology.chip.hbm_bytes, 1).segment_length
    return tried[max(found, 1)]


def show(
    configurations: Sequence[Configuration],
    name: str,
    baseline: str | None,
    largest: bool = False,
) -> dict[str, Any]:
    """Prints and returns the figures of each config's step on a slice.

    largest: also a row for the largest batch that fits.
    """
    topology = topologies.find(name)
    topologies.check_compiler()
    topologies.use_no_device()
    rows = []
    for configuration in configurations:
        file = configuration.files[0]
        print(f"compiling {file} for {topology.name}", flush=True)
        experiment = configuration.experiment()
        system, size = system_and_size(resolved(read_gin(gin.operative_config_str())))
        figures = measure(experiment, topology)
        rows.append({"name": stem(file), "system": system, "size": size} | figures)
        if largest:
            most = largest_batch(configuration, topology, rows[-1])
            rows.append(rows[-1] | most | {"name": f"{stem(file)}, largest batch"})
    baseline = baseline or rows[0]["name"]
    rows = with_ratios(rows, baseline)
    chip = topology.chip
    print(
        f"\n{topology.friendly} ({topology.name}): {topology.devices} devices of "
        f"{chip.hbm_bytes / GIB:g} GiB and {chip.peak_flops / 1e12:g} TFLOP/s (bfloat16), "
        f"{chip.clock / 1e9:g} GHz\n{ESTIMATES} Ratio to {baseline}."
    )
    print(table(rows))
    for row in rows:
        print(f"\n{details(row)}")
    heads = {"topology": topology.name, "friendly_name": topology.friendly, "baseline": baseline}
    return {**heads, "note": ESTIMATES, "slices": rows}
