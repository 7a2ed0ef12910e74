"""The Pallas kernels for GPUs compile for four cards, where JAX's CUDA plugin is installed.

No GPU is needed: `pip install --no-deps jax-cuda13-pjrt jax-cuda13-plugin`, of jax's version. With
CUDA's `ptxas` on the path, registers and spills are known too; `pytest -s` prints them.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
from paths import ROOT

from brt.benchmarks.gpus import CARDS

NAMES = "a100", "4090", "h100", "b200"

HEAD = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from brt.benchmarks import gpus, hlo, roofline
from brt.models.fast.kernels import gpu_attention, gpu_delta, gpu_launch
from brt.models.fast.kernels.parts import Heads, TileDropout

name, sizes, dtype, option = json.loads(sys.argv[1])
mesh = Mesh(np.array(gpus.devices_of(gpus.find(name))).reshape(1, 1), ("data", "model"))
dtype, f32, B = jnp.dtype(dtype), jnp.float32, 2

def of(*sizes, dtype=f32):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

def flops_of_kernels(step, *args):
    program = hlo.parse(jax.jit(step).lower(*args).compile().as_text())
    runs = roofline.Kernels(program).runs()
    return sum(kernel.flops.get(roofline.TRITON, 0) for kernel, _ in runs)
"""

ATTENTION = """
(W, S, H, K), rate = sizes, option
heads = Heads(H, K)

def step(dy, seeds, *args):
    dropout = TileDropout(seeds, rate) if rate else None
    y, backward = jax.vjp(lambda *args: attend(heads, *args, dropout), *args)
    return y, backward(dy)

if S:
    attend = gpu_attention.attend_to_states
    q, k = of(B, 2, W, H, K, dtype=dtype), of(B, 2, S, H, K, dtype=dtype)
    args = q, k, k, of(H)
else:
    attend = gpu_attention.attend_to_window
    q, cache = of(B, 2 * W, H, K, dtype=dtype), of(B, W, H, K, dtype=dtype)
    args = q, q, q, cache, cache, of(H), of(H, W)
with jax.set_mesh(mesh):
    if S:
        assert not gpu_launch.block_misfit(heads, W, S)
    else:
        assert not gpu_launch.window_misfit(heads, W, dtype)
    frame = gpu_launch.launches(W, S or W, K, dtype).forward.queries
    flops = flops_of_kernels(step, q, of(H, 1, 2, dtype=jnp.uint32), *args)
# The plan of a step counts seven products for queries and keys of frames.
assert flops == 7 * 2 * B * 2 * W * H * K * (S or W + frame)
"""

DELTA = """
T, H, K = sizes
heads = Heads(H, K)

def step(weights, *args):
    rule = lambda matrix, *inputs: gpu_delta.delta_rule(heads, dtype, matrix, inputs)
    found, backward = jax.vjp(rule, *args)
    return found, backward(weights)

matrix, x, numbers = of(B, H, K, K), of(B, T, H, K), of(B, T, H)
with jax.set_mesh(mesh):
    assert not gpu_delta.misfit(heads, T, dtype)
    flops = flops_of_kernels(step, (matrix, x), matrix, x, x, x, x, numbers)
# The plan of a step counts products with the matrix, three in each pass and three for gradients.
assert flops > 9 * 2 * B * T * H * K**2
"""


class Compiled(NamedTuple):
    """shared: bytes a block. registers: of a thread. spilled: bytes of them in memory."""

    threads: int
    shared: int
    registers: int | None
    spilled: int | None
    ptx: str


def compiled(name, program, *given, folder):
    """Compiles both passes for a card, and reads what XLA wrote about the kernels.

    Args:
        given: sizes, a dtype and an option of the program, which follows HEAD.

    Returns: {name: Compiled}; all blocks fit into the card's shared memory.
    """
    card = CARDS[name]
    environment = {
        **os.environ,
        **dict(JAX_PLATFORMS="cpu", JAX_ENABLE_COMPILATION_CACHE="false"),
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_dump_to={folder}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", HEAD + program, json.dumps([name, *given])]
    subprocess.run(command, env=environment, check=True, timeout=600)
    (steps,) = folder.glob("*.thunk_sequence.txt")
    line = r"((?:window|states|delta)_\w+) grid: .* threads: \[(\d+), .*shared_memory: (\d+) bytes"
    sizes_of = {name: (int(n), int(m)) for name, n, m in re.findall(line, steps.read_text())}
    kernels = {}
    for path in folder.glob("*.ptx"):
        kernel = "".join(re.findall(r"\.entry (\w+)", path.read_text()))
        if kernel in sizes_of:
            numbers = *sizes_of[kernel], *registers(card, path)
            kernels[kernel] = Compiled(*numbers, path.read_text())
            print(f"{card.description}, {given}: {kernel}: {numbers}")
    assert set(kernels) == set(sizes_of)
    assert all(k.shared <= card.architecture.block_bytes for k in kernels.values())
    return kernels


def registers(card, path):
    if not shutil.which("ptxas"):
        return None, None
    number = "".join(map(str, card.capability))
    architecture = f"sm_{number}a" if card.capability >= (9, 0) else f"sm_{number}"
    command = ["ptxas", "-v", f"-arch={architecture}", str(path), "-o", os.devnull]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    used = re.search(r"Used (\d+) registers", report)[1]
    return int(used), int(re.search(r"(\d+) bytes spill stores", report)[1])


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not importlib.util.find_spec("jax_cuda13_plugin"), reason="no CUDA plugin of JAX"
    ),
]


@pytest.mark.parametrize(
    ("program", "sizes", "count"),
    [
        (ATTENTION, (512, 0, 8, 128), 4),
        (ATTENTION, (512, 512, 8, 128), 3),
        (DELTA, (512, 8, 128), 4),
    ],
    ids=["window", "states", "delta"],
)
@pytest.mark.parametrize("name", NAMES)
def test_published_sizes_fit_without_spills_or_atomic_operations(
    name, program, sizes, count, tmp_path
):
    kernels = compiled(name, program, sizes, "bfloat16", 0.1, folder=tmp_path)
    assert len(kernels) == count
    for kernel in kernels.values():
        assert not kernel.spilled
        assert re.search(r"\b(wgmma|tcgen05|mma)\.", kernel.ptx)
        # Sums in an order that is not fixed would differ between runs.
        assert not re.search(r"\b(atom|red)\.", kernel.ptx)


@pytest.mark.parametrize(
    ("sizes", "dtype", "rate"),
    [
        ((128, 0, 8, 32), "bfloat16", 0.1),
        ((2048, 0, 8, 64), "bfloat16", 0.1),
        ((384, 0, 4, 256), "bfloat16", 0.0),
        ((512, 0, 8, 128), "float32", 0.1),
        ((128, 0, 4, 256), "float32", 0.1),
        ((512, 16, 8, 64), "bfloat16", 0.1),
        ((48, 2048, 4, 256), "bfloat16", 0.0),
        ((512, 1024, 1, 128), "float32", 0.0),
        ((128, 2, 32), "bfloat16", None),
        ((128, 2, 256), "bfloat16", None),
        ((128, 2, 64), "float32", None),
        ((100, 2, 128), "float32", None),
        ((100, 2, 256), "float32", None),
    ],
)
def test_other_sizes_compile_for_a_small_card(sizes, dtype, rate, tmp_path):
    program = DELTA if rate is None else ATTENTION
    assert compiled("4090", program, sizes, dtype, rate, folder=tmp_path)
