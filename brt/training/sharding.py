"""The device mesh, and the sharding of trees of arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from brt.models.axis_rules import RULES, named_spec, spec

AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def make_mesh(
    data: int = -1, model: int = 1, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """Returns a (data, model) mesh of all processes' devices; -1 takes the remaining ones.

    devices: others, such as those of a slice to compile for.
    """
    count = jax.device_count() if devices is None else len(devices)
    axes = AxisType.Auto, AxisType.Auto
    return jax.make_mesh(_shape(data, model, count), ("data", "model"), axes, devices=devices)


def abstract_mesh(data: int, model: int, count: int) -> jax.sharding.AbstractMesh:
    return jax.sharding.AbstractMesh(_shape(data, model, count), ("data", "model"))


def _shape(data, model, count):
    shape = [data, model]
    if shape.count(-1) == 2 or any(n == 0 or n < -1 for n in shape):
        raise ValueError(f"Trainer.mesh = {(data, model)}: use positive numbers, at most one -1.")
    if -1 in shape:
        shape[shape.index(-1)] = max(count // -int(np.prod(shape)), 1)
    if np.prod(shape) != count:
        raise ValueError(
            f"Trainer.mesh = {(data, model)} does not fit {count} devices: "
            "data x model must be their number (-1 takes what is left)."
        )
    return tuple(shape)


def shardings(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """Returns a `NamedSharding` for each array of a tree, by `brt.models.axis_rules.named_spec`."""

    def sharding(path, leaf):
        return NamedSharding(mesh, named_spec(path, leaf.shape, mesh.shape))

    return jax.tree_util.tree_map_with_path(sharding, tree)


def divisible_rows(mesh: jax.sharding.Mesh, rows: int) -> int:
    return -(-rows // mesh.shape["data"]) * mesh.shape["data"]


def check_divisible(mesh: AnyMesh, rows: int, model_sizes: dict[str, int]) -> None:
    """Refuses meshes that would leave devices idle or with copies.

    rows: batch elements. model_sizes: by binding, sizes that the model axis must divide.
    """
    if rows % mesh.shape["data"]:
        raise ValueError(
            f"{rows} batch elements cannot be divided over {mesh.shape['data']} data-parallel "
            "devices: change Trainer.tokens_per_step, Trainer.segment_length or Trainer.mesh."
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
