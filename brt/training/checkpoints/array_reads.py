"""Reads of arrays by Orbax: by the processes of one replica, which send them to the others.

Orbax's `SingleReplicaArrayHandler` does the same, but its sum of floats makes 0.0 of -0.0.
"""

import asyncio
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from brt.training.checkpoints.transient_errors import transient_reason

READ, DAMAGED, TRANSIENT = range(3)
"""Outcomes of the reads of a process."""


def read_one_replica(handler: Any) -> None:
    """Makes an Orbax handler read each array once, where several processes have it.

    All reads end before the error of one is raised, in all processes.
    """

    async def deserialize(infos, args=None):
        args = args or [None] * len(infos)
        replicas = [_first_replica(getattr(arg, "sharding", None)) for arg in args]
        here = [n for n, replica in enumerate(replicas) if not replica or _is_here(replica)]
        wanted = [
            dataclasses.replace(args[n], sharding=replicas[n]) if replicas[n] else args[n]
            for n in here
        ]
        read = await _read_together(handler, [infos[n] for n in here], wanted)
        arrays = dict(zip(here, read, strict=True))
        return [
            _sent(arrays.get(n), arg) if replica else arrays[n]
            for n, (arg, replica) in enumerate(zip(args, replicas, strict=True))
        ]

    handler.deserialize = deserialize


async def _read_together(handler, infos, args):
    """Returns the arrays; raises in all processes if one fails."""
    arrays, error = [], None
    before = asyncio.all_tasks()
    try:
        if infos:
            arrays = await type(handler).deserialize(handler, infos, args)
    except BaseException as failed:
        # Orbax closes the event loop at the first error. Other reads would then print tracebacks
        # when they end or are garbage-collected.
        while reads := asyncio.all_tasks() - before:
            await asyncio.gather(*reads, return_exceptions=True)
        if not isinstance(failed, Exception):
            raise
        error = failed
    outcome = READ if error is None else TRANSIENT if transient_reason(error) else DAMAGED
    outcomes = np.ravel(multihost_utils.process_allgather(np.int32(outcome)))
    if error is not None:
        raise error
    if outcomes.any():
        kind = ConnectionError if TRANSIENT in outcomes else ValueError
        raise kind(f"process {np.flatnonzero(outcomes)[0]} could not read its arrays")
    return arrays


def _unused_axes(sharding):
    used = {name for names in sharding.spec if names for name in np.atleast_1d(names)}
    return tuple(name for name in sharding.mesh.axis_names if name not in used)


def _first_replica(sharding):
    """Returns the sharding of the first replica of an array; None if every process has a part.

    Its devices are first along each mesh axis that does not divide the array.
    """
    if not isinstance(sharding, NamedSharding) or jax.process_count() == 1:
        return None
    mesh, unused = sharding.mesh, _unused_axes(sharding)
    index = tuple(slice(1) if name in unused else slice(None) for name in mesh.axis_names)
    first = Mesh(mesh.devices[index], mesh.axis_names, mesh.axis_types)
    if first.devices.size == mesh.size or _processes(first) == _processes(mesh):
        return None
    return NamedSharding(first, sharding.spec)


def _processes(mesh):
    return {device.process_index for device in mesh.devices.flat}


def _is_here(sharding):
    return jax.process_index() in _processes(sharding.mesh)


def _sent(read, arg):
    """Returns an array on all devices, from those of its first replica.

    read: of the first replica; None in other processes. arg: shape, dtype and sharding.
    """
    shape, sharding = arg.global_shape, arg.sharding
    shards = read.addressable_shards if read is not None else ()
    held = {shard.device: shard.data for shard in shards}
    # Zeros where an array is not read, so the sum is the array.
    buffers = [
        held[device]
        if device in held
        else jnp.zeros(sharding.shard_shape(shape), arg.dtype, device=device)
        for device in sharding.addressable_devices_indices_map(shape)
    ]
    array = jax.make_array_from_single_device_arrays(shape, sharding, buffers)
    return _sum_over_replicas(sharding)(array)


@functools.cache
def _sum_over_replicas(sharding):
    mesh, spec, replicas = sharding.mesh, sharding.spec, _unused_axes(sharding)

    def sum_of_bits(x):
        if x.dtype == bool:
            return jax.lax.psum(x.astype(jnp.uint8), replicas).astype(bool)
        bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
        return jax.lax.bitcast_convert_type(jax.lax.psum(bits, replicas), x.dtype)

    summed = jax.shard_map(
        sum_of_bits, mesh=mesh, in_specs=(spec,), out_specs=spec, check_vma=False
    )
    return jax.jit(summed, donate_argnums=0)
