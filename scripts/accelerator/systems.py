"""Training steps of the systems of Table 1 and of a gated delta memory, timed on a device."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from brt.benchmarks import hlo, hlo_costs, traces
from brt.benchmarks.timing.random_inputs import random_batch, random_state
from brt.experiment import Configuration, Experiment
from brt.reporting.gin_text import ROOT, write_gin
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import Scale
from brt.training.records.metrics import compiled_bytes
from brt.training.sharding import make_mesh, shardings

SWEEP = ROOT / "configs" / "sweeps" / "table_1.txt"
BASELINE = "pg19_slide_13l"
GATED_DELTA = "gated_delta"
FIRST = (
    *(BASELINE, "pg19_rec_fixed_skip", "pg19_feedback_fixed_skip", "pg19_xl_2048"),
    *(GATED_DELTA, "pg19_memorizing_64k"),
)
"""Measured first."""


class System(NamedTuple):
    """A row of the table: the name of its config, and all its gin lines."""

    name: str
    bindings: list[str]

    def experiment(self, *further: str) -> Experiment:
        return Configuration(bindings=self.bindings).experiment(further)


def systems(scale: Scale, names: Sequence[str] = (), bindings: Sequence[str] = ()) -> list[System]:
    """Returns the named systems (all without names) at a scale, the most important first."""
    entries = read_sweep(SWEEP, scale, None, bindings, None)
    found = {
        entry.name: System(entry.name, write_gin(entry.settings).splitlines()) for entry in entries
    }
    # In the layer with states in Table 1, added to the layers of the baseline.
    lines = "BlockRecurrentTransformer.memories = ((@GatedDeltaMemory, (-3,)),)"
    found[GATED_DELTA] = System(GATED_DELTA, [*found[BASELINE].bindings, lines])
    wanted = [Path(name).name.removesuffix(".gin") for name in names] or list(found)
    for name in wanted:
        if name not in found:
            raise ValueError(f"--systems = {name} is no row of Table 1: take {', '.join(found)}.")
    order = [name for name in FIRST if name in wanted]
    return [found[name] for name in [*order, *(name for name in wanted if name not in order)]]


class Timed(NamedTuple):
    """Median seconds of a step, and the bytes that XLA plans for it.

    parts: seconds of a traced step by part (`attention`, `feed_forward`, ...), as far as the
    trace names operations.
    """

    rows: int
    tokens: int
    seconds: float
    compile_seconds: float
    peak_bytes: int | None
    parts: dict[str, float]


def time_step(experiment: Experiment, seconds: float, least: int = 3) -> Timed:
    """Compiles a training step and runs it for some seconds, at least `least` times."""
    mesh = make_mesh(experiment.trainer.mesh)
    experiment.check_mesh(mesh)
    with jax.set_mesh(mesh):
        state = random_state(experiment)
        state = jax.device_put(state, shardings(state, mesh))
        batch = random_batch(experiment)
        batch = jax.device_put(batch, shardings(batch, mesh))
        begun = time.perf_counter()
        step = experiment.jit_step(mesh).lower(state, batch).compile()
        compile_seconds = time.perf_counter() - begun
        for _ in range(2):
            state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
        times: list[float] = []
        while len(times) < least or sum(times) < seconds:
            begun = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready(metrics)
            times.append(time.perf_counter() - begun)
        parts = traced_parts(step, state, batch)
    trainer = experiment.trainer
    return Timed(
        trainer.rows,
        trainer.tokens_per_step,
        float(np.median(times)),
        compile_seconds,
        compiled_bytes(step),
        parts,
    )


def traced_parts(step: jax.stages.Compiled, state: Any, batch: Any) -> dict[str, float]:
    """Returns seconds of one step by part, the longest first; empty if nothing was traced."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options):
            jax.block_until_ready(step(state, batch))
        events = traces.newest_events(folder)
    times = traces.scope_times(events, hlo.parse(step.as_text() or ""))
    parts: dict[str, float] = {}
    for scope, seconds in times.seconds.items():
        part = hlo_costs.part(scope)
        parts[part] = parts.get(part, 0.0) + seconds
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
