"""NVIDIA GPUs by name, as devices to compile for on a machine without one; needs only the two
wheels of JAX's CUDA plugin.
"""

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jax.experimental import topologies

from brt.benchmarks.roofline import HIGHEST
from brt.storage.shipped import install_command

CUDNN = 9, 12
"""cuDNN's version that steps are compiled for."""


class Architecture(NamedTuple):
    """A generation of cards.

    lanes: float32 operations of a core per cycle. threads: of a core at most. shared_bytes: of
    shared memory of a core, and `block_bytes` for one block.
    """

    capability: tuple[int, int]
    lanes: int
    threads: int
    shared_bytes: int
    block_bytes: int


TURING = Architecture((7, 5), 64, 1024, 65536, 65536)
AMPERE = Architecture((8, 0), 64, 2048, 167936, 166912)
ADA = Architecture((8, 9), 128, 1536, 102400, 101376)
HOPPER = Architecture((9, 0), 128, 2048, 233472, 232448)
BLACKWELL = Architecture((10, 0), 128, 2048, 233472, 232448)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A kind of card, from its data sheet and from the device properties of CUDA.

    hbm_bytes: memory, as CUDA reports it. bandwidth: of the memory, bytes per second.
    peak_flops: dense matrix products per second in bfloat16, or float16 where there is no bfloat16.
        float32_flops: of float32 at JAX's default precision, TF32 from capability 8.0 on.
        exact_flops: of float32 without TF32.
    cores: streaming multiprocessors. clock: cycles per second. cache_bytes: of the L2 cache.
    links, network: bytes per second that a card sends to others of its node, and to other nodes; 0
        where nodes differ. NVLink of the H100 has 900 GB/s of both directions, and a DGX H100 a
        port of InfiniBand of 400 Gb/s for each card (NVIDIA's data sheets).
    """

    description: str
    architecture: Architecture
    hbm_bytes: int
    bandwidth: float
    peak_flops: float
    float32_flops: float
    exact_flops: float
    cores: int
    clock: float
    cache_bytes: int
    links: float = 0.0
    network: float = 0.0

    @property
    def capability(self) -> tuple[int, int]:
        return self.architecture.capability

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= (8, 0)

    @property
    def usable_bytes(self) -> int:
        """Memory with XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 (JAX's default is 0.75)."""
        return int(0.9 * self.hbm_bytes)

    def flops_of(self, kind: str) -> float:
        """Returns operations per second of matrix products, by the types of `roofline.Kernel`."""
        if kind == "f16" or (kind in ("bf16", "f8e4m3fn", "f8e5m2") and self.has_bfloat16):
            return self.peak_flops
        return self.exact_flops if kind == HIGHEST else self.float32_flops

    @property
    def target_config(self) -> str:
        """The `GpuTargetConfigProto` of XLA, as text."""
        major, minor = self.capability
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.architecture.shared_bytes,
            "threads_per_core_limit": self.architecture.threads,
            "core_count": self.cores,
            "fpus_per_core": self.architecture.lanes,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(self.bandwidth),
            "l2_cache_size": self.cache_bytes,
            "clock_rate_ghz": self.clock / 1e9,
            "device_memory_size": self.hbm_bytes,
            "shared_memory_per_block_optin": self.architecture.block_bytes,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        text = " ".join(f"{name}: {value}" for name, value in fields.items())
        return (
            f"gpu_device_info {{ {text} "
            f"cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
            f'platform_name: "CUDA" dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }} '
            "runtime_version { major: 13 minor: 0 patch: 0 } "
            f'device_description_str: "{self.description}"'
        )


MIB = 2**20
H100 = Card(
    description="NVIDIA H100 80GB HBM3",
    architecture=HOPPER,
    hbm_bytes=84929347584,
    bandwidth=3.35232e12,
    peak_flops=989e12,
    float32_flops=494.5e12,
    exact_flops=67e12,
    cores=132,
    clock=1.98e9,
    cache_bytes=50 * MIB,
    links=450e9,
    network=50e9,
)
CARDS = {
    "a100": Card(
        description="NVIDIA A100-SXM4-80GB",
        architecture=AMPERE,
        hbm_bytes=85100068864,
        bandwidth=2.039e12,
        peak_flops=312e12,
        float32_flops=156e12,
        exact_flops=19.5e12,
        cores=108,
        clock=1.41e9,
        cache_bytes=40 * MIB,
    ),
    "h100": H100,
    "h200": replace(H100, description="NVIDIA H200", hbm_bytes=151397597184, bandwidth=4.8e12),
    "b200": Card(
        description="NVIDIA B200",
        architecture=BLACKWELL,
        hbm_bytes=191514411008,
        bandwidth=7.67232e12,
        peak_flops=2250e12,
        float32_flops=1125e12,
        exact_flops=75e12,
        cores=148,
        clock=1.965e9,
        cache_bytes=132644864,
    ),
    "4090": Card(
        description="NVIDIA GeForce RTX 4090",
        architecture=ADA,
        hbm_bytes=25393692672,
        bandwidth=1.008e12,
        peak_flops=165.2e12,
        float32_flops=82.6e12,
        exact_flops=82.6e12,
        cores=128,
        clock=2.52e9,
        cache_bytes=72 * MIB,
    ),
    "l4": Card(
        description="NVIDIA L4",
        architecture=ADA,
        hbm_bytes=22 * 1024 * MIB,
        bandwidth=0.3e12,
        peak_flops=121e12,
        float32_flops=60e12,
        exact_flops=30.3e12,
        cores=58,
        clock=2.04e9,
        cache_bytes=48 * MIB,
    ),
    "t4": Card(
        description="Tesla T4",
        architecture=TURING,
        hbm_bytes=15835660288,
        bandwidth=0.32e12,
        peak_flops=65e12,
        float32_flops=8.1e12,
        exact_flops=8.1e12,
        cores=40,
        clock=1.59e9,
        cache_bytes=4 * MIB,
    ),
}
"""The SXM forms of A100 (80 GB), H100, H200 and B200. A T4 computes bfloat16 in float32."""

_NAME = re.compile(r"(?:rtx)?([a-z]?\d+)(?:-(?:([1-9]\d*)x)?([1-9]\d*))?")


class Gpus(NamedTuple):
    """Nodes of equal GPUs: a kind of CARDS, cards of a node."""

    kind: str
    nodes: int = 1
    per_node: int = 1

    @property
    def name(self) -> str:
        if self.nodes > 1:
            return f"{self.kind}-{self.nodes}x{self.per_node}"
        return f"{self.kind}-{self.per_node}" if self.per_node > 1 else self.kind

    @property
    def friendly(self) -> str:
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{self.per_node} x {self.chip.description}"

    @property
    def devices(self) -> int:
        return self.nodes * self.per_node

    @property
    def chip(self) -> Card:
        return CARDS[self.kind]

    @property
    def link_bytes(self) -> float:
        return self.chip.links

    @property
    def hops(self) -> float:
        """Links between two cards of a node, which a switch connects."""
        return 1.0


def find(name: str) -> Gpus | None:
    """Returns GPUs by name: h100, h100-8 (a node), h100-4x8 (four nodes); None for other names."""
    parts = _NAME.fullmatch(name.strip().lower())
    if not parts or parts[1] not in CARDS:
        return None
    return Gpus(parts[1], int(parts[2] or 1), int(parts[3] or 1))


def check_compiler() -> None:
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise ValueError(
            "--topology compiles for a GPU with JAX's CUDA plugin, which is not installed: "
            f"{install_command('gpu-plan')} brings it, on a machine without a GPU too (Linux)."
        )


COMPILER_OPTIONS = {"xla_gpu_autotune_level": 0}
"""Autotuning runs kernels, which needs a card."""


def devices_of(gpus: Gpus) -> Sequence[Any]:
    """Returns the devices of GPUs, and sets the plugin's environment. Raises ValueError if the
    plugin refuses them.
    """
    check_compiler()
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        return topologies.get_topology_desc(
            platform="cuda",
            topology=f"1x{gpus.nodes}x{gpus.per_node}",
            target_config=gpus.chip.target_config,
        ).devices
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"JAX's CUDA plugin cannot compile for {gpus.name}: {str(error).splitlines()[0]}"
        ) from error
