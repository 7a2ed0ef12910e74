"""Step times of several configs, which alternate."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import jax
import numpy as np

from brt import config
from brt.benchmarks.tables import Column, aligned
from brt.benchmarks.timing.random_inputs import random_batch
from brt.data.streams.batch import Batch
from brt.experiment import Configuration
from brt.host.progress import Progress
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import system_and_size
from brt.training.over_time.mesh import divided
from brt.training.records.metrics import compiled_bytes, device_peak
from brt.training.sharding import make_mesh, shardings


class Candidate(NamedTuple):
    """A config, compiled: `step(state, batch) -> (state, metrics)`."""

    name: str
    step: Callable[[Any, Batch], tuple[Any, Any]]
    state: Any
    batch: Batch
    facts: dict


def build(configuration: Configuration) -> Candidate:
    experiment = configuration.experiment()
    trainer = experiment.trainer
    mesh = divided(trainer, experiment.model, make_mesh(trainer.mesh))
    experiment.check_mesh(mesh)
    with jax.set_mesh(mesh):
        state = experiment.jit_init(mesh)()
        batch = jax.device_put(
            random_batch(experiment), shardings(experiment.abstract_batch(), mesh)
        )
        begun = time.perf_counter()
        step = experiment.jit_step(mesh).lower(state, batch).compile()
        seconds = time.perf_counter() - begun
    system, size = system_and_size(resolved(read_gin(gin.operative_config_str())))
    facts = {
        "system": system,
        "size": size,
        "compile_seconds": seconds,
        "peak_bytes": compiled_bytes(step),
        "flops_per_token": 3 * experiment.model.flops_per_token(),
        "tokens_per_step": trainer.tokens_per_step,
        "rows": trainer.rows,
        "segment_length": trainer.segment_length,
        "segments_per_step": trainer.segments_per_step,
    }
    return Candidate(stem(configuration.files[0]), step, state, batch, facts)


def time_steps(candidates: Sequence[Candidate], rounds: int) -> np.ndarray:
    """Returns seconds of each step, (rounds, candidates), after one untimed round."""
    states = [candidate.state for candidate in candidates]
    seconds = np.zeros((rounds, len(candidates)))
    progress = Progress("rounds", rounds)
    for number in range(-1, rounds):
        for i, candidate in enumerate(candidates):
            begun = time.perf_counter()
            states[i], metrics = candidate.step(states[i], candidate.batch)
            jax.block_until_ready(metrics)
            if number >= 0:
                seconds[number, i] = time.perf_counter() - begun
        progress.update(max(number + 1, 0))
    progress.close()
    return seconds


def table(
    candidates: Sequence[Candidate], seconds: np.ndarray, baseline: str
) -> list[dict[str, Any]]:
    """Returns the figures of each config; seconds as from `time_steps`, ratios to `baseline`."""
    base = [candidate.name for candidate in candidates].index(baseline)
    rows = []
    for i, candidate in enumerate(candidates):
        facts, median = candidate.facts, float(np.median(seconds[:, i]))
        tokens_per_second = facts["tokens_per_step"] / median
        row = {
            "name": candidate.name,
            # Ratios within a round, because the machine's other work varies between rounds.
            "ratio": float(np.median(seconds[:, i] / seconds[:, base])),
            "step_seconds": median,
            "tokens_per_second": tokens_per_second,
            **facts,
        }
        if peak := device_peak():
            devices = jax.device_count()
            row["mfu"] = facts["flops_per_token"] * tokens_per_second / (peak * devices)
        rows.append(row)
    return rows


COLUMNS = (
    Column("ratio", "ratio", "{:.3f}"),
    Column("step_seconds", "step s", "{:.3f}"),
    Column("tokens_per_second", "tokens/s", "{:,.0f}"),
    Column("compile_seconds", "compile s", "{:.1f}"),
    Column("peak_bytes", "peak MiB", "{:,.0f}", 2**20),
    Column("flops_per_token", "MFLOP/token", "{:,.1f}", 1e6),
    Column("mfu", "MFU", "{:.1%}"),
)


def compare(
    configurations: Sequence[Configuration], rounds: int, baseline: str | None = None
) -> dict[str, Any]:
    candidates = []
    for configuration in configurations:
        print(f"compiling {configuration.files[0]}", flush=True)
        candidates.append(build(configuration))
    baseline = baseline or candidates[0].name
    budgets = {candidate.facts["tokens_per_step"] for candidate in candidates}
    if len(budgets) > 1:
        raise ValueError(
            f"The configs take {sorted(budgets)} tokens per step, and only equal budgets can be "
            "compared: add --gin.Trainer.tokens_per_step=NUMBER."
        )
    rows = table(candidates, time_steps(candidates, rounds), baseline)
    device = jax.devices()[0].device_kind
    print(
        f"\n{jax.device_count()} x {device}, {budgets.pop():,} tokens per step, median of "
        f"{rounds} interleaved steps, ratio to {baseline}"
    )
    columns = [column for column in COLUMNS if column.key in rows[0]]
    print("\n".join(aligned(rows, columns)))
    heads = {"device": device, "devices": jax.device_count(), "baseline": baseline}
    return {**heads, "configs": rows}


def stem(file: str) -> str:
    parts = config.split_files(file)
    return "+".join(os.path.splitext(os.path.basename(part))[0] for part in parts)
