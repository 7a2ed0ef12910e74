"""Memory, time and collectives of a training step, compiled for absent TPUs or GPUs.

TPU cycles are libtpu's estimates, without waiting for other chips and the host; GPU time is a
roofline (brt.benchmarks.gpu_steps).
"""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gin
import jax
import numpy as np
from jax.sharding import AxisType

from brt.benchmarks import gpu_steps, hlo, hlo_costs, kernels, memory_budget, topologies
from brt.benchmarks.gpus import COMPILER_OPTIONS, Card, Gpus
from brt.benchmarks.planned_cudnn import cudnn_of
from brt.benchmarks.slice_tables import across_line, details, heading, line, table
from brt.benchmarks.timing.steps import stem
from brt.benchmarks.topologies import GIB, Target, devices_of
from brt.experiment import Configuration, Experiment
from brt.models.mesh_axes import parts
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import system_and_size
from brt.run.checks import check_memory, warn_of_warmup
from brt.run.description import describe, settings
from brt.training.over_time.mesh import divided
from brt.training.records.metrics import compiled_bytes
from brt.training.sharding import abstract_mesh, make_mesh, nodes_and_devices, shardings, slice_grid

ESTIMATES = (
    "Cycles, and what follows from them, are the compiler's estimates: nothing was run. "
    f"{kernels.NOTE}"
)

CPU_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiles fast: the step is counted, not run."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_USED = re.compile(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds)")
"""The need of a step that does not fit, in either of the compiler's two sentences."""


def slice_mesh(experiment: Experiment, topology: Target) -> jax.sharding.Mesh:
    devices, shape = devices_of(topology), experiment.trainer.mesh
    mesh = make_mesh(shape, devices, processes_are_slices=isinstance(topology, Gpus))
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
    """Compiles an experiment's training step for a slice, and its Pallas kernels alone. Returns
    figures of one chip and one step, for JSON. A step that does not fit (`fits`) on TPUs
    has only its `hbm_bytes`. `cycles_by_scope`, `cycles_by_part` and `kernel_cycles` add up to
    `cycles`. GPUs have the figures of `gpu_steps.program_figures`.
    """
    mesh = slice_mesh(experiment, topology)
    chip = topology.chip
    trainer = experiment.trainer
    figures: dict[str, Any] = {
        "tokens_per_step": trainer.tokens_per_step,
        "rows": trainer.rows,
        "rows_per_chip": trainer.rows / parts("B", mesh.shape),
        "mesh": dict(mesh.shape),
        "hbm_available": chip.hbm_bytes,
        "flops": 3 * experiment.model.flops_per_token() * trainer.tokens_per_step / mesh.size,
    }
    slices = topology.nodes if isinstance(topology, Gpus) else topology.slices
    begun = time.perf_counter(), time.process_time()
    try:
        traced = trace_step(experiment, mesh)
        with jax.set_mesh(mesh):
            options = COMPILER_OPTIONS if isinstance(topology, Gpus) else None
            compiled = traced.lower().compile(options)
    except RuntimeError as error:
        used = _USED.search(str(error))
        if "Couldn't find output tile sizes" in str(error):
            raise ValueError(
                f"XLA finds no form of a product for {topology.name} by itself: set "
                'XLA_FLAGS="--xla_gpu_enable_triton_gemm=false", so that cuBLAS computes it.'
            ) from error
        if not used or "memory space vmem" in str(error):  # of a kernel, whatever the batch
            raise
        need = float(used[1]) * _UNITS[used[2]]
        return figures | {"fits": False, "hbm_bytes": int(need)} | _seconds(begun)
    figures |= _seconds(begun)
    bundles = {} if isinstance(topology, Gpus) else kernels.kernel_cycles(traced.jaxpr, topology)
    figures |= step_figures(compiled, figures["flops"], topology, bundles)
    if slices > 1:
        grid = slice_grid(trainer.mesh, mesh.size, slices)
        figures["across_slices"] = _across_slices(compiled, grid)
    return figures


def collectives(compiled: jax.stages.Compiled) -> list[hlo_costs.Collective]:
    return hlo_costs.collectives(hlo.parse(compiled.as_text() or ""))


def _across_slices(compiled, grid):
    return hlo_costs.across_slices(collectives(compiled), grid.ravel().tolist())


def _seconds(begun):
    wall, processor = begun
    return {
        "compile_seconds": time.perf_counter() - wall,
        "compile_cpu_seconds": time.process_time() - processor,
    }


