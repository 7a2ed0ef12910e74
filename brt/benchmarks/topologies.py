"""TPU slices by name, as devices to compile for with libtpu on a machine without a TPU.

`find`, `check_compiler` and `devices_of` take NVIDIA GPUs, too (brt.benchmarks.gpus).
"""

import contextlib
import difflib
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies

from brt.benchmarks import gpus
from brt.benchmarks.gpus import Gpus
from brt.storage.shipped import install_command

GIB = 2**30


class Chip(NamedTuple):
    """A kind of chip, from its data sheet.

    hbm_bytes: of one device of JAX: a chip, or one of its cores where `devices` is 2.
    peak_flops: dense bfloat16 operations per second of a device.
    clock: cycles per second of the matrix units (peak divided by their number).
    cores: of a chip, where names count cores: v4-32 has 16 chips. 1 where they count chips.
    devices: of a chip.
    links, network: bytes per second that a chip sends over all its links, and to other slices; 0
        where they are not published. A link has 50 GB/s in each direction; v4 has six (Jouppi et
        al. 2023, arXiv:2304.01433), v5e four, and 6.4 Tb/s for a pod of 256 chips (Google's
        documentation of v5e).
    whole: chips of the axes of a torus: multiples have links between their ends; 0 if unknown.
    """

    hbm_bytes: int
    peak_flops: float
    clock: float
    cores: int
    devices: int = 1
    has_bfloat16: bool = True
    links: float = 0.0
    network: float = 0.0
    whole: int = 0


CHIPS = {
    "v2": Chip(8 * GIB, 22.5e12, 0.70e9, 2, devices=2),
    "v3": Chip(16 * GIB, 61.5e12, 0.94e9, 2, devices=2),
    "v4": Chip(32 * GIB, 275e12, 1.05e9, 2, links=300e9, whole=4),
    "v5e": Chip(16 * GIB, 197e12, 1.50e9, 1, links=200e9, network=3.125e9, whole=16),
    "v5p": Chip(95 * GIB, 459e12, 1.75e9, 2),
    "v6e": Chip(32 * GIB, 918e12, 1.75e9, 1),
}


def _cubes(most: int) -> list[str]:
    """Returns the shapes of slices of parts of a cube of 4 x 4 x 4 chips, and of up to `most`."""
    shapes = ["2x2x1", "2x2x2", "2x2x4", "2x4x4"]
    for number in range(1, most + 1):
        sides = (
            (a, b, number // (a * b))
            for a in range(1, number + 1)
            for b in range(a, number // a + 1)
            if number % (a * b) == 0
        )
        compact = sorted(min(sides, key=sum))
        shapes.append("x".join(str(4 * side) for side in compact))
    return shapes


SQUARES = ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]
SHAPES = {
    "v2": ["2x2", "4x4", "8x8", "8x16", "16x16"],
    "v3": ["2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"],
    "v4": _cubes(32),
    "v5e": SQUARES,
    "v5p": _cubes(140),
    "v6e": SQUARES,
}
"""Shapes of slices, chips along each axis, the smallest first: the accelerator types of gcloud."""

_NAME = re.compile(r"(?:(\d+)x)?(v\d+[a-z]*)([-:])(\d+(?:x\d+)*)")


def _mean_distance(side, is_ring):
    away = np.abs(np.subtract.outer(np.arange(side), np.arange(side)))
    return float(np.minimum(away, side - away).mean() if is_ring else away.mean())


class Topology(NamedTuple):
    """Slices of a kind of CHIPS with the same shape, such as "2x2x4"."""

    kind: str
    shape: str
    slices: int = 1

    @property
    def name(self) -> str:
        return f"{self._prefix}{self.kind}:{self.shape}"

    @property
    def chips(self) -> int:
        return math.prod(self.sides)

    @property
    def friendly(self) -> str:
        """The rental name, such as "v4-32", without gcloud's "litepod" (v5litepod-16 is v5e-16)."""
        return f"{self._prefix}{self.kind}-{self.chips * CHIPS[self.kind].cores}"

    @property
    def _prefix(self) -> str:
        return f"{self.slices}x" if self.slices > 1 else ""

    @property
    def devices(self) -> int:
        return self.slices * self.chips * self.chip.devices

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]

    @property
    def sides(self) -> list[int]:
        return [*map(int, self.shape.split("x"))]

    @property
    def is_torus(self) -> bool:
        """Whether each axis has a link between its ends."""
        return bool(self.chip.whole) and not any(side % self.chip.whole for side in self.sides)

    @property
    def link_bytes(self) -> float:
        """Bytes per second of the chip with the fewest links: a corner, without a torus."""
        return self.chip.links / (1 if self.is_torus else 2)

    @property
    def hops(self) -> float:
        """The mean number of links between two chips of a slice, by the shortest way."""
        return sum(_mean_distance(side, self.is_torus) for side in self.sides)


