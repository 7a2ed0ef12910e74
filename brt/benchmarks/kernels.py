"""Bundles of a training step's Pallas kernels, which the compiler's cycles leave out.

A bundle is an instruction of a TPU core, at least one cycle, without waiting for memory. For equal
grid steps, cycles = grid steps x bundles / cores.
"""

import dataclasses
import math
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from brt.benchmarks import topologies
from brt.benchmarks.topologies import Target, Topology

NOTE = "Cycles of Pallas kernels are bundles of instructions, without waiting for memory."
_BUNDLES = re.compile(r"total scheduled bundles\D*(\d+)")


def kernel_calls(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Yields `pallas_call` equations and their runs."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "pallas_call":
            yield equation, times
            continue
        runs = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jaxprs_in_params(equation.params):
            yield from kernel_calls(inner, times * runs)


def kernel_cycles(jaxpr: Any, topology: Topology) -> dict[str, int]:
    runs: Counter[str] = Counter()
    equations = {}
    for equation, times in kernel_calls(jaxpr):
        shapes = " ".join(str(x.aval.str_short()) for x in equation.invars)
        key = f"{equation.params['name']} {shapes}"
        runs[key] += times
        equations[key] = equation
    cores = topology.chip.cores // topology.chip.devices  # of a device, which share the grid
    return {
        key: times
        * math.prod(equation.params["grid_mapping"].grid)
        * bundles(equation, topology)
        // cores
        for (key, equation), times in zip(equations.items(), runs.values())
    }


def bundles(equation: Any, topology: Topology) -> int:
    """Returns the bundles of one grid step of a kernel, from the text that libtpu writes.

    Another process compiles the kernel alone: the text of a whole step has gigabytes.
    """

    def kernel(*arrays):
        return equation.primitive.bind(*arrays, **equation.params)

    inputs = (jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars)
    checks = [jax.export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    export = jax.export.export(jax.jit(kernel), platforms=["tpu"], disabled_checks=checks)
    exported = pickle.dumps(dataclasses.replace(export(*inputs), _get_vjp=None))
    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_html=false"
        )
        command = [sys.executable, "-m", "brt.benchmarks.kernels", topology.name]
        environment = {**os.environ, "LIBTPU_INIT_ARGS": flags, "JAX_PLATFORMS": "cpu"}
        subprocess.run(command, input=exported, env=environment, check=True, capture_output=True)
        files = pathlib.Path(folder).glob("*-kernel.*-schedule-analysis_final_bundles.txt")
        return sum(int(number) for file in files for number in _BUNDLES.findall(file.read_text()))


def compile_alone(kernel: bytes, topology: Target) -> None:
    device = topologies.devices_of(topology)[0]
    exported = pickle.loads(kernel)
    sharding = jax.sharding.SingleDeviceSharding(device)
    inputs = (jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in exported.in_avals)
    jax.jit(exported.call).lower(*inputs).compile()


if __name__ == "__main__":
    compile_alone(sys.stdin.buffer.read(), topologies.find(sys.argv[1]))
