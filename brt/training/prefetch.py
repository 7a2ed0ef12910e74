"""Reads the next batch, and puts it on the devices, while the current step runs."""

import time
from concurrent.futures import ThreadPoolExecutor

from brt.data.document_stream import Batch
from brt.training.sharding import put_rows

FIELDS = {name: name.rsplit("_", 1)[1] for name in Batch._fields}


class Prefetch:
    """Batches of consecutive steps as global device arrays, one ahead.

    Args:
        stream: has `rows` and `batch(step, first_row, num_rows)`.
        mesh: rows are divided over its data axis; each process reads its own.
        start: the first step.
        stop: no step from here on is read; None for no end.

    Attributes:
        waited: seconds `next` has waited for data since it was last set to 0.
    """

    def __init__(self, stream, mesh, start=0, stop=None):
        self.stream, self.mesh, self.step, self.stop = stream, mesh, start, stop
        self.waited = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._next = self._submit()

    def _submit(self):
        if self.stop is not None and self.step >= self.stop:
            return None
        self.step += 1
        return self._thread.submit(device_batch, self.stream, self.mesh, self.step - 1)

    def next(self) -> Batch:
        """The next step's batch; raises what reading it raised."""
        begun = time.perf_counter()
        batch = self._next.result()
        self.waited += time.perf_counter() - begun
        self._next = self._submit()
        return batch

    def close(self):
        self._thread.shutdown(wait=True, cancel_futures=True)


def device_batch(stream, mesh, step) -> Batch:
    """One step's batch as global device arrays."""
    parts = {}

    def rows_of(first, count, field):
        if (first, count) not in parts:
            parts[first, count] = stream.batch(step, first, count)
        return getattr(parts[first, count], field)

    # One read decides shapes and types; it is among those that the devices need.
    first_part = stream.batch(step, 0, 1)
    return Batch(
        *(
            put_rows(
                mesh,
                tuple(
                    stream.rows if letter == "B" else size
                    for letter, size in zip(letters, getattr(first_part, field).shape, strict=True)
                ),
                getattr(first_part, field).dtype,
                letters,
                lambda first, count, field=field: rows_of(first, count, field),
            )
            for field, letters in FIELDS.items()
        )
    )
