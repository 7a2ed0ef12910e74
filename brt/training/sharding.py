"""The device mesh, and the sharding of trees of arrays."""

import collections
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from brt.models.mesh_axes import AXES, RULES, named_spec, parts, spec

AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def make_mesh(
    shape: Sequence[int] = (-1, 1),
    devices: Sequence[Any] | None = None,
    processes_are_slices: bool = False,
) -> jax.sharding.Mesh:
    """Returns a mesh (`AXES`) of all processes' devices.

    A slice is a slice of TPUs or the GPUs of a node; the model axis stays inside of one.

    Args:
        shape: (data, fsdp, model); or (rows, model), with one data-parallel part for each slice and
            rows / slices fsdp parts inside. -1 takes the remaining devices.
        devices: others, such as those of a slice to compile for.
        processes_are_slices: for devices of GPUs without cards, which are all in slice 0.
    """
    devices = jax.devices() if devices is None else devices
    name = "process_index" if processes_are_slices else "slice_index"
    sizes = collections.Counter(getattr(device, name, 0) for device in devices)
    of_slice, slices = _shapes(shape, len(devices), [sizes[index] for index in sorted(sizes)])
    # Where a dimension of a slice of TPUs has another size, both axes share it.
    options: dict[str, Any] = {"devices": devices, "allow_split_physical_axes": True}
    if len(sizes) == 1:  # some devices have no `slice_index` then
        grid = mesh_utils.create_device_mesh(of_slice, **options)
    else:
        options["process_is_granule"] = processes_are_slices
        grid = mesh_utils.create_hybrid_device_mesh(of_slice, slices, **options)
    return jax.sharding.Mesh(grid, tuple(AXES), (AxisType.Auto,) * len(AXES))


