"""Reads the next batch and puts it on the devices while the current step runs."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax

from brt.data.streams.base import Stream
from brt.data.streams.batch import DTYPES, Batch
from brt.data.streams.checksum import MODULUS, checksum_of
from brt.training.records.goodput import spent
from brt.training.sharding import owned_rows, put_rows


class Prefetch:
    """Batches of consecutive steps as global device arrays, one ahead, in another thread.

    checksum: this process's part of the data checksum of the batches returned so far, if
    `keeps_checksum`.
    """

    def __init__(
        self,
        stream: Stream,
        mesh: jax.sharding.Mesh,
        start: int = 0,
        stop: int | None = None,
        keeps_checksum: bool = False,
    ):
        self.stream = stream
        self.mesh = mesh
        self.step = start
        self.stop = stop
        self.checksum = 0
        self._owned_rows = owned_rows(mesh, stream.rows) if keeps_checksum else []
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._next = self._submit()

    def _submit(self):
        if self.stop is not None and self.step >= self.stop:
            return None
        self.step += 1
        return self._thread.submit(self._read, self.step - 1)

    def _read(self, step):
        rows = host_rows(self.stream, step)
        batch = device_batch(self.stream, self.mesh, step, rows)
        hashes = (checksum_of(rows(*part), step, part[0]) for part in self._owned_rows)
        return batch, sum(hashes)

    def next(self) -> Batch:
        if self._next is None:
            raise IndexError(f"There is no step {self.step}: reading stops there.")
        with spent("input"):
            batch, hashed = self._next.result()
        self.checksum = (self.checksum + hashed) % MODULUS
        self._next = self._submit()
        return batch

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


Rows = Callable[[int, int], Batch]
"""From (first row, number of rows) to these rows of one step's batch, on the host."""


def host_rows(stream: Stream, step: int) -> Rows:
    """Returns `Rows` that reads each part once."""
    return functools.cache(functools.partial(stream.batch, step))


def device_batch(
    stream: Stream, mesh: jax.sharding.Mesh, step: int, rows: Rows | None = None
) -> Batch:
    host = rows or host_rows(stream, step)
    sizes = {"K": stream.segments_per_step, "B": stream.rows, "T": stream.segment_length}

    def on_devices(field, dtype):
        axes = field.rsplit("_", 1)[1]
        return put_rows(
            mesh,
            tuple(sizes[axis] for axis in axes),
            dtype,
            axes,
            lambda first_row, num_rows: getattr(host(first_row, num_rows), field),
        )

    return Batch._make(map(on_devices, Batch._fields, DTYPES))
