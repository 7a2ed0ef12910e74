"""Reads the next batch, and puts it on the devices, while the current step runs."""

import time
from concurrent.futures import ThreadPoolExecutor

from brt.data.streams.batch import DTYPES, Batch
from brt.data.streams.ids import check_ids
from brt.data.streams.ledger import MODULUS, ledger_of
from brt.training.sharding import put_rows, rows_answered_for

FIELDS = {name: name.rsplit("_", 1)[1] for name in Batch._fields}


class Prefetch:
    """Batches of consecutive steps as global device arrays, one ahead.

    Reading, checking, hashing and the transfer to the devices happen in a thread of their own. A
    batch with an id beyond the vocabulary is an error of `next`.

    Args:
        stream: has `rows`, `segment_length`, `segments_per_step` and
            `batch(step, first_row, num_rows)`.
        mesh: rows are divided over its data axis; each process reads its own.
        start: the first step.
        stop: no step from here on is read; None for no end.
        keeps_ledger: hash what is read, for `ledger`.
        keeps_host: keep all rows on the host too, for `host`.

    Attributes:
        waited: seconds `next` has waited for data since it was last set to 0.
        ledger: what this process adds to the ledger of the batches that `next` has given.
        host: the last batch that `next` has given, in NumPy arrays; None unless it is kept.
    """

    def __init__(self, stream, mesh, start=0, stop=None, keeps_ledger=False, keeps_host=False):
        self.stream, self.mesh, self.step, self.stop = stream, mesh, start, stop
        self.waited, self.ledger = 0.0, 0
        self.host, self._keeps_host = None, keeps_host
        self._answers_for = rows_answered_for(mesh, stream.rows) if keeps_ledger else ()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._next = self._submit()

    def _submit(self):
        if self.stop is not None and self.step >= self.stop:
            return None
        self.step += 1
        return self._thread.submit(self._read, self.step - 1)

    def _read(self, step):
        parts = (WholeOnHost if self._keeps_host else HostParts)(self.stream, step)
        batch = device_batch(self.stream, self.mesh, step, parts)
        hashes = (ledger_of(parts[rows], step, rows[0]) for rows in self._answers_for)
        return batch, parts.whole, sum(hashes)

    def next(self) -> Batch:
        """The next step's batch; raises what reading it raised."""
        begun = time.perf_counter()
        batch, self.host, hashed = self._next.result()
        self.waited += time.perf_counter() - begun
        self.ledger = (self.ledger + hashed) % MODULUS
        self._next = self._submit()
        return batch

    def close(self):
        self._thread.shutdown(wait=True, cancel_futures=True)


class HostParts(dict):
    """One step's batch on the host, by (first row, number of rows), each part read once."""

    whole = None

    def __init__(self, stream, step):
        self.stream, self.step = stream, step

    def __missing__(self, rows):
        return self.setdefault(rows, self.read(*rows))

    def read(self, first_row, num_rows) -> Batch:
        """Some rows of the step, with ids that the store's vocabulary has.

        Raises:
            ValueError: the store is damaged.
        """
        batch = self.stream.batch(self.step, first_row, num_rows)
        if hasattr(self.stream, "store"):
            check_ids(batch, self.stream.store)
        return batch


class WholeOnHost(HostParts):
    """The same, with `whole`: all rows, read together before any part is asked for."""

    def __init__(self, stream, step):
        super().__init__(stream, step)
        self.whole = self.read(0, stream.rows)

    def __missing__(self, rows):
        first, number = rows
        return self.setdefault(rows, Batch(*(x[:, first : first + number] for x in self.whole)))


def device_batch(stream, mesh, step, parts=None) -> Batch:
    """One step's batch as global device arrays.

    Args:
        parts: a `HostParts` of that step, where what was read is wanted too.
    """
    parts = HostParts(stream, step) if parts is None else parts
    sizes = {"K": stream.segments_per_step, "B": stream.rows, "T": stream.segment_length}
    return Batch(
        *(
            put_rows(
                mesh,
                tuple(sizes[letter] for letter in letters),
                getattr(DTYPES, field),
                letters,
                lambda *rows, field=field: getattr(parts[rows], field),
            )
            for field, letters in FIELDS.items()
        )
    )
