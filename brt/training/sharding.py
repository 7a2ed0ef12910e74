"""The device mesh, and the sharding of trees of arrays."""

import collections
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from brt.models.axis_rules import RULES, named_spec, spec

AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def make_mesh(
    data: int = -1, model: int = 1, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """Returns a (data, model) mesh of all processes' devices; -1 takes the remaining ones.

    A slice is a set of devices with fast links: one of TPUs, or the GPUs of a node. The data axis
    crosses slices, and the model axis stays inside of each.

    devices: others, such as those of a slice to compile for.
    """
    devices = jax.devices() if devices is None else devices
    sizes = collections.Counter(getattr(device, "slice_index", 0) for device in devices)
    shape = _shape(data, model, len(devices), [sizes[index] for index in sorted(sizes)])
    # Where a dimension of a slice of TPUs has another size, it is split between both axes.
    options: dict[str, Any] = {"devices": devices, "allow_split_physical_axes": True}
    if len(sizes) == 1:  # some devices have no `slice_index` then
        grid = mesh_utils.create_device_mesh(shape, **options)
    else:
        in_slice = shape[0] // len(sizes), shape[1]
        grid = mesh_utils.create_hybrid_device_mesh(in_slice, (len(sizes), 1), **options)
    return jax.sharding.Mesh(grid, ("data", "model"), (AxisType.Auto, AxisType.Auto))


def abstract_mesh(data: int, model: int, count: int, slices: int = 1) -> jax.sharding.AbstractMesh:
    """Returns the mesh of so many devices in equal slices, as `make_mesh`, without devices."""
    shape = _shape(data, model, count, [count // slices] * slices)
    return jax.sharding.AbstractMesh(shape, ("data", "model"))


def asked_mesh(data: int, model: int, devices: str | None, planned: bool) -> AnyMesh:
    """Returns the mesh of all devices, or a planned one, for which no devices are needed.

    devices: their number, N or NODESxN, of `brt.train --devices`; None: not named.
    """
    if not devices:
        return make_mesh(data, model)
    parts = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", devices)
    if not parts:
        raise ValueError(f"--devices = {devices}: write a number, or nodes x devices, such as 2x8.")
    nodes = int(parts[1] or 1)
    count = nodes * int(parts[2])
    if planned:
        return abstract_mesh(data, model, count, nodes)
    if count != jax.device_count():
        raise ValueError(
            f"--devices = {devices}, and JAX found {jax.device_count()} x "
            f"{jax.devices()[0].device_kind}: check the job's nodes and drivers, or the flag."
        )
    return make_mesh(data, model)


def _shape(data, model, count, slices):
    asked = f"Trainer.mesh = {(data, model)}"
    shape = [data, model]
    if shape.count(-1) == 2 or any(n == 0 or n < -1 for n in shape):
        raise ValueError(f"{asked}: use positive numbers, at most one -1.")
    if -1 in shape:
        shape[shape.index(-1)] = max(count // -int(np.prod(shape)), 1)
    if np.prod(shape) != count:
        raise ValueError(
            f"{asked} does not fit {count} devices: "
            "data x model must be their number (-1 takes what is left)."
        )
    if len(set(slices)) > 1:
        raise ValueError(
            f"{asked}: the {count} devices are in slices or nodes of {', '.join(map(str, slices))} "
            "devices: use slices and nodes of one size."
        )
    if slices[0] % shape[1]:
        raise ValueError(
            f"{asked}: {shape[1]} model-parallel devices do not divide the {slices[0]} devices of "
            f"a slice or node ({len(slices)} in all), and must be in one: use a divisor of "
            f"{slices[0]} as the second number."
        )
    return tuple(shape)


def shardings(tree: Any, mesh: AnyMesh) -> Any:
    """Returns a `NamedSharding` for each array of a tree, by `brt.models.axis_rules.named_spec`."""

    def sharding(path, leaf):
        return NamedSharding(mesh, named_spec(path, leaf.shape, mesh.shape))

    return jax.tree_util.tree_map_with_path(sharding, tree)


def divisible_rows(mesh: jax.sharding.Mesh, rows: int) -> int:
    return -(-rows // mesh.shape["data"]) * mesh.shape["data"]


def check_divisible(mesh: AnyMesh, rows: int, model_sizes: dict[str, int]) -> None:
    """Refuses meshes that would leave devices idle or with copies.

    rows: batch elements of a microbatch. model_sizes: by binding, sizes that the model axis must
    divide.
    """
    if rows % mesh.shape["data"]:
        raise ValueError(
            f"{rows} batch elements cannot be divided over {mesh.shape['data']} data-parallel "
            "devices: change Trainer.tokens_per_step, Trainer.accumulation, "
            "Trainer.segment_length or Trainer.mesh."
        )
    for name, size in model_sizes.items():
        if size % mesh.shape["model"]:
            raise ValueError(
                f"{name} = {size} cannot be divided over {mesh.shape['model']} model-parallel "
                "devices: change it, or the second number of Trainer.mesh."
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
        shape: the global shape.
        axes: their names, B for the batch.
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

    If several processes read the same rows, as with a divided model, the first process owns them.
    """
    sharding = NamedSharding(mesh, spec("B"))
    owners: dict[tuple[int, int], int] = {}
    parts: Mapping[Any, tuple[slice, ...]] = sharding.devices_indices_map((rows,))
    for device, (part,) in parts.items():
        start, stop, _ = part.indices(rows)
        key = start, stop - start
        owners[key] = min(device.process_index, owners.get(key, device.process_index))
    return sorted(key for key, owner in owners.items() if owner == jax.process_index())


def sum_over_processes(number: int) -> int:
    """Returns the sum of one integer below 2**64 of every process; all processes wait for it."""
    if jax.process_count() == 1:
        return number
    halves = np.array(divmod(number, 2**32), np.uint32)  # JAX has no 64 bits by default
    high, low = multihost_utils.process_allgather(halves).astype(object).sum(axis=0)
    return int(high) * 2**32 + int(low)


def to_host(x: jax.Array) -> np.ndarray:
    if jax.process_count() > 1:
        return multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
