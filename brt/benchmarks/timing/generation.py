"""Speed of reading and writing at two positions of a document, alternating in one process."""

import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from brt.data.streams.batch import Segment
from brt.evaluation.segment_reader import read_segment
from brt.experiment import Configuration, Experiment
from brt.generation.generator import Generator
from brt.generation.sampling import Sampling
from brt.host.progress import Progress
from brt.token_ids import BEGIN

WINDOWS = 5
PARTS = 20


def measure_generation(
    experiment: Experiment, positions: Sequence[int], tokens: int
) -> dict[str, Any]:
    """Times a model with random parameters on one document of random tokens.

    positions: two, rising, where streams continue from memory files.
    tokens: written by each stream, in chunks that alternate.
    """
    length = experiment.evaluated_length
    generator = Generator.of_experiment(experiment, experiment.init_params(), "The config")
    book = np.random.default_rng(0).integers(0, generator.vocabulary.size, positions[1])
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, str(position)) for position in positions]
        memory = generator.read([book[: positions[0]]])
        generator.save(files[0], memory)
        figures, memory = _reading(generator, length, memory, book[positions[0] :])
        generator.save(files[1], memory)
        figures |= _writing(generator, files, tokens)
        figures["file_bytes"] = [os.path.getsize(file) for file in files]
    window_seconds = _window(generator, memory)
    return figures | {
        "window_seconds": window_seconds,
        "window_to_decode": window_seconds / figures["decode_seconds"][1],
    }


def _reading(generator, segment_length, memory, tokens):
    def score(params, segment, caches):
        model = nnx.merge(nnx.graphdef(generator.model), params)
        caches, x_BTD, _ = read_segment(model, segment, caches)
        return caches, model.token_losses(x_BTD, segment.targets_BT)[0]

    step = jax.jit(score, donate_argnums=2)
    weights_BT = np.ones((1, segment_length), np.float32)
    caches = jax.device_put(generator.model.init_caches(1), generator.device)

    def evaluate(part, caches):
        for begin in range(0, len(part), segment_length):
            targets_BT = part[None, begin : begin + segment_length].astype(np.int32)
            inputs_BT = np.append(np.full((1, 1), BEGIN), targets_BT[:, :-1], axis=1)
            inputs_BT = inputs_BT.astype(np.int32)
            segment = Segment(inputs_BT, targets_BT, weights_BT, np.zeros(1, bool))
            caches, nats_BT = step(generator.params, segment, caches)
            np.asarray(nats_BT)
        return caches

    size = max(len(tokens) // PARTS // segment_length, 1) * segment_length
    caches = evaluate(tokens[:segment_length], caches)
    generator.read([tokens[: 2 * segment_length]], memory)
    progress, seconds = Progress("read and evaluated, tokens", len(tokens)), []
    for begin in range(0, len(tokens), size):
        part = tokens[begin : begin + size]
        begun = time.perf_counter()
        memory = jax.block_until_ready(generator.read([part], memory))
        middle = time.perf_counter()
        if len(part) == size:  # whole segments, for evaluation
            caches = evaluate(part, caches)
            seconds.append((middle - begun, time.perf_counter() - middle))
        progress.update(begin + len(part))
    progress.close()
    prefill, evaluation = np.median(seconds, axis=0)
    return {
        "prefill_tokens_per_second": size / prefill,
        "evaluation_tokens_per_second": size / evaluation,
        "prefill_to_evaluation": float(np.median([b / a for a, b in seconds])),
    }, memory


def _writing(generator, files, tokens):
    memories = [generator.load(file) for file in files]
    writings = [
        generator.write(memory, tokens + generator.chunk, Sampling(), seed=row)
        for row, memory in enumerate(memories)
    ]
    for writing in writings:  # the first chunk compiles
        next(writing)
    before = generator.decode_loop._cache_size()
    seconds: list[list[float]] = [[], []]
    progress, done = Progress("written twice, tokens", tokens), 0
    while done < tokens:
        done += min(generator.chunk, tokens - done)
        for row, writing in enumerate(writings):
            begun, count = time.perf_counter(), len(writing.tokens[0])
            next(writing)
            elapsed = time.perf_counter() - begun
            seconds[row].append(elapsed / (len(writing.tokens[0]) - count))
        progress.update(done)
    progress.close()
    medians = [float(np.median(x)) for x in seconds]
    return {
        "decode_seconds": medians,
        "decode_ratio": medians[1] / medians[0],
        "programs_before": before,
        "programs_after": generator.decode_loop._cache_size(),
        "cache_bytes": [writing.memory.bytes for writing in writings],
    }


def _window(generator, memory):
    model, graph = generator.model, nnx.graphdef(generator.model)

    @jax.jit
    def window(params, tokens_BW, caches):
        model = nnx.merge(graph, params)
        return model.logits(model.stack(model.embed(tokens_BW), caches)[0][:, -1])

    tokens_BW, caches = np.asarray(memory.recent_BP), model.init_caches(1)
    jax.block_until_ready(window(generator.params, tokens_BW, caches))
    seconds = []
    for _ in range(WINDOWS):
        begun = time.perf_counter()
        jax.block_until_ready(window(generator.params, tokens_BW, caches))
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


def show(configuration: Configuration, positions: Sequence[int], tokens: int) -> dict[str, Any]:
    experiment = configuration.experiment()
    if len(positions) != 2 or not 0 <= positions[0] < positions[1] or tokens < 1:
        raise ValueError(
            f"--positions = {positions} must be two rising numbers, and --written = {tokens} at "
            "least 1."
        )
    if positions[1] - positions[0] < 2 * experiment.evaluated_length:
        raise ValueError("--positions must lie two segments apart or more, to time reading.")
    figures = measure_generation(experiment, positions, tokens)
    load = os.getloadavg()[0]
    print(f"\n{configuration.files[0]}, one row, {jax.devices()[0].device_kind}, load {load:.1f}")
    lines = {
        "reading to evaluating, tokens/s": "{prefill_to_evaluation:.2f} "
        "({prefill_tokens_per_second:,.0f} to {evaluation_tokens_per_second:,.0f})",
        "writing a token at each position, s": "{decode_seconds[0]:.5f}, {decode_seconds[1]:.5f}",
        "ratio of the two": "{decode_ratio:.3f}",
        "recomputing the window for each, times slower": "{window_to_decode:.1f}",
        "programs before and after": "{programs_before}, {programs_after}",
        "bytes of caches": "{cache_bytes[0]:,} and {cache_bytes[1]:,}",
        "bytes of memory files": "{file_bytes[0]:,} and {file_bytes[1]:,}",
    }
    for name, form in lines.items():
        print(f"{name:<52} {form.format(**figures)}")
    return figures
