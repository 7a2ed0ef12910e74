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

KIB = 2**10


class Card(NamedTuple):
    """shared: bytes of shared memory that a block may have."""

    name: str
    capability: str
    cores: int
    shared: int

    @property
    def architecture(self) -> str:
        number = self.capability.replace(".", "")
        return f"sm_{number}a" if int(number) >= 90 else f"sm_{number}"

    @property
    def target(self) -> str:
        """The configuration that XLA compiles for, a text of protocol buffers."""
        major, minor = self.capability.split(".")
        return f"""gpu_device_info {{
            threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
            shared_memory_per_block: 49152 shared_memory_per_block_optin: {self.shared}
            shared_memory_per_core: {self.shared + KIB} core_count: {self.cores} fpus_per_core: 128
            registers_per_core_limit: 65536 registers_per_block_limit: 65536
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
            memory_bandwidth: 1008000000000 l2_cache_size: 41943040 clock_rate_ghz: 1.7
            device_memory_size: 25000000000
            cuda_compute_capability {{ major: {major} minor: {minor} }} }}
            platform_name: "CUDA" device_description_str: "{self.name}"
            dnn_version_info {{ major: 9 minor: 12 }}
            runtime_version {{ major: 13 minor: 0 patch: 0 }}"""


CARDS = {
    "A100": Card("NVIDIA A100-SXM4-80GB", "8.0", 108, 166912),
    "4090": Card("NVIDIA GeForce RTX 4090", "8.9", 128, 101376),
    "H100": Card("NVIDIA H100 80GB HBM3", "9.0", 132, 232448),
    "B200": Card("NVIDIA B200", "10.0", 148, 232448),
}

COMPILE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from brt.benchmarks import hlo, roofline
from brt.models.fast.kernels import gpu_attention, gpu_launch
from brt.models.fast.kernels.parts import Heads, TileDropout

target, (W, S, H, K), dtype, rate = json.loads(sys.argv[1])
topology = topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x1x1")
mesh = Mesh(np.array(topology.devices).reshape(1, 1), ("data", "model"))
heads, f32, B = Heads(H, K), jnp.float32, 2

def of(*sizes, dtype=f32):
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

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
        assert not gpu_launch.window_misfit(heads, W, jnp.dtype(dtype))
    frame = gpu_launch.launches(W, S or W, K, jnp.dtype(dtype)).forward.queries
    seeds = of(H, 1, 2, dtype=jnp.uint32)
    program = hlo.parse(jax.jit(step).lower(q, seeds, *args).compile().as_text())

# The plan of a step counts seven products for queries and keys of frames.
flops = sum(kernel.flops.get(roofline.TRITON, 0) for kernel, _ in roofline.Kernels(program).runs())
assert flops == 7 * 2 * B * 2 * W * H * K * (S or W + frame)
"""


class Compiled(NamedTuple):
    """shared: bytes a block. registers: of a thread. spilled: bytes of them in memory."""

    threads: int
    shared: int
    registers: int | None
    spilled: int | None
    ptx: str


def compiled(card, *given, folder, program=COMPILE, names="window|states") -> dict[str, Compiled]:
    """Compiles the forward and the backward pass, and reads what XLA wrote about the kernels.

    given: arguments of the program after the card's target. names: beginnings of kernels' names.
    """
    environment = {
        **os.environ,
        **dict(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="-1", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1"),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_dump_to={folder}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", program, json.dumps([card.target, *given])]
    subprocess.run(command, env=environment, check=True, timeout=600)
    (steps,) = folder.glob("*.thunk_sequence.txt")
    line = rf"((?:{names})_\w+) grid: .* threads: \[(\d+), .*shared_memory: (\d+) bytes"
    sizes_of = {name: (int(n), int(m)) for name, n, m in re.findall(line, steps.read_text())}
    kernels = {}
    for path in folder.glob("*.ptx"):
        name = "".join(re.findall(r"\.entry (\w+)", path.read_text()))
        if name in sizes_of:
            numbers = *sizes_of[name], *registers(card, path)
            kernels[name] = Compiled(*numbers, path.read_text())
    assert set(kernels) == set(sizes_of)
    return kernels


def registers(card, path):
    if not shutil.which("ptxas"):
        return None, None
    command = ["ptxas", "-v", f"-arch={card.architecture}", str(path), "-o", os.devnull]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    used = re.search(r"Used (\d+) registers", report)[1]
    return int(used), int(re.search(r"(\d+) bytes spill stores", report)[1])


def show(card, sizes, dtype, kernels):
    for name, kernel in kernels.items():
        print(f"{card.name}, {sizes}, {dtype}: {name}: {kernel[:4]}")


def check_each(kernels, card):
    for kernel in kernels.values():
        assert kernel.shared <= card.shared
        assert not kernel.spilled
        assert re.search(r"\b(wgmma|tcgen05|mma)\.", kernel.ptx)
        # Sums in an order that is not fixed would differ between runs.
        assert not re.search(r"\b(atom|red)\.", kernel.ptx)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not importlib.util.find_spec("jax_cuda13_plugin"), reason="no CUDA plugin of JAX"
    ),
]


@pytest.mark.parametrize("states", [0, 512])
@pytest.mark.parametrize("name", CARDS)
def test_published_sizes_fit_without_spills_or_atomic_operations(name, states, tmp_path):
    card, sizes = CARDS[name], (512, states, 8, 128)
    kernels = compiled(card, sizes, "bfloat16", 0.1, folder=tmp_path)
    show(card, sizes, "bfloat16", kernels)
    assert len(kernels) == (3 if states else 4)
    check_each(kernels, card)


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
    ],
)
def test_other_sizes_compile_for_a_small_card(sizes, dtype, rate, tmp_path):
    kernels = compiled(CARDS["4090"], sizes, dtype, rate, folder=tmp_path)
    show(CARDS["4090"], sizes, dtype, kernels)
    assert all(kernel.shared <= 99 * KIB for kernel in kernels.values())
