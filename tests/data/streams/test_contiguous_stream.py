"""Contiguous rows: joined they give the corpus back, in order or with documents shuffled.

What this stream has in common with all others is in tests/laws/test_stream_laws.py.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import RAGGED, N, W, joined

from brt.data.streams.contiguous import ContiguousPass, ContiguousStream

properties = settings(deadline=None, derandomize=True, max_examples=40)
corpora = st.lists(st.sampled_from(RAGGED), min_size=4, max_size=12)
lengths_of_segments = st.sampled_from([1, 2, W, N, 64])


def epoch_of(stream, epoch):
    """Pairs (input, target) of each row in one epoch, and where starts are set."""
    count = int(stream.row_segments_B[0])
    assert stream.segments_per_step == 1
    batches = [stream.batch(epoch * count + number) for number in range(count)]
    whole = joined(batches, axis=0)
    pairs = []
    for row in range(stream.rows):
        read = whole.weights_KBT[:, row] > 0
        pairs.append(list(zip(whole.inputs_KBT[:, row][read], whole.targets_KBT[:, row][read])))
    return pairs, whole.starts_KB


@properties
@given(corpora, st.integers(1, 4), lengths_of_segments)
def test_rows_joined_are_the_beginning_of_the_corpus(store_of, lengths, rows, length):
    store = store_of(lengths)
    stream = ContiguousStream(store, rows, length)
    corpus = [int(t) for d in range(store.num_documents) for t in store.tokens(d)]
    for epoch in (0, 3):
        pairs, _ = epoch_of(stream, epoch)
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
        rows_pairs, _ = epoch_of(stream, epoch)
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


def test_epochs_and_seeds_have_orders_of_their_own(store_of):
    store = store_of([3] * 20)
    orders = {
        tuple(map(tuple, epoch_of(ContiguousStream(store, 2, 7, 1, seed, True), epoch)[0]))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_last_step_may_be_shorter_and_is_padded(store_of, shuffle):
    stream = ContiguousStream(store_of([31]), 3, 8, shuffle=shuffle)  # ten pairs a row
    last = stream.batch(1)
    assert last.weights_KBT.tolist() == [[[1, 1, 0, 0, 0, 0, 0, 0]] * 3]
    assert not last.inputs_KBT[:, :, 2:].any() and not last.targets_KBT[:, :, 2:].any()


@properties
@given(corpora, st.integers(1, 90), lengths_of_segments)
def test_a_pass_scores_every_token_but_the_first_once(store_of, lengths, rows, length):
    store = store_of(lengths)
    reader, scored = ContiguousPass(store, rows, length), []
    for step in range(reader.num_steps):
        batch = reader.batch(step)
        assert batch.weights_KBT.any()
        for row, (document, offset) in enumerate(zip(*reader.positions(step))):
            read = batch.weights_KBT[0, row] > 0
            targets = batch.targets_KBT[0, row][read].tolist()
            assert batch.inputs_KBT[0, row][read].tolist() == [t - 1 for t in targets]
            assert batch.starts_KB[0, row] == (step == 0 or not targets)
            assert (document >= 0) == bool(targets)
            if targets:
                assert targets[0] == store.tokens(document)[offset]
            scored += targets
    assert sorted(scored) == list(range(1001, 1000 + store.num_tokens))
    assert not reader.batch(reader.num_steps).weights_KBT.any()
    assert (reader.positions(reader.num_steps)[0] == -1).all()
