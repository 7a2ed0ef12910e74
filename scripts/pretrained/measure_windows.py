"""Measures what windows of a step cost: the compiler's peak bytes, and whether gradients agree.

    python scripts/pretrained/measure_windows.py --windows=2,8,32 [--rows=8] \
        configs/small/gpt2_pooled.gin+configs/corpora/books_pieces.gin

The step is compiled with and without `Trainer.remat_segments`, for as many windows a step; nothing
is trained. Gradients of the loss are computed both ways, from fresh parameters and random tokens.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax
import optax
from jax.sharding import AxisType

from brt.benchmarks.random_inputs import random_batch, random_state
from brt.experiment import Configuration, Experiment
from brt.training.records.metrics import compiled_bytes
from brt.training.train_step import make_loss


def one_device() -> jax.sharding.Mesh:
    """Returns a mesh of the first device."""
    axes = AxisType.Auto, AxisType.Auto
    return jax.make_mesh((1, 1), ("data", "model"), axes, devices=jax.devices()[:1])


def experiment_of(
    config: str, windows: int, rows: int, remat: bool, more: Sequence[str]
) -> Experiment:
    """Returns the experiment with so many windows a step."""
    length = Configuration([config], more).experiment().trainer.segment_length
    bindings = [
        *more,
        f"Trainer.segments_per_step = {windows}",
        f"Trainer.tokens_per_step = {rows * windows * length}",
        f"Trainer.remat_segments = {remat}",
    ]
    return Configuration([config], bindings).experiment()


def peak_bytes(experiment: Experiment) -> int:
    """Returns the bytes that the compiler plans for a step."""
    mesh = one_device()
    with jax.set_mesh(mesh):
        state = experiment.abstract_state(mesh)
        step = experiment.jit_step(mesh).lower(state, experiment.abstract_batch()).compile()
    found = compiled_bytes(step)
    if found is None:
        raise SystemExit("The compiler of this device does not tell its plan of memory.")
    return found


def gradients(experiment: Experiment) -> Any:
    """Returns the gradients of a step's loss, at random parameters and tokens."""
    state = random_state(experiment)
    loss = make_loss(experiment.bind, **experiment.trainer.loss_settings)
    of_loss = jax.jit(jax.grad(lambda *inputs: loss(*inputs, None)[0]))
    return of_loss(state.params, state.caches, random_batch(experiment))


def difference(one: Any, other: Any) -> float:
    """Returns the norm of the difference of two gradients, of the norm of the first."""
    apart = jax.tree.map(lambda x, y: x - y, one, other)
    return float(optax.tree.norm(apart) / optax.tree.norm(one))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", help="gin files, joined by +")
    parser.add_argument("--windows", default="2,8,32", help="of a step")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--gin", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(argv)
    print(
        "| windows | MiB, all activations kept | MiB, remat_segments | gradients differ by |\n"
        "|---:|---:|---:|---:|"
    )
    for windows in map(int, options.windows.split(",")):
        both = []
        for remat in (False, True):
            made = experiment_of(options.config, windows, options.rows, remat, options.gin)
            both.append((peak_bytes(made) / 2**20, gradients(made)))
        (kept, of_kept), (less, of_less) = both
        print(f"| {windows} | {kept:.1f} | {less:.1f} | {difference(of_kept, of_less):.1e} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
