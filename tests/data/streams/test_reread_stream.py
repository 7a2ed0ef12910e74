"""Steps that read earlier segments again: the same segments, each scored once."""

from collections import Counter

import pytest
from stores import RAGGED, W, joined, same
from streams_under_test import TRAINING

from brt.data.streams.checksum import checksum_of
from brt.data.streams.reread import RereadStream
from brt.data.streams.select import training_stream

AGAIN = 3
ROWS = 3
every_stream = pytest.mark.parametrize("entry", [e for e in TRAINING if e.any_cut], ids=str)


def opened(entry, store_of, reread=AGAIN):
    """The stream with and without re-reading, over one store with loss weights."""
    store = entry.make_store(store_of, RAGGED, W, True)
    new = entry.open(store, ROWS, W, 1, 5)
    return RereadStream(new, reread), new


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


@pytest.mark.parametrize("entry", [e for e in TRAINING if e.any_cut and e.epoch], ids=str)
def test_every_token_is_scored_exactly_once_an_epoch(entry, store_of):
    stream, new = opened(entry, store_of)
    counts = [Counter(), Counter()]
    for row, number in entry.epoch(new, 1):
        for count, source in zip(counts, (stream, new)):
            batch = source.batch(number, row, 1)
            count.update(batch.targets_KBT[batch.weights_KBT > 0].tolist())
    assert counts[0] == counts[1]
    assert set(counts[0].values()) == {1}


def test_the_checksum_is_of_all_that_a_step_reads(store_of):
    store = store_of(RAGGED)
    streams = [
        training_stream("documents", store, ROWS, W, reread_segments=k) for k in range(AGAIN)
    ]
    assert len({checksum_of(stream.batch(20), 20) for stream in streams}) == AGAIN
    # The segments that are read again enter the checksum too.
    batch = streams[2].batch(20)
    before = checksum_of(batch, 20)
    batch.inputs_KBT[0, 0, 0] += 1
    assert checksum_of(batch, 20) != before
