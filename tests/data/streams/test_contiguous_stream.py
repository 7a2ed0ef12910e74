"""Contiguous rows: joined they give the corpus back, in order or with documents shuffled.

What this stream has in common with all others is in tests/laws/test_stream_laws.py.
"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from stores import RAGGED, N, W, joined

from brt.data.streams.contiguous import ContiguousStream

properties = settings(deadline=None, derandomize=True, max_examples=40)
corpora = st.lists(st.sampled_from(RAGGED), min_size=4, max_size=12)
lengths_of_segments = st.sampled_from([1, 2, W, N, 64])


def epoch_of(stream, epoch):
    """Pairs (input, target) of each row in one epoch."""
    count = int(stream.row_segments_B[0])
    assert stream.segments_per_step == 1
    batches = [stream.batch(epoch * count + number) for number in range(count)]
    whole = joined(batches, axis=0)
    pairs = []
    for row in range(stream.rows):
        read = whole.weights_KBT[:, row] > 0
        pairs.append(list(zip(whole.inputs_KBT[:, row][read], whole.targets_KBT[:, row][read])))
    return pairs


@properties
@given(corpora, st.integers(1, 4), lengths_of_segments)
def test_rows_joined_are_the_beginning_of_the_corpus(store_of, lengths, rows, length):
    store = store_of(lengths)
    stream = ContiguousStream(store, rows, length)
    corpus = [int(t) for d in range(store.num_documents) for t in store.tokens(d)]
    for epoch in (0, 3):
        pairs = epoch_of(stream, epoch)
        assert {len(row) for row in pairs} == {(len(corpus) - 1) // rows}
        read = [pair for row in pairs for pair in row]
        assert read == list(itertools.pairwise(corpus))[: len(read)]
        assert len(corpus) - 1 - len(read) < rows  # all that was dropped


@properties
@given(corpora, st.integers(1, 4), lengths_of_segments, st.integers(0, 5))
def test_shuffled_documents_are_each_read_whole_once_an_epoch(
    store_of, lengths, rows, length, seed
):
    store = store_of(lengths)
    stream = ContiguousStream(store, rows, length, seed=seed, shuffle=True)
    documents = {int(store.tokens(d)[0]): store.tokens(d).tolist() for d in range(len(lengths))}
    for epoch in (0, 1):
        rows_pairs = epoch_of(stream, epoch)
        pairs = [pair for row in rows_pairs for pair in row]
        sequence = [int(pairs[0][0]), *(int(target) for _, target in pairs)]
        assert [int(first) for first, _ in pairs] == sequence[:-1]
        assert max(map(len, rows_pairs)) - min(map(len, rows_pairs)) <= 1
        seen = []
        while sequence:
            seen.append(sequence[0])
            document = documents[sequence[0]]
            assert sequence[: len(document)] == document
            sequence = sequence[len(document) :]
        assert sorted(seen) == sorted(documents)
