"""Reading ahead: the right rows, each once, while the step runs."""

import collections
import threading
import time

import jax
import numpy as np
import pytest
from stores import RAGGED, W, lengths_for
from tiny_run import mesh_of

from brt.data.streams.checksum import MODULUS, checksum_of
from brt.data.streams.select import STREAMS, evaluation_pass, training_stream
from brt.training.prefetch import Prefetch, device_batch
from brt.training.records.goodput import Goodput


class Watched:
    """A stream that notes which rows were asked of it, and when a step was read."""

    def __init__(self, stream):
        self.stream, self.asked = stream, []
        self.read = collections.defaultdict(threading.Event)
        self.store, self.rows = stream.store, stream.rows
        self.segment_length = stream.segment_length
        self.segments_per_step = stream.segments_per_step

    def batch(self, step, first_row, num_rows):
        assert threading.current_thread() is not threading.main_thread()
        self.asked.append((step, first_row, num_rows))
        batch = self.stream.batch(step, first_row, num_rows)
        self.read[step].set()
        return batch


def store_for(kind, store_of):
    """A store that a stream of this kind can read."""
    marks = dict(labelled=kind == "labelled", weighted=kind == "questions")
    return store_of(lengths_for(kind), **marks)


@pytest.mark.skipif(jax.device_count() != 8, reason="needs eight devices")
@pytest.mark.parametrize("mesh_shape", [(1, 1), (8, 1), (2, 4), (4, 2), (1, 8)])
@pytest.mark.parametrize("kind", STREAMS)
def test_every_row_is_read_once_and_the_checksum_is_the_batches(store_of, kind, mesh_shape):
    mesh, plain = mesh_of(*mesh_shape), training_stream(kind, store_for(kind, store_of), 8, W, 2, 1)
    stream = Watched(plain)
    prefetch = Prefetch(stream, mesh, start=3, stop=9, keeps_checksum=True)
    expected = 0
    for step in range(3, 9):
        batch, wanted = prefetch.next(), plain.batch(step)
        for found, array in zip(batch, wanted, strict=True):
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
        expected += checksum_of(wanted, step)
        assert prefetch.checksum == expected % MODULUS  # of the returned batches only
    prefetch.close()
    rows = 8 // mesh_shape[0]
    each = [(step, row, rows) for step in range(3, 9) for row in range(0, 8, rows)]
    assert sorted(stream.asked) == each


@pytest.mark.parametrize("kind", STREAMS)
def test_a_pass_can_be_read_too(store_of, kind):
    reader = evaluation_pass(kind, store_for(kind, store_of), 8, W)
    batch = device_batch(reader, mesh_of(1, 1), 1)
    for found, array in zip(batch, reader.batch(1), strict=True):
        np.testing.assert_array_equal(found, array)


def test_the_next_batch_is_read_while_the_step_runs(store_of):
    stream = Watched(training_stream("documents", store_of(RAGGED), 8, W))
    prefetch = Prefetch(stream, mesh_of(1, 1))
    prefetch.next()
    assert stream.read[1].wait(60)  # and nobody has asked for it yet
    assert not stream.read[2].wait(0.05)  # one ahead, no more
    prefetch.next()
    assert stream.read[2].wait(60)
    prefetch.close()


def test_only_the_time_spent_waiting_for_data_is_counted(store_of, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Slow(Watched):
        def batch(self, step, *rows):
            if step == 2:
                assert self.wanted.wait(60)
                now[0] += 5.0
            return super().batch(step, *rows)

    stream = Slow(training_stream("documents", store_of(RAGGED), 8, W))
    stream.wanted = threading.Event()
    goodput = Goodput({}, str(tmp_path))
    prefetch = Prefetch(stream, mesh_of(1, 1))
    prefetch.next()
    assert stream.read[1].wait(60)
    now[0] += 7.0  # a step, while the next batch is there already
    prefetch.next()
    assert goodput.lap()[1] == 0.0
    threading.Timer(0.2, stream.wanted.set).start()
    prefetch.next()
    assert goodput.lap() == (5.0, 5.0)
    prefetch.close()


def test_what_reading_raises_is_raised_where_the_batch_is_wanted(store_of):
    class Broken(Watched):
        def batch(self, *rows):
            raise OSError("the disk is gone")

    prefetch = Prefetch(Broken(training_stream("documents", store_of(RAGGED), 8, W)), mesh_of(1, 1))
    with pytest.raises(OSError, match="the disk is gone"):
        prefetch.next()
    prefetch.close()
