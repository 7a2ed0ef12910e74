"""Times training steps of several configs side by side, and the input alone.

    python -m brt.benchmark --configs=FIRST.gin,SECOND.gin

    python -m brt.benchmark --input=STORE --rows=32 --segment_length=4096

    python -m brt.benchmark --generate=FILE.gin --positions=1000,100000 --written=1000

    python -m brt.benchmark --evaluation_speed=FILE.gin --attention_lengths=100,800,3800

    python -m brt.benchmark --memory_budget=16GiB --configs=FILE.gin

    python -m brt.benchmark --topology=v4-32 --configs=FIRST.gin,SECOND.gin

    python -m brt.benchmark --trace=FOLDER

The second form reads a token store, as fast as it can, and runs no model. The third reads a long
document and writes on from two places in it. The fourth sets evaluation with a memory against a
window for every token. The next two run nothing: they find the longest segments whose training step
the compiler fits into so much memory, and compile the step for a slice of TPUs with libtpu. Then
the newest trace of a run folder is read, which `brt.train --profile` wrote.

Every config takes one step in turn, over and over, so that a busy machine slows all of
them alike; what counts is the ratio to the baseline, the first config unless named.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import jax
import numpy as np
from absl import flags

from brt import command_line, config
from brt.benchmarks import evaluation_speed, slices, topologies, traces
from brt.benchmarks.evaluation_speed import LENGTHS
from brt.benchmarks.generation import measure_generation
from brt.benchmarks.input import measure_store, time_input
from brt.benchmarks.memory_budget import longest_segment, parse_bytes
from brt.benchmarks.random_inputs import random_batch
from brt.data.streams.batch import Batch
from brt.experiment import Configuration
from brt.progress import Progress
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import system_and_size
from brt.training.records.metrics import compiled_bytes, device_peak
from brt.training.sharding import make_mesh, shardings

FLAGS = flags.FLAGS
command_line.define_topology()
flags.DEFINE_list(
    "configs",
    [],
    "Configs to compare, each a gin file or SYSTEM.gin+CORPUS.gin; --gin bindings apply to all.",
)
flags.DEFINE_string("baseline", None, "Name of the config that counts as 1.00.")
flags.DEFINE_integer("rounds", 20, "Timed steps of each config.")
flags.DEFINE_string("input", None, "Time the reading of this token store, and nothing else.")
flags.DEFINE_integer("rows", 32, "Rows of a batch, for --input.")
flags.DEFINE_integer("segment_length", 4096, "Tokens of a segment, for --input.")
flags.DEFINE_string("generate", None, "Time reading and writing with the model of this config.")
flags.DEFINE_list("positions", ["1000", "100000"], "Where two streams go on, for --generate.")
flags.DEFINE_integer("written", 1000, "Tokens that each stream writes, for --generate.")
flags.DEFINE_string("evaluation_speed", None, "Time evaluation by the model of this config.")
flags.DEFINE_list(
    "attention_lengths", [*map(str, LENGTHS)], "Lengths that --evaluation_speed times."
)
flags.DEFINE_string("memory_budget", None, "Longest segments of --configs that fit: 16GiB.")
flags.DEFINE_list("same_length_bindings", [], "Bound to the segment length, for --memory_budget.")
flags.DEFINE_string("trace", None, "Sum the time of a run folder's newest trace by named scope.")
flags.DEFINE_string("json", None, "Also write the figures to this file.")


class Candidate(NamedTuple):
    """A config, compiled: `step(state, batch) -> (state, metrics)`."""

    name: str
    step: Callable[[Any, Batch], tuple[Any, Any]]
    state: Any
    batch: Batch
    facts: dict


def configured(file: str) -> Configuration:
    """Returns a config with the bindings of this command after its own."""
    return Configuration([file], FLAGS.gin_bindings, FLAGS.gin_search_paths, FLAGS.allow_imports)


def build(file: str) -> Candidate:
    """Compiles the training step of one config at once: gin will be bound anew for the next."""
    experiment = configured(file).experiment()
    mesh = make_mesh(*experiment.trainer.mesh)
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
        "tokens_per_step": experiment.trainer.tokens_per_step,
        "rows": experiment.trainer.rows,
        "segment_length": experiment.trainer.segment_length,
        "segments_per_step": experiment.trainer.segments_per_step,
    }
    return Candidate(stem(file), step, state, batch, facts)


def time_steps(candidates: Sequence[Candidate], rounds: int) -> np.ndarray:
    """Seconds of each step, (rounds, candidates), after one round to warm up."""
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
    """One dictionary of figures for each config.

    Args:
        candidates: of `build`.
        seconds: (rounds, candidates), of `time_steps`.
        baseline: the name of the candidate whose ratio is 1.
    """
    base = [candidate.name for candidate in candidates].index(baseline)
    rows = []
    for i, candidate in enumerate(candidates):
        facts, median = candidate.facts, float(np.median(seconds[:, i]))
        shape = facts["rows"], facts["segment_length"], facts["segments_per_step"]
        tokens_per_second = facts["tokens_per_step"] / median
        row = {
            "name": candidate.name,
            # Of pairs from the same round, which shared whatever else the machine was doing.
            "ratio": float(np.median(seconds[:, i] / seconds[:, base])),
            "step_seconds": median,
            "tokens_per_second": tokens_per_second,
            **facts,
            "input_tokens_per_second": time_input(*shape),
        }
        row["input_times_faster"] = row["input_tokens_per_second"] / tokens_per_second
        if peak := device_peak():
            devices = jax.device_count()
            row["mfu"] = facts["flops_per_token"] * tokens_per_second / (peak * devices)
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    columns: list[tuple[str, str, str, float]] = [
        ("ratio", "ratio", "{:.3f}", 1),
        ("step_seconds", "step s", "{:.3f}", 1),
        ("tokens_per_second", "tokens/s", "{:,.0f}", 1),
        ("compile_seconds", "compile s", "{:.1f}", 1),
        ("peak_bytes", "peak MiB", "{:,.0f}", 2**20),
        ("flops_per_token", "MFLOP/token", "{:,.1f}", 1e6),
        ("mfu", "MFU", "{:.1%}", 1),
        ("input_times_faster", "input x", "{:,.0f}", 1),
    ]
    columns = [column for column in columns if column[0] in rows[0]]
    width = max(len(row["name"]) for row in rows)
    print(" " * width, *(f"{title:>12}" for _, title, _, _ in columns))
    for row in rows:
        cells = (form.format(row[key] / unit) for key, _, form, unit in columns)
        print(f"{row['name']:<{width}}", *(f"{cell:>12}" for cell in cells))


def show_input(folder: str, rows: int, segment_length: int) -> dict[str, Any]:
    """Prints what reading one store costs, for each kind of stream."""
    print(f"{folder}, {rows} rows of {segment_length} tokens; rates are of one core's time")
    titles = "first batch s", "M tokens/s", "with ledger", "padding", "row segments"
    print(" " * 10, *(f"{title:>16}" for title in titles))
    found = measure_store(folder, rows, segment_length)
    for kind, figures in found.items():
        least, most = figures["row_segments"]
        cells = (
            f"{figures['first_batch_seconds']:.3f}",
            f"{figures['tokens_per_second'] / 1e6:,.0f}",
            f"{figures['tokens_per_second_with_ledger'] / 1e6:,.0f}",
            f"{figures['padding']:.2%}",
            f"{least:,} to {most:,}",
        )
        print(f"{kind:<10}", *(f"{cell:>16}" for cell in cells))
    return found


def show_generation(file: str, positions: Sequence[int], tokens: int) -> dict[str, Any]:
    """Prints how fast the model of a config reads and writes."""
    experiment = configured(file).experiment()
    if len(positions) != 2 or not 0 <= positions[0] < positions[1] or tokens < 1:
        raise ValueError(
            f"--positions = {positions} must be two rising numbers, and --written = {tokens} at "
            "least 1."
        )
    if positions[1] - positions[0] < 2 * experiment.trainer.segment_length:
        raise ValueError("--positions must lie two segments apart or more, to time reading.")
    found = measure_generation(experiment, positions, tokens)
    load = os.getloadavg()[0]
    print(f"\n{file}, one row, {jax.devices()[0].device_kind}, load {load:.1f}")
    first, second = (f"{position:,}" for position in positions)
    for name, text in (
        (
            "reading to evaluating, tokens/s",
            f"{found['prefill_to_evaluation']:.2f} "
            f"({found['prefill_tokens_per_second']:,.0f} to "
            f"{found['evaluation_tokens_per_second']:,.0f})",
        ),
        *(
            (f"writing from token {position}, ms/token", f"{1000 * seconds:.2f}")
            for position, seconds in zip((first, second), found["decode_seconds"])
        ),
        ("ratio of the two", f"{found['decode_ratio']:.3f}"),
        ("the window anew for each, times slower", f"{found['window_to_decode']:.1f}"),
        ("programs before and after", f"{found['programs_before']}, {found['programs_after']}"),
        ("bytes of caches", "{:,} and {:,}".format(*found["cache_bytes"])),
        ("bytes of memory files", "{:,} and {:,}".format(*found["file_bytes"])),
    ):
        print(f"{name:<42} {text}")
    return found


def show_evaluation_speed(file: str, lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Prints how much faster a memory makes evaluation, and returns the figures."""
    found = evaluation_speed.measure(configured(file).experiment, lengths, rounds)
    load = os.getloadavg()[0]
    print(
        f"\n{file}, one row, {jax.devices()[0].device_kind}, load {load:.1f}, "
        f"{rounds} rounds at the longest"
    )
    print(evaluation_speed.table(found))
    return [row._asdict() for row in found]


