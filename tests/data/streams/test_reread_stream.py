"""Steps that read earlier segments again: the same segments, each scored once."""

import pytest
from stores import RAGGED, W, joined, same
from streams_under_test import TRAINING

from brt.data.streams.reread import RereadStream

AGAIN = 3
ROWS = 3
every_stream = pytest.mark.parametrize("entry", [e for e in TRAINING if e.any_cut], ids=str)


def opened(entry, store_of):
    """The stream with and without re-reading, over one store with loss weights."""
    store = entry.make_store(store_of, RAGGED, W, True)
    new = entry.open(store, ROWS, W, 1, 5)
    return RereadStream(new, AGAIN), new


@every_stream
def test_a_step_reads_the_segments_before_its_own_again(entry, store_of):
    stream, new = opened(entry, store_of)
    assert stream.segments_per_step == AGAIN + 1
    for step in (AGAIN, AGAIN + 1, 40, 10**6):
        expected = joined([new.batch(step - k) for k in reversed(range(AGAIN + 1))], axis=0)
        expected.weights_KBT[:-1] = 0
        assert expected.weights_KBT.any()
        assert same(stream.batch(step), expected)


@every_stream
def test_before_the_first_segment_there_is_nothing_to_read(entry, store_of):
    stream, new = opened(entry, store_of)
    for step in range(AGAIN):
        batch, missing = stream.batch(step), AGAIN - step
        assert batch.starts_KB[:missing].all()
        assert not any(array[:missing].any() for array in batch[:3])
        assert same([x[missing] for x in batch[:2]], [new.batch(0)[i][0] for i in range(2)])
        # The first real segment clears the caches that the padding has filled.
        assert batch.starts_KB[missing].all()
