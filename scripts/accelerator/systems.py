"""The systems of Table 1 and a gated delta memory, and figures of their steps and decoding."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.benchmarks import hlo, hlo_costs, traces
from brt.benchmarks.timing.random_inputs import random_batch, random_state
from brt.experiment import Configuration, Experiment
from brt.models.model import LanguageModel
from brt.reporting.gin_text import ROOT, write_gin
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import Scale
from brt.training.records.metrics import compiled_bytes, speed
from brt.training.sharding import make_mesh, shardings

SWEEP = ROOT / "configs" / "sweeps" / "table_1.txt"
BASELINE = "pg19_slide_13l"
GATED_DELTA = "gated_delta"
FIRST = (
    *(BASELINE, "pg19_rec_fixed_skip", "pg19_feedback_fixed_skip", "pg19_xl_2048"),
    *(GATED_DELTA, "pg19_memorizing_64k"),
)
"""Measured first."""
LEAST_STEPS = 3


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
    return [found[name] for name in dict.fromkeys([*FIRST, *wanted]) if name in wanted]


def time_step(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Compiles a training step and runs it for some seconds, at least `LEAST_STEPS` times.

    Returns:
        The median of `step_seconds`, `tokens_per_second`, `mfu` of known devices, the `peak_bytes`
        that XLA plans, and `parts`: seconds of a traced step by part (`attention`, ...).
    """
    mesh, trainer = make_mesh(experiment.trainer.mesh), experiment.trainer
    experiment.check_mesh(mesh)
    with jax.set_mesh(mesh):
        inputs = random_state(experiment), random_batch(experiment)
        state, batch = jax.device_put(inputs, shardings(inputs, mesh))
        begun = time.perf_counter()
        step = experiment.jit_step(mesh).lower(state, batch).compile()
        compile_seconds = time.perf_counter() - begun
        for _ in range(2):
            state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
        times: list[float] = []
        while len(times) < LEAST_STEPS or sum(times) < seconds:
            begun = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready(metrics)
            times.append(time.perf_counter() - begun)
        parts = traced_parts(step, state, batch)
    flops, peak = experiment.model.flops_per_token(), compiled_bytes(step)
    figures = speed(trainer.tokens_per_step, float(np.median(times)), flops, peak)
    return {
        "rows": trainer.rows,
        "tokens": trainer.tokens_per_step,
        **{name.removeprefix("perf/"): value for name, value in figures.items()},
        "compile_seconds": compile_seconds,
        "parts": parts,
    }


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


def time_decoding(
    experiment: Experiment, rows: int, tokens: int, rounds: int = 3
) -> dict[str, float]:
    """Times greedy decoding of `tokens` in a row by `rows` batch elements on the first device.

    Returns the median of `step_seconds`, of one token of all batch elements, and so on.
    """
    params = jax.device_put(random_state(experiment).params, jax.devices()[0])
    graph, state = nnx.split(cast(LanguageModel, experiment.bind(params)))

    def write(state, tokens_B, caches):
        model = nnx.merge(graph, state)

        def token(carry, _):
            tokens_B, caches = carry
            logits_BV, caches = model.decode(tokens_B, caches)
            return (jnp.argmax(logits_BV, axis=-1).astype(jnp.int32), caches), None

        return jax.lax.scan(token, (tokens_B, caches), None, length=tokens)[0]

    def begin(state):
        model = nnx.merge(graph, state)
        return model.begin_decoding(model.init_caches(rows))

    tokens_B, caches = jnp.zeros(rows, jnp.int32), jax.jit(begin)(state)
    begun = time.perf_counter()
    compiled = jax.jit(write, donate_argnums=2).lower(state, tokens_B, caches).compile()
    compile_seconds = time.perf_counter() - begun
    times = []
    for _ in range(1 + rounds):
        begun = time.perf_counter()
        tokens_B, caches = jax.block_until_ready(compiled(state, tokens_B, caches))
        times.append((time.perf_counter() - begun) / tokens)
    seconds = float(np.median(times[1:]))
    return {
        "step_seconds": seconds,
        "tokens_per_second": rows / seconds,
        "compile_seconds": compile_seconds,
    }