KNOWN = {
    topology.friendly: topology
    for kind, shapes in SHAPES.items()
    for topology in (Topology(kind, shape) for shape in shapes)
}


Target = Topology | Gpus


def find(name: str) -> Target:
    """Returns slices by gcloud's name (v4-32, v5litepod-16) or libtpu's (v4:2x2x4), or GPUs.

    2xv4-32 are two slices, h100-4x8 are four nodes of eight GPUs.
    """
    if cards := gpus.find(name):
        return cards
    asked = name.strip().lower().replace("v5litepod", "v5e")
    if parts := _NAME.fullmatch(asked):
        slices, kind, mark, size = parts.groups()
        topology = KNOWN.get(f"{kind}-{size}")
        if mark == ":" and kind in SHAPES and size.count("x") == SHAPES[kind][0].count("x"):
            topology = Topology(kind, size)
        if topology and topology.chips and slices != "0":
            return topology._replace(slices=int(slices or 1))
    listed = [
        topology
        for topology in KNOWN.values()
        if topology.shape in (*SHAPES[topology.kind][:8], SHAPES[topology.kind][-1])
    ]
    names = [topology.friendly for topology in listed]
    known = [*names, *(topology.name for topology in listed), *gpus.CARDS]
    near = difflib.get_close_matches(asked, known, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"--topology = {name} is no slice of TPUs and no GPU.{meant} There are: "
        f"{', '.join(names)}, and more multiples of v4-128 and v5p-128. v5litepod-16 is "
        "v5e-16, and 2xv4-32 are two slices of v4-32. Other shapes are named by their chips, as "
        "v4:2x2x4. GPUs: "
        f"{', '.join(gpus.CARDS)}, nodes of them as h100-8, and several nodes as h100-4x8."
    )


def check_compiler(target: Target) -> None:
    if isinstance(target, Gpus):
        gpus.check_compiler()
    elif importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            f"--topology compiles with libtpu, which is not installed: {install_command('tpu')} "
            "brings it, on a machine without a TPU too (Linux)."
        )


def devices_of(topology: Target) -> Sequence[Any]:
    """Returns the devices of slices or GPUs, and sets the compiler's environment.

    The two cores of a v4 or v5p chip are one device, those of a v2 or v3 chip are two.
    """
    check_compiler(topology)
    if isinstance(topology, Gpus):
        return gpus.devices_of(topology)
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": topology._replace(slices=1).friendly,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # other processes may compile, too
    }
    options: dict[str, Any] = {"num_slices": topology.slices}
    if topology.kind == "v4":
        options |= {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
    elif topology.chips == 1:
        options |= {"chips_per_host_bounds": (1, 1, 1)}
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=f"{topology.kind}:{topology.shape}", **options
        ).devices
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"libtpu knows no slice {topology.name}: {str(error).splitlines()[0]}"
        ) from error


def use_no_device(cpus: int | None = None) -> None:
    """Chooses the CPU, as so many devices unless JAX has started."""
    jax.config.update("jax_platforms", "cpu")
    if cpus:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", cpus)
