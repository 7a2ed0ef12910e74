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

    Args:
        keeps_checksum, keeps_host: compute these attributes.

    Attributes:
        checksum: this process's part of the data checksum of the batches returned so far.
        host: the last batch of `next`, whole, in NumPy arrays; of several processes, each of which
            has its own batch elements, on the devices.
    """

    def __init__(
        self,
        stream: Stream,
        mesh: jax.sharding.Mesh,
        start: int = 0,
        stop: int | None = None,
        keeps_checksum: bool = False,
        keeps_host: bool = False,
    ):
        self.stream = stream
        self.mesh = mesh
        self.step = start
        self.stop = stop
        self.checksum = 0
        self.host: Batch | None = None
        self._keeps_host = keeps_host and jax.process_count() == 1
        self._owned_rows = owned_rows(mesh, stream.rows) if keeps_checksum else []
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._next = self._submit()

    def _submit(self):
        if self.stop is not None and self.step >= self.stop:
            return None
        self.step += 1
        return self._thread.submit(self._read, self.step - 1)

    def _read(self, step):
        rows = host_rows(self.stream, step, whole=self._keeps_host)
        batch = device_batch(self.stream, self.mesh, step, rows)
        hashes = (checksum_of(rows(*part), step, part[0]) for part in self._owned_rows)
        host = rows(0, self.stream.rows) if self._keeps_host else None
        return batch, host, sum(hashes)

    def next(self) -> Batch:
        if self._next is None:
            raise IndexError(f"There is no step {self.step}: reading stops there.")
        with spent("input"):
            batch, host, hashed = self._next.result()
        self.host = host or batch
        self.checksum = (self.checksum + hashed) % MODULUS
        self._next = self._submit()
        return batch

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


Rows = Callable[[int, int], Batch]
"""From (first row, number of rows) to these rows of one step's batch, on the host."""


def host_rows(stream: Stream, step: int, whole: bool = False) -> Rows:
    """Returns `Rows` that reads each part once.

    whole: read all rows at the first request.
    """

    @functools.cache
    def rows(first_row: int, num_rows: int) -> Batch:
        if whole and num_rows < stream.rows:
            batch = rows(0, stream.rows)
            return Batch(*(array[:, first_row : first_row + num_rows] for array in batch))
        return stream.batch(step, first_row, num_rows)

    return rows


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