def step_figures(
    compiled: jax.stages.Compiled, flops: float, topology: Target, bundles: dict[str, int]
) -> dict[str, Any]:
    """Returns the figures of a compiled step.

    flops: of one chip, by the model's count. bundles: cycles of a TPU's Pallas kernels, by name.
    """
    chip, size = topology.chip, compiled_bytes(compiled)
    plan: Any = compiled.memory_analysis()
    program = hlo.parse(compiled.as_text() or "")
    figures: dict[str, Any] = {
        "fits": not isinstance(chip, Card) or (size or 0) <= chip.usable_bytes,
        "hbm_bytes": size,
        "argument_bytes": plan.argument_size_in_bytes,
        "temporary_bytes": plan.temp_size_in_bytes,
    }
    if isinstance(chip, Card):
        return figures | gpu_steps.program_figures(program, flops, chip)
    cycles = hlo_costs.estimated_cycles(program)
    total = cycles.total + sum(bundles.values())
    seconds = total / chip.clock
    return figures | {
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
    base = next(row for row in rows if row["name"] == baseline)

    def ratio(row):
        if not (row.get("milliseconds") and base.get("milliseconds")):
            return None
        tokens = row["tokens_per_step"] / base["tokens_per_step"]
        return row["milliseconds"] / base["milliseconds"] / tokens

    return [{"name": row["name"], "ratio": ratio(row)} | row for row in rows]


@contextlib.contextmanager
def planned(name: str) -> Iterator[Target]:
    """Yields the slice or GPUs of a name, for which experiments are built in the context."""
    topology = topologies.find(name)
    topologies.check_compiler(topology)
    topologies.use_no_device()
    with contextlib.ExitStack() as stack:
        if isinstance(topology, Gpus):
            stack.enter_context(cudnn_of(topology.chip))
        # Of one device: building and checks ask for the platform.
        stack.enter_context(jax.set_mesh(make_mesh((1, 1), devices=devices_of(topology)[:1])))
        yield topology


def dry_run(name: str | None, devices: str | None = None) -> Experiment:
    """Prints the needs of a step on a slice or GPUs, or on N or NODESxN devices of any kind."""
    if name is None:
        return _dry_run_on_any(*nodes_and_devices(devices or "1"))
    with planned(name) as topology:
        experiment = Experiment.from_gin()
        print(describe(experiment, slice_mesh(experiment, topology)), flush=True)
        figures = measure(experiment, topology)
    print(line(figures, topology), flush=True)
    if "across_slices" in figures and not isinstance(topology, Gpus):
        print(across_line(figures["across_slices"]), flush=True)
    if isinstance(topology, Gpus):
        print(details({"name": gpu_steps.ESTIMATES} | figures), flush=True)
    print(settings(experiment), flush=True)
    return experiment


def _dry_run_on_any(nodes, count):
    topologies.use_no_device(count)
    experiment = Experiment.from_gin()
    shape = experiment.trainer.mesh
    mesh = divided(experiment.trainer, experiment.model, abstract_mesh(shape, count, nodes))
    experiment.check_mesh(mesh)
    check_memory(experiment)
    warn_of_warmup(experiment)
    print(describe(experiment, mesh), settings(experiment), sep="\n", flush=True)
    if nodes > 1 and jax.device_count() == count:
        print("Compiling on the CPU, for the traffic between nodes ...", flush=True)
        grid = np.array(jax.devices()).reshape([*mesh.shape.values()])
        on_cpus = jax.sharding.Mesh(grid, mesh.axis_names, (AxisType.Auto,) * grid.ndim)
        with jax.set_mesh(on_cpus):
            compiled = trace_step(experiment, on_cpus).lower().compile(CPU_OPTIONS)
        found = _across_slices(compiled, slice_grid(shape, count, nodes))
        print(f"{across_line(found)} (as the CPU's compiler divides the step)", flush=True)
    return experiment


def largest_batch(
    configuration: Configuration, topology: Target, known: dict[str, Any]
) -> dict[str, Any]:
    """Returns the figures of the largest step that compiles.

    known: figures of one batch size.
    """
    trainer = configuration.experiment().trainer
    tokens = trainer.tokens_per_step // trainer.rows
    groups = parts("B", slice_mesh(configuration.experiment(), topology).shape)
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
    configurations: Sequence[Configuration], name: str, baseline: str | None, largest: bool = False
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
