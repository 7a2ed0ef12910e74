"""Evaluation speed with a memory or with a window for every token (Transformer-XL, Table 7).

The vanilla model (Al-Rfou et al. 2018: learned positions in every layer, no memory) processes a
window of M tokens for each prediction. Seconds are CPU time on a CPU.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brt.benchmarks.tables import Column, aligned
from brt.experiment import Configuration, Experiment
from brt.host.progress import Progress

LENGTHS = (100, 200, 400, 800, 1800, 2800, 3800)
"""The last four are those of Table 7."""
PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Ratios of Table 7, on one GPU."""
SEGMENTS = 4


COLUMNS = (
    Column("memory_seconds", "memory, ms/token", "{:.4f}", 1e-3),
    Column("vanilla_seconds", "vanilla, ms/token", "{:.2f}", 1e-3),
    Column("ratio", "ratio", "{:,.0f}"),
    Column("published", "paper's ratio", "{:,.0f}"),
)


def measure(
    build: Callable[[Sequence[str]], Experiment], lengths: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Times both models of a config at each attention length; figures are medians over rounds.

    build: from further bindings to an experiment with a `TransformerXL`.
    rounds: vanilla tokens timed at the longest length, twice as many at half the length.
    """
    if not lengths or min(lengths) < 1 or rounds < 1:
        raise ValueError(
            f"--attention_lengths = {list(lengths)} and --rounds = {rounds} must be at least 1."
        )
    progress = Progress("attention lengths", len(lengths))
    rows = []
    for length in lengths:
        rows.append(_measure(build, length, rounds * max(lengths) // length))
        progress.update(len(rows))
    progress.close()
    return rows


def _measure(build, length, rounds):
    with_memory = build([f"TransformerXL.memory_length = {length}"])
    segment_length = with_memory.evaluated_length
    vanilla = [
        "TransformerXL.memory_length = 0",
        "TransformerXL.same_length = False",
        'TransformerXL.encoding = "learned"',
        f"TransformerXL.position_rows = {length}",
    ]
    segment, caches = _scoring(with_memory, segment_length, segment_length)
    window, nothing = _scoring(build(vanilla), length, 1)
    filled = -(-length // segment_length)
    for number in range(filled):  # until the memory is full
        caches = segment(number, caches)
    window(0, nothing)
    now = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    pairs = []
    for number in range(rounds):
        begun = now()
        window(number, nothing)
        between = now()
        for again in range(SEGMENTS):
            caches = segment(filled + SEGMENTS * number + again, caches)
        seconds = now() - between
        pairs.append((seconds / (SEGMENTS * segment_length), between - begun))
    ratio = statistics.median(slow / fast for fast, slow in pairs)
    memory, vanilla = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "attention_length": length,
        "segment_length": segment_length,
        "rounds": rounds,
        "memory_seconds": memory,
        "vanilla_seconds": vanilla,
        "ratio": ratio,
    }


def _scoring(experiment, length, scored):
    params, size = experiment.init_params(), experiment.model.vocabulary_size

    @jax.jit
    def score(params, tokens_BT, caches):
        model = experiment.bind(params).for_segments(length)
        x_BTD, caches, _ = model.stack(model.embed(tokens_BT[:, :-1]), caches)
        return caches, model.token_losses(x_BTD[:, -scored:], tokens_BT[:, -scored:])[0]

    def run(number, caches):
        tokens_BT = np.random.default_rng(number).integers(0, size, (1, length + 1))
        caches, nats_BT = score(params, jnp.asarray(tokens_BT, jnp.int32), caches)
        jax.block_until_ready(nats_BT)
        return caches

    return run, experiment.bind(params).init_caches(1)


def show(configuration: Configuration, lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    rows = measure(configuration.experiment, lengths, rounds)
    load = os.getloadavg()[0]
    print(
        f"\n{configuration.files[0]}, one row, {jax.devices()[0].device_kind}, load {load:.1f}, "
        f"{rounds} rounds at the longest; by attention length"
    )
    lengths = [row["attention_length"] for row in rows]
    lines = [
        {"name": f"{length:,}", "published": PUBLISHED.get(length), **row}
        for length, row in zip(lengths, rows)
    ]
    print("\n".join(aligned(lines, COLUMNS)))
    return rows
