"""TPU slices by name, as devices to compile for with libtpu on a machine without a TPU."""

import difflib
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from brt.storage.shipped import install_command

GIB = 2**30


class Chip(NamedTuple):
    """A kind of chip, from its data sheet.

    peak_flops: dense bfloat16 operations per second.
    clock: cycles per second of the matrix units (peak divided by their number).
    cores_in_name: how many of the 32 in v4-32 are one chip.
    """

    hbm_bytes: int
    peak_flops: float
    clock: float
    cores_in_name: int


CHIPS = {
    "v4": Chip(32 * GIB, 275e12, 1.05e9, 2),
    "v5e": Chip(16 * GIB, 197e12, 1.50e9, 1),
    "v5p": Chip(95 * GIB, 459e12, 1.75e9, 2),
    "v6e": Chip(32 * GIB, 918e12, 1.75e9, 1),
}
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SHAPES = {"v4": CUBES, "v5e": SQUARES, "v5p": CUBES, "v6e": SQUARES}
"""Shapes of slices: chips along each axis, the smallest first."""

_OWN = re.compile(r"(v\d+\w*):(\d+(?:x\d+)*)")


class Topology(NamedTuple):
    """A slice: a kind of CHIPS, and its shape, such as "2x2x4"."""

    kind: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.shape}"

    @property
    def chips(self) -> int:
        return math.prod(map(int, self.shape.split("x")))

    @property
    def friendly(self) -> str:
        """The rental name, such as "v4-32"."""
        return f"{self.kind}-{self.chips * CHIPS[self.kind].cores_in_name}"

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]


KNOWN = {
    topology.friendly: topology
    for kind, shapes in SHAPES.items()
    for topology in (Topology(kind, shape) for shape in shapes)
}


def find(name: str) -> Topology:
    """Returns the slice with a rental name (v4-32) or libtpu's name (v4:2x2x4)."""
    asked = name.strip().lower()
    if asked in KNOWN:
        return KNOWN[asked]
    own = _OWN.fullmatch(asked)
    if own and own[1] in CHIPS and own[2].count("x") == SHAPES[own[1]][0].count("x"):
        return Topology(own[1], own[2])
    names = [*KNOWN, *(topology.name for topology in KNOWN.values())]
    near = difflib.get_close_matches(asked, names, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    listed = "; ".join(f"{topology.friendly} ({topology.name})" for topology in KNOWN.values())
    raise ValueError(f"--topology = {name} is no slice of TPUs.{meant} There are: {listed}.")


def check_compiler() -> None:
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            f"--topology compiles with libtpu, which is not installed: {install_command('tpu')} "
            "brings it, on a machine without a TPU too (Linux)."
        )


def devices_of(topology: Topology) -> Sequence[Any]:
    """Returns the chips of a slice as devices, and sets the environment that libtpu needs.

    The two cores of a v4 or v5p chip are one device.
    """
    check_compiler()
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": topology.friendly,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # other processes may compile, too
    }
    options: dict[str, Any] = {}
    if topology.kind == "v4":
        options = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
        options["num_slices"] = 1
    elif topology.chips == 1:
        options = {"chips_per_host_bounds": (1, 1, 1)}
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology.name, **options
        ).devices
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"libtpu knows no slice {topology.name}: {str(error).splitlines()[0]}"
        ) from error


def use_no_device() -> None:
    jax.config.update("jax_platforms", "cpu")