def abstract_mesh(shape: Sequence[int], count: int, slices: int = 1) -> jax.sharding.AbstractMesh:
    """Returns the mesh of `make_mesh` for `count` devices in equal slices, without devices."""
    of_slice, over_slices = _shapes(shape, count, [count // slices] * slices)
    sizes = tuple(a * b for a, b in zip(of_slice, over_slices, strict=True))
    return jax.sharding.AbstractMesh(sizes, tuple(AXES))


def slice_grid(shape: Sequence[int], count: int, slices: int) -> np.ndarray:
    """Returns the slice of each device of the mesh, in its shape; arguments of `abstract_mesh`."""
    of_slice, over_slices = _shapes(shape, count, [count // slices] * slices)
    return np.kron(np.arange(slices).reshape(over_slices), np.ones(of_slice, int))


def asked_mesh(shape: Sequence[int], devices: str | None) -> jax.sharding.Mesh:
    """Returns the mesh of all devices; refuses another number.

    devices: their number, N or NODESxN, of `brt.train --devices`; None: not named.
    """
    if devices and nodes_and_devices(devices)[1] != jax.device_count():
        raise ValueError(
            f"--devices = {devices}, and JAX found {jax.device_count()} x "
            f"{jax.devices()[0].device_kind}: check the job's nodes and drivers, or the flag."
        )
    return make_mesh(shape)


def nodes_and_devices(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", text)
    if not found:
        raise ValueError(f"--devices = {text}: write a number, or nodes x devices, such as 2x8.")
    nodes = int(found[1] or 1)
    return nodes, nodes * int(found[2])


def _shapes(asked, count, slices):
    name, (size, *others) = f"Trainer.mesh = {tuple(asked)}", slices
    shape = [*asked]
    if shape.count(-1) > 1 or any(n == 0 or n < -1 for n in shape):
        raise ValueError(f"{name}: use positive numbers, at most one -1.")
    if -1 in shape:
        shape[shape.index(-1)] = max(count // -math.prod(shape), 1)
    if math.prod(shape) != count:
        raise ValueError(
            f"{name} does not fit {count} devices: "
            "the product must be their number (-1 takes what is left)."
        )
    if set(others) - {size}:
        raise ValueError(
            f"{name}: the {count} devices are in slices or nodes of {', '.join(map(str, slices))} "
            "devices: use slices and nodes of one size."
        )
    model = shape[-1]
    if size % model:
        raise ValueError(
            f"{name}: {model} model-parallel devices do not divide the {size} devices of "
            f"a slice or node ({len(slices)} in all), and must be in one: use a divisor of "
            f"{size} as the last number."
        )
    data = shape[0] if len(shape) > 2 else len(slices)
    fsdp = count // (data * model)
    # As many slices as possible are data-parallel; the rest is divided over fsdp.
    over = math.gcd(data, len(slices)), len(slices) // math.gcd(data, len(slices))
    return (data // over[0], fsdp // over[1], model), (*over, 1)


def shardings(tree: Any, mesh: AnyMesh) -> Any:
    """Returns a `NamedSharding` for each array of a tree, by `brt.models.mesh_axes.named_spec`."""

    def sharding(path, leaf):
        return NamedSharding(mesh, named_spec(path, leaf.shape, mesh.shape))

    return jax.tree_util.tree_map_with_path(sharding, tree)


def divisible_rows(mesh: jax.sharding.Mesh, rows: int) -> int:
    return -(-rows // parts("B", mesh.shape)) * parts("B", mesh.shape)


def check_divisible(mesh: AnyMesh, rows: int, model_sizes: dict[str, int]) -> None:
    """Refuses meshes with idle or duplicate devices.

    rows: batch elements of a microbatch. model_sizes: by binding, sizes that the model axis must
    divide.
    """
    if rows % parts("B", mesh.shape):
        raise ValueError(
            f"{rows} batch elements cannot be divided over {parts('B', mesh.shape)} data-parallel "
            "devices: change Trainer.tokens_per_step, Trainer.accumulation, "
            "Trainer.segment_length or Trainer.mesh."
        )
    for name, size in model_sizes.items():
        if size % parts("H", mesh.shape):
            raise ValueError(
                f"{name} = {size} cannot be divided over {parts('H', mesh.shape)} model-parallel "
                "devices: change it, or the last number of Trainer.mesh."
            )


def put_rows(
    mesh: jax.sharding.Mesh,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    axes: str,
    rows_of: Callable[[int, int], np.ndarray],
) -> jax.Array:
    """Returns a global array, built from the batch elements that this process needs.

    Args:
        rows_of: from (first row, number of rows) to that part as a NumPy array.
    """
    axis = axes.index("B")
    spec = PartitionSpec(*(RULES.get(name) if name == "B" else None for name in axes))
    sharding = NamedSharding(mesh, spec)

    def part(index):
        start, stop, _ = index[axis].indices(shape[axis])
        return rows_of(start, stop - start)

    return jax.make_array_from_callback(shape, sharding, part, dtype=dtype)


def owned_rows(mesh: jax.sharding.Mesh, rows: int) -> list[tuple[int, int]]:
    """Returns the parts of the batch that this process owns, as (first row, number).

    The first of several processes with the same rows owns them.
    """
    sharding = NamedSharding(mesh, spec("B"))
    owners: dict[tuple[int, int], int] = {}
    places: Mapping[Any, tuple[slice, ...]] = sharding.devices_indices_map((rows,))
    for device, (part,) in places.items():
        start, stop, _ = part.indices(rows)
        key = start, stop - start
        owners[key] = min(device.process_index, owners.get(key, device.process_index))
    return sorted(key for key, owner in owners.items() if owner == jax.process_index())


def sum_over_processes(number: int) -> int:
    """Returns the sum over all processes of an integer below 2**64; waits for all."""
    if jax.process_count() == 1:
        return number
    halves = np.array(divmod(number, 2**32), np.uint32)  # JAX has no 64 bits by default
    high, low = multihost_utils.process_allgather(halves).astype(object).sum(axis=0)
    return int(high) * 2**32 + int(low)


def to_host(x: jax.Array) -> np.ndarray:
    if jax.process_count() > 1:
        return multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
