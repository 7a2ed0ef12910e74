"""Times reading a long document in the diagonal schedule and in other ways, in turns.

python scripts/time_diagonal.py --gin_file=configs/quickstart.gin --segment_length=64 --together=128
"""

import argparse
import os
import statistics
import time

import jax
import numpy as np
from flax import nnx

from brt.experiment import Configuration
from brt.models.diagonal import layer_groups, run_diagonally


def single(model, x_KBTD, caches):
    """One segment in a call of the program, as without the diagonal schedule."""
    x_BTD, caches, _ = model.stack(x_KBTD[0], caches)
    return x_BTD[None], caches


def loop(model, x_KBTD, caches):
    """A loop over the same segments in one program."""

    def read(caches, x_BTD):
        x_BTD, caches, _ = model.stack(x_BTD, caches)
        return caches, x_BTD

    caches, x_KBTD = jax.lax.scan(read, caches, x_KBTD)
    return x_KBTD, caches


def reader(graph, run):
    """Returns a function that scores (K, B, T) tokens from caches."""

    @jax.jit
    def score(params, inputs_KBT, targets_KBT, caches):
        model = nnx.merge(graph, params)
        x_KBTD, caches = run(model, jax.vmap(model.embed)(inputs_KBT), caches)
        nats_KBT = jax.lax.map(lambda x: model.token_losses(*x)[0], (x_KBTD, targets_KBT))
        return nats_KBT, caches

    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gin_file", action="append", required=True)
    parser.add_argument("--gin", action="append", default=[], help="a further binding")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--segment_length", type=int, required=True, help="T")
    parser.add_argument("--together", type=int, default=64, help="K")
    parser.add_argument("--rows", type=int, default=1, help="B documents of as many tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--long", action="store_true", help="also segments of K T tokens, if the model allows them"
    )
    options = parser.parse_args()
    experiment = Configuration(options.gin_file, options.gin).experiment()
    T, K, B = options.segment_length, options.together, options.rows
    model = experiment.bind(experiment.init_params()).for_segments(T)
    graph, params = nnx.split(model)
    calls = -(-options.tokens // (K * T))
    shape = calls, K + 1, B, T
    tokens = np.random.default_rng(0).integers(0, model.vocabulary_size, shape).astype(np.int32)

    ways = {
        "one segment a call": (reader(graph, single), (K, 1, B, T)),
        "loop over segments": (reader(graph, loop), (1, K, B, T)),
        "diagonal": (reader(graph, run_diagonally), (1, K, B, T)),
    }
    if options.long:
        ways["long segments"] = reader(graph, single), (1, 1, B, K * T)

    def read(name):
        score, cut = ways[name]
        caches, nats = model.init_caches(B), []
        for n in range(calls):
            inputs, targets = tokens[n, :-1], tokens[n, 1:]
            if name == "long segments":
                inputs, targets = np.moveaxis(inputs, 0, 1), np.moveaxis(targets, 0, 1)
            for part in zip(inputs.reshape(cut), targets.reshape(cut), strict=True):
                nats_KBT, caches = score(params, *part, caches)
                nats.append(nats_KBT)
        return np.concatenate([np.moveaxis(x, 1, 0).reshape(B, -1) for x in nats], axis=1)

    expected = {name: read(name) for name in ways}["one segment a call"]
    seconds: dict[str, list] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, times in seconds.items():
            begun, used = time.perf_counter(), time.process_time()
            nats = read(name)
            times.append((time.perf_counter() - begun, time.process_time() - used))
            np.testing.assert_allclose(nats, expected, rtol=1e-3, atol=1e-3)
    groups = [len(group.indices) for group in layer_groups(model, B, T)]
    n = sum(groups)
    print(
        f"{options.gin_file[0]}, {B} x {calls * K * T:,} tokens in segments of {T}, "
        f"{jax.devices()[0].device_kind}, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n"
        f"steps of {K} segments in {n} layers: {K * n}; diagonal {K + n - 1}, each of layers "
        f"of one structure {groups} at once"
    )
    first = seconds["one segment a call"]
    for name, times in seconds.items():
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        ratios = [[a[i] / b[i] for a, b in zip(first, times, strict=True)] for i in (0, 1)]
        spans = [f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in ratios]
        print(
            f"{name:20} {medians[0]:6.2f} s wall, {medians[1]:6.2f} s of processors; "
            f"times as fast: {spans[0]} wall, {spans[1]} processors"
        )


if __name__ == "__main__":
    main()
