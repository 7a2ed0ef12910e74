"""Times reading a long document, alternately in the diagonal schedule and otherwise.

python scripts/time_diagonal.py --gin_file=configs/quickstart.gin --segment_length=64 --together=128

--gpu=h100 compiles the programs for that card and estimates their time, as
`python -m brt.benchmark --topology=h100` does for training steps.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from brt.benchmarks import gpu_steps, gpus, hlo
from brt.benchmarks.slices import planned, slice_mesh
from brt.experiment import Configuration, Experiment
from brt.models.diagonal import layer_groups, run_diagonally
from brt.models.model import Model

SINGLE, LOOP, DIAGONAL, LONG = "one segment a call", "loop", "diagonal", "long segments"


def single(model: Model, x_KBTD: jax.Array, caches: tuple) -> tuple[jax.Array, tuple]:
    """Runs one segment, without the diagonal schedule."""
    x_BTD, caches, _ = model.stack(x_KBTD[0], caches)
    return x_BTD[None], caches


def loop(model: Model, x_KBTD: jax.Array, caches: tuple) -> tuple[jax.Array, tuple]:
    """Runs the same segments as the diagonal schedule in a loop of one program."""

    def read(caches, x_BTD):
        x_BTD, caches, _ = model.stack(x_BTD, caches)
        return caches, x_BTD

    caches, x_KBTD = jax.lax.scan(read, caches, x_KBTD)
    return x_KBTD, caches


def scoring(graph: nnx.GraphDef, run: Callable) -> Callable:
    """Returns a function that scores (K, B, T) tokens from caches."""

    def score(params, inputs_KBT, targets_KBT, caches):
        model = nnx.merge(graph, params)
        x_KBTD, caches = run(model, jax.vmap(model.embed)(inputs_KBT), caches)
        nats_KBT = jax.lax.map(lambda x: model.token_losses(*x)[0], (x_KBTD, targets_KBT))
        return nats_KBT, caches

    return score


def estimate(experiment: Experiment, graph: nnx.GraphDef, gpu: Any, shape: tuple) -> None:
    """Prints estimates of the programs for a GPU; shape: (K, B, T)."""
    mesh = slice_mesh(experiment, gpu)
    K, B, T = shape
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def placed(tree):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), tree
        )

    params = placed(nnx.state(experiment.model, nnx.Param))
    caches = placed(experiment.abstract_caches(B))
    with jax.set_mesh(mesh):
        for name, run in ((LOOP, loop), (DIAGONAL, run_diagonally)):
            tokens = placed(jax.ShapeDtypeStruct((K, B, T), np.int32))
            traced = jax.jit(scoring(graph, run)).trace(params, tokens, tokens, caches)
            compiled = traced.lower().compile(gpus.COMPILER_OPTIONS)
            program = hlo.parse(compiled.as_text() or "")
            flops = experiment.model.flops_per_token() * K * B * T
            figures = gpu_steps.program_figures(program, flops, gpu.chip)
            limits = ", ".join(
                f"{limit} {ms:.1f}" for limit, ms in figures["milliseconds_by_limit"].items()
            )
            print(
                f"{name:20} {figures['milliseconds']:8.1f} ms ({limits}), {figures['kernels']:,} "
                f"kernels, {figures['share_of_peak']:.1%} of peak",
                flush=True,
            )


def measure(model: Model, options: argparse.Namespace) -> None:
    """Prints times of reading a document of random tokens on this machine."""
    graph, params = nnx.split(model)
    T, K, B = options.segment_length, options.together, options.rows
    calls = -(-options.tokens // (K * T))
    shape = calls, K + 1, B, T
    tokens = np.random.default_rng(0).integers(0, model.vocabulary_size, shape).astype(np.int32)
    ways = {
        SINGLE: (single, (K, 1, B, T)),
        LOOP: (loop, (1, K, B, T)),
        DIAGONAL: (run_diagonally, (1, K, B, T)),
    }
    if options.long:
        ways[LONG] = single, (1, 1, B, K * T)
    programs = {name: (jax.jit(scoring(graph, run)), cut) for name, (run, cut) in ways.items()}

    def read(name):
        score, cut = programs[name]
        caches, nats = model.init_caches(B), []
        for n in range(calls):
            inputs, targets = tokens[n, :-1], tokens[n, 1:]
            if name == LONG:
                inputs, targets = np.moveaxis(inputs, 0, 1), np.moveaxis(targets, 0, 1)
            for part in zip(inputs.reshape(cut), targets.reshape(cut), strict=True):
                nats_KBT, caches = score(params, *part, caches)
                nats.append(nats_KBT)
        return np.concatenate([np.moveaxis(x, 1, 0).reshape(B, -1) for x in nats], axis=1)

    expected = {name: read(name) for name in ways}[SINGLE]
    seconds: dict[str, list] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, times in seconds.items():
            begun, used = time.perf_counter(), time.process_time()
            nats = read(name)
            times.append((time.perf_counter() - begun, time.process_time() - used))
            np.testing.assert_allclose(nats, expected, rtol=1e-3, atol=1e-3)
    print(
        f"{B} x {calls * K * T:,} tokens, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds; "
        f"medians; ratios to {LOOP} (lowest to highest)"
    )
    for name, times in seconds.items():
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        ratios = [[b[i] / a[i] for a, b in zip(seconds[LOOP], times, strict=True)] for i in (0, 1)]
        spans = [f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in ratios]
        print(
            f"{name:20} {medians[0]:6.2f} s wall, {medians[1]:6.2f} s of processors; "
            f"ratios {spans[0]}, {spans[1]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gin_file", action="append", required=True)
    parser.add_argument("--gin", action="append", default=[], help="a further binding")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--segment_length", type=int, required=True, help="T")
    parser.add_argument("--together", type=int, default=64, help="K")
    parser.add_argument("--rows", type=int, default=1, help="B documents of as many tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpu", help="compile for this card, such as h100")
    parser.add_argument(
        "--long", action="store_true", help="also segments of K T tokens, if the model allows them"
    )
    options = parser.parse_args()
    T, K, B = options.segment_length, options.together, options.rows
    # A training step is not run; the config only has to be valid.
    bindings = [f"Trainer.segment_length = {T}", f"Trainer.tokens_per_step = {B * T}", *options.gin]
    bindings += ["Trainer.eval_every = 0", f"Evaluation.tokens_per_step = {B * T}"]
    configuration = Configuration(options.gin_file, bindings)

    def describe(model):
        groups = [len(group.indices) for group in layer_groups(model, B, T)]
        n = sum(groups)
        print(
            f"{options.gin_file[0]} {' '.join(options.gin)}: B = {B}, T = {T}, K = {K}\n"
            f"layer after layer {K * n} steps; diagonal {K + n - 1} steps, in each the layers of "
            f"one structure at once: {groups}",
            flush=True,
        )

    if options.gpu:
        with planned(options.gpu) as gpu:
            experiment = configuration.experiment()
            graph, params = nnx.split(experiment.model)
            jax.eval_shape(lambda params: describe(nnx.merge(graph, params)), params)
            estimate(experiment, graph, gpu, (K, B, T))
    else:
        experiment = configuration.experiment()
        model = experiment.bind(experiment.init_params())
        describe(model)
        measure(model, options)


if __name__ == "__main__":
    main()