def show_memory_budget(files: Sequence[str], budget: int, also: Sequence[str]) -> dict[str, Any]:
    """Prints the longest segment of each config that fits, and returns the figures."""
    found = {}
    for file in files:
        print(f"{file}, training steps of at most {budget / 2**20:,.0f} MiB a device", flush=True)
        found[file] = longest_segment(configured(file).experiment, budget, also)._asdict()
    width = max(map(len, files))
    print(f"\n{'':<{width}}  longest segment  {'MiB':>10}")
    for file, (length, tried) in ((file, entry.values()) for file, entry in found.items()):
        size = f"{tried[length] / 2**20:,.1f}" if length else ""
        print(f"{file:<{width}}  {length:>15,}  {size:>10}")
    return found


def show_slices(files: Sequence[str], name: str, baseline: str | None) -> dict[str, Any]:
    """Prints what the compiler of a TPU slice says of each config's step."""
    topology = topologies.find(name)
    topologies.check_compiler()
    topologies.use_no_device()
    check_baseline(files, baseline)
    rows = []
    for file in files:
        print(f"compiling {file} for {topology.name}", flush=True)
        experiment = configured(file).experiment()
        system, size = system_and_size(resolved(read_gin(gin.operative_config_str())))
        figures = slices.measure(experiment, topology)
        rows.append({"name": stem(file), "system": system, "size": size} | figures)
    baseline = baseline or rows[0]["name"]
    rows = slices.with_ratios(rows, baseline)
    print(f"\n{slices.head(topology)}\n{slices.ESTIMATES} Ratio to {baseline}.")
    print(slices.table(rows))
    for row in rows:
        print(f"\n{slices.details(row)}")
    heads = {"topology": topology.name, "friendly_name": topology.friendly, "baseline": baseline}
    return {**heads, "note": slices.ESTIMATES, "slices": rows}


