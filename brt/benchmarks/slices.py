"""Memory, time and collectives of a training step that is compiled for TPUs or GPUs without one.

Cycles of TPUs are libtpu's estimates, without waiting for other chips and for the host; the time of
GPUs is a roofline (brt.benchmarks.gpu_steps).
"""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gin
import jax

from brt.benchmarks import gpu_steps, hlo, hlo_costs, kernels, memory_budget, topologies
from brt.benchmarks.gpus import COMPILER_OPTIONS, Gpus
from brt.benchmarks.planned_cudnn import cudnn_of
from brt.benchmarks.slice_tables import details, heading, line, table
from brt.benchmarks.steps import stem
from brt.benchmarks.topologies import GIB, Target, Topology, devices_of
from brt.experiment import Configuration, Experiment
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import system_and_size
from brt.run.description import describe, settings
from brt.training.records.metrics import compiled_bytes
from brt.training.sharding import abstract_mesh, make_mesh, shardings
from brt.training.time_mesh import divided

ESTIMATES = (
    "Cycles, and what follows from them, are the compiler's estimates: nothing was run. "
    f"{kernels.NOTE}"
)

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_USED = re.compile(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds)")
"""How much a step that does not fit needs, in either of the compiler's two sentences."""


def slice_mesh(experiment: Experiment, topology: Target) -> jax.sharding.Mesh:
    if isinstance(topology, Gpus):  # whose compiler calls all nodes one slice
        abstract_mesh(*experiment.trainer.mesh, topology.devices, topology.nodes)
    mesh = make_mesh(*experiment.trainer.mesh, devices=devices_of(topology))
    mesh = divided(experiment.trainer, experiment.model, mesh)
    experiment.check_mesh(mesh)
    return mesh


def trace_step(experiment: Experiment, mesh: jax.sharding.Mesh) -> jax.stages.Traced:
    batch = experiment.abstract_batch()
    batch = jax.tree.map(
        lambda x, sharding: x.update(sharding=sharding), batch, shardings(batch, mesh)
    )
    with jax.set_mesh(mesh):
        return experiment.jit_step(mesh).trace(experiment.abstract_state(mesh), batch)


def measure(experiment: Experiment, topology: Target) -> dict[str, Any]:
    """Compiles the training step of an experiment for a slice, and its Pallas kernels alone.

    Returns figures of one chip and one step, for JSON. A step that does not fit (`fits`) on TPUs
    has only its `hbm_bytes`. `cycles_by_scope`, `cycles_by_part` and `kernel_cycles` add up to
    `cycles`. GPUs have the figures of `gpu_steps.step_figures`.
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
            options = COMPILER_OPTIONS if isinstance(topology, Gpus) else None
            compiled = traced.lower().compile(options)
    except RuntimeError as error:
        used = _USED.search(str(error))
        if not used or "memory space vmem" in str(error):  # of a kernel, whatever the batch
            raise
        need = float(used[1]) * _UNITS[used[2]]
        return figures | {"fits": False, "hbm_bytes": int(need)} | _seconds(begun)
    figures |= _seconds(begun)
    if isinstance(topology, Gpus):
        return figures | gpu_steps.step_figures(compiled, figures["flops"], topology)
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
    """Adds `ratio`, time per token to the baseline's; None if either has no estimate."""
    (base,) = (row for row in rows if row["name"] == baseline)

    def ratio(row):
        if not (row.get("milliseconds") and base.get("milliseconds")):
            return None
        tokens = row["tokens_per_step"] / base["tokens_per_step"]
        return row["milliseconds"] / base["milliseconds"] / tokens

    return [{"name": row["name"], "ratio": ratio(row)} | row for row in rows]


@contextlib.contextmanager
def planned(name: str) -> Iterator[Target]:
    """Yields the slice or GPUs of a name, for which experiments are built inside of the context."""
    topology = topologies.find(name)
    topologies.check_compiler(topology)
    topologies.use_no_device()
    with cudnn_of(topology.chip) if isinstance(topology, Gpus) else contextlib.nullcontext():
        yield topology


def dry_run(name: str) -> Experiment:
    with planned(name) as topology:
        experiment = Experiment.from_gin()
        print(describe(experiment, slice_mesh(experiment, topology)), flush=True)
        figures = measure(experiment, topology)
    print(line(figures, topology), flush=True)
    if isinstance(topology, Gpus):
        print(details({"name": gpu_steps.ESTIMATES} | figures), flush=True)
    print(settings(experiment), flush=True)
    return experiment


def largest_batch(
    configuration: Configuration, topology: Target, known: dict[str, Any]
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
    rows = []
    with planned(name) as topology:
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
    note = gpu_steps.ESTIMATES if isinstance(topology, Gpus) else ESTIMATES
    print(f"\n{heading(topology)}\n{note} Ratio to {baseline}.")
    print(table(rows))
    for row in rows:
        print(f"\n{details(row)}")
    heads = {"topology": topology.name, "friendly_name": topology.friendly, "baseline": baseline}
    return {**heads, "note": note, "slices": rows}
