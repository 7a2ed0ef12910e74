"""Times loss and gradient of a step, with and without its segments divided over devices.

python scripts/time_ring.py --gin_file=configs/quickstart.gin --segments=16 --devices=2,4,8

Devices are simulated on this machine's cores.
"""

import argparse
import functools
import os
import statistics
import time

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType

from brt.data.streams.batch import Batch
from brt.experiment import Configuration
from brt.models.mesh_axes import OVER_TIME
from brt.training.over_time.scan import scan_is_faster
from brt.training.train_step import bind, make_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gin_file", action="append", required=True)
    parser.add_argument("--gin", action="append", default=[], help="a further binding")
    parser.add_argument("--segments", type=int, default=16, help="K")
    parser.add_argument("--rows", type=int, default=1, help="B")
    parser.add_argument("--devices", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    numbers = [1, *map(int, options.devices.split(","))]
    jax.config.update("jax_num_cpu_devices", max(numbers))
    # A device may wait in several collectives at once, each in a thread of XLA's pool.
    os.environ["NPROC"] = str(8 * max(numbers))
    experiment = Configuration(options.gin_file, options.gin).experiment()
    T, K, B = experiment.trainer.segment_length, options.segments, options.rows
    graph, _ = nnx.split(experiment.model)
    params = experiment.init_params()
    size = experiment.model.vocabulary_size
    tokens = np.random.default_rng(0).integers(0, size, (K, B, T)).astype(np.int32)
    starts = np.zeros((K, B), bool)
    batch = Batch(tokens, tokens, np.ones((K, B, T), np.float32), starts)
    caches = experiment.bind(params).init_caches(B)
    grad = jax.value_and_grad(make_loss(functools.partial(bind, graph)), has_aux=True)
    steps = {}
    for number in numbers:
        devices = jax.devices()[:number]
        names, types = ("data", OVER_TIME, "fsdp", "model"), (AxisType.Auto,) * 4
        mesh = jax.make_mesh((1, number, 1, 1), names, types, devices=devices)
        with jax.set_mesh(mesh):
            begun = time.perf_counter()
            step = jax.jit(grad).lower(params, caches, batch, None).compile()
            compiled = time.perf_counter() - begun
            placed = jax.device_put((params, caches, batch), step.input_shardings[0][:3])
            (loss, _), grads = step(*placed, None)
        steps[number] = step, placed
        norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(grads)))
        print(f"{number}: loss {loss:.6f}, gradient {norm:.6f}, compiled in {compiled:.0f} s")
    seconds: dict[int, list] = {number: [] for number in steps}
    for _ in range(options.rounds):
        for number, (step, placed) in steps.items():
            begun, used = time.perf_counter(), time.process_time()
            jax.block_until_ready(step(*placed, None))
            seconds[number].append((time.perf_counter() - begun, time.process_time() - used))
    n = len(caches)
    print(
        f"{options.gin_file[0]} {' '.join(options.gin)}: {n} layers, K = {K}, B = {B}, T = {T}, "
        f"load {os.getloadavg()[0]:.1f}, {options.rounds} rounds, medians"
    )
    for number, times in seconds.items():
        wall, used = (statistics.median(column) for column in zip(*times, strict=True))
        longest = K // number * max(n, number) + min(n, number) - 1
        if number == 1 or scan_is_faster(experiment.model, K, number, T):
            longest = K // number * n
        print(
            f"{number} devices: {wall:.2f} s wall, {used:.2f} s of processors; "
            f"layer steps of a device with its waits {longest}"
        )


if __name__ == "__main__":
    main()