def stem(file: str) -> str:
    """Returns the name of a config: its parts' files, without folders and endings."""
    parts = config.split_files(file)
    return "+".join(os.path.splitext(os.path.basename(part))[0] for part in parts)


def check_baseline(files: Sequence[str], baseline: str | None) -> None:
    """Refuses a baseline that is none of the configs."""
    names = [stem(file) for file in files]
    if baseline and baseline not in names:
        raise ValueError(f"--baseline = {baseline}: choose one of {', '.join(names)}.")


def write_json(content: dict[str, Any]) -> None:
    """Writes the figures to the file of --json, if one is named."""
    if FLAGS.json:
        with open(FLAGS.json, "w", encoding="utf-8") as file:
            json.dump(content, file)


def main() -> None:
    if FLAGS.generate:
        positions = [int(position) for position in FLAGS.positions]
        found = show_generation(FLAGS.generate, positions, FLAGS.written)
        return write_json({"config": FLAGS.generate, "generation": found})
    if FLAGS.trace:
        times = traces.newest_times(FLAGS.trace)
        print(traces.table(times))
        return write_json({"trace": FLAGS.trace, "scopes": times._asdict()})
    if FLAGS.input:
        found = show_input(FLAGS.input, FLAGS.rows, FLAGS.segment_length)
        return write_json({"store": FLAGS.input, "input": found})
    if FLAGS.evaluation_speed:
        lengths = [int(length) for length in FLAGS.attention_lengths]
        speeds = show_evaluation_speed(FLAGS.evaluation_speed, lengths, FLAGS.rounds)
        return write_json({"config": FLAGS.evaluation_speed, "evaluation_speed": speeds})
    # Several --gin_file are one config, as for every command.
    files = FLAGS.configs or ["+".join(FLAGS.gin_file)] * bool(FLAGS.gin_file)
    if not files:
        raise ValueError("--configs is empty: name the gin files to compare, separated by commas.")
    if FLAGS.memory_budget:
        budget = parse_bytes(FLAGS.memory_budget)
        found = show_memory_budget(files, budget, FLAGS.same_length_bindings)
        return write_json({"budget": budget, "longest": found})
    if FLAGS.topology:
        return write_json(show_slices(files, FLAGS.topology, FLAGS.baseline))
    check_baseline(files, FLAGS.baseline)
    candidates = []
    for file in files:
        print(f"compiling {file}", flush=True)
        candidates.append(build(file))
    baseline = FLAGS.baseline or candidates[0].name
    budgets = {candidate.facts["tokens_per_step"] for candidate in candidates}
    if len(budgets) > 1:
        raise ValueError(
            f"The configs take {sorted(budgets)} tokens per step, and only equal budgets can be "
            "compared: add --gin.Trainer.tokens_per_step=NUMBER."
        )
    seconds = time_steps(candidates, FLAGS.rounds)
    rows = table(candidates, seconds, baseline)
    device = jax.devices()[0].device_kind
    print(
        f"\n{jax.device_count()} x {device}, {budgets.pop():,} tokens per step, median of "
        f"{FLAGS.rounds} interleaved steps, ratio to {baseline}"
    )
    show(rows)
    heads = {"device": device, "devices": jax.device_count(), "baseline": baseline}
    return write_json({**heads, "configs": rows})


if __name__ == "__main__":
    command_line.run(main)
