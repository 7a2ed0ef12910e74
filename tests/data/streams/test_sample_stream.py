"""The samples stream: whole samples, every scored token once, K segments a step.

What this stream has in common with all others is in tests/laws/test_stream_laws.py.
"""

import collections

import pytest
from stores import W

from brt.data.streams.samples import SamplePass, SampleStream

K = 3
LENGTHS = [K * W + 1] * 11


def of(store, batch, row):
    """The sample a row read: its number, and a check of every place of the batch."""
    inputs, targets, weights = (array[:, row].ravel() for array in batch[:3])
    document = (int(inputs[0]) - int(store.tokens(0)[0])) // LENGTHS[0]
    tokens = store.tokens(document)
    assert inputs.tolist() == tokens[:-1].tolist() and targets.tolist() == tokens[1:].tolist()
    assert weights.tolist() == store.weights(document)[1:].tolist()
    assert batch.starts_KB[:, row].tolist() == [True] + [False] * (K - 1)
    return document


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 11, 25])
def test_an_epoch_reads_every_sample_whole_and_once(store_of, rows, weighted):
    store = store_of(LENGTHS, weighted=weighted)
    stream = SampleStream(store, rows, W, K, seed=3)
    assert stream.row_segments_B.tolist() == [-(-11 * K // rows)] * rows
    steps = -(-5 * 11 // rows)
    read = [of(store, stream.batch(step), row) for step in range(steps) for row in range(rows)]
    epochs = [read[at : at + 11] for at in range(0, 55, 11)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


@pytest.mark.parametrize("length", [1, W, 2 * W, 3 * W])
@pytest.mark.parametrize("rows", [1, 4, 11, 25])
def test_a_pass_scores_each_target_of_each_sample_exactly_once(store_of, rows, length):
    if 3 * W % length:
        with pytest.raises(ValueError, match=r"segment_length = 8 .*12"):
            SamplePass(store_of(LENGTHS), rows, length)
        return
    store = store_of(LENGTHS, weighted=True)
    reader, scored = SamplePass(store, rows, length), collections.Counter()
    for step in range(reader.num_steps):
        batch = reader.batch(step)
        documents_B, offsets_B = reader.positions(step)
        for row, (document, offset) in enumerate(zip(documents_B, offsets_B)):
            if document < 0:
                assert not batch.weights_KBT[0, row].any() and batch.starts_KB[0, row]
                continue
            tokens = store.tokens(document)
            assert batch.inputs_KBT[0, row].tolist() == tokens[offset - 1 :][:length].tolist()
            assert batch.targets_KBT[0, row].tolist() == tokens[offset:][:length].tolist()
            assert batch.starts_KB[0, row] == (offset == 1)
            for target, weight in zip(batch.targets_KBT[0, row], batch.weights_KBT[0, row]):
                scored[int(target)] += float(weight)
    assert scored.total() == sum(store.weights(d)[1:].sum() for d in range(11))
    assert len(scored) == 11 * 3 * W and reader.num_steps == -(-11 // rows) * (3 * W // length)


def test_segments_that_make_no_sample_are_refused(store_of):
    store = store_of(LENGTHS)
    for sizes, told in (
        ((W, 2), "bind Trainer.segment_length = 6"),
        ((3, 5), "segments_per_step to a divisor of 12"),
        ((2 * W, 2), "bind Trainer.segment_length = 6"),
    ):
        with pytest.raises(ValueError, match=f"{told}.*padded_length"):
            SampleStream(store, 4, *sizes)
