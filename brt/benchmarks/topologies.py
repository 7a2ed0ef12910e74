"""Slices of TPUs by name, as devices that can be compiled for on a machine without any.

libtpu brings the compiler; its devices have positions and memory, but run nothing.
"""

import difflib
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

GIB = 2**30


class Chip(NamedTuple):
    """A chip of a kind, from the maker's data sheets.

    hbm_bytes: memory. peak_flops: dense bfloat16 operations a second. clock: cycles a second of
        its matrix units, which follows from the peak and their number.
    cores_in_name: what the number in a name such as v4-32 counts for one chip.
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
"""Shapes of slices of each kind, from the smallest: chips along each axis."""

_OWN = re.compile(r"(v\d+\w*):(\d+(?:x\d+)*)")


class Topology(NamedTuple):
    """A slice.

    kind: of CHIPS. shape: chips along each axis, such as "2x2x4".
    """

    kind: str
    shape: str

    @property
    def name(self) -> str:
        """libtpu's name, such as "v4:2x2x4"."""
        return f"{self.kind}:{self.shape}"

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(map(int, self.shape.split("x")))

    @property
    def friendly(self) -> str:
        """The name under which it is rented, such as "v4-32"."""
        return f"{self.kind}-{self.chips * CHIPS[self.kind].cores_in_name}"

    @property
    def chip(self) -> Chip:
        """What one chip has."""
        return CHIPS[self.kind]


KNOWN = {
    topology.friendly: topology
    for kind, shapes in SHAPES.items()
    for topology in (Topology(kind, shape) for shape in shapes)
}
"""Slices by friendly name."""


def find(name: str) -> Topology:
    """Returns the slice of a friendly name (v4-32) or of libtpu's own (v4:2x2x4).

    Raises:
        ValueError: no slice is called so; the message lists those that there are.
    """
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
    """Refuses to go on without libtpu.

    Raises:
        ValueError: saying how to install it.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            '--topology compiles with libtpu, which is not installed: pip install -e ".[tpu]" '
            "brings it, on a machine without a TPU too (Linux)."
        )


def devices_of(topology: Topology) -> Sequence[Any]:
    """Returns the chips of a slice, as devices to compile for.

    Two cores of a chip are one device where programs run on both at once (v4, v5p). Sets what
    libtpu asks of the environment before it is loaded.

    Raises:
        ValueError: libtpu is missing, or knows no such slice.
    """
    check_compiler()
    for variable, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": topology.friendly,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # other processes may compile, too
    }.items():
        os.environ[variable] = value
    options: dict[str, Any] = {}
    if topology.kind == "v4":
        options = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
        options["num_slices"] = 1
    elif topology.chips == 1:
        options = {"chips_per_host_bounds": (1, 1, 1)}
    try:
        found = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.name, **options
        ).devices
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"libtpu knows no slice {topology.name}: {str(error).splitlines()[0]}"
        ) from error
    return found


def use_no_device() -> None:
    """Has this process compute on the CPU, so that no TPU is asked for."""
    jax.config.update("jax_platforms", "cpu")
