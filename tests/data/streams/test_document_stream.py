"""Whole documents: their rows, their order, and what becomes of their segments.

What this stream has in common with all others is in tests/laws/test_stream_laws.py.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import RAGGED, N, W, plain_segments, read_row

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import document_segments, padding
from brt.data.streams.documents import DocumentPass, DocumentStream, assign
from brt.data.vocabularies.base import ByteVocabulary

properties = settings(deadline=None, derandomize=True, max_examples=40)
corpora = st.lists(st.sampled_from(RAGGED), min_size=1, max_size=12)
lengths_of_segments = st.sampled_from([1, 2, W, N, 3 * N + 5, 64])


@properties
@given(corpora, st.integers(1, 6), lengths_of_segments, st.integers(1, 3), st.integers(0, 9))
def test_an_epoch_reads_every_document_once_and_whole(store_of, lengths, rows, length, k, seed):
    rows = min(rows, len(lengths))
    store = store_of(lengths)
    stream = DocumentStream(store, rows, length, k, seed)
    segments = stream.row_segments_B.tolist()
    batches = [stream.batch(step) for step in range(-(-2 * max(segments) // k))]
    owners = []
    for row in range(rows):
        twice = read_row(store, batches, row, length, 2 * segments[row])
        half = len(twice) // 2
        assert sorted(twice[:half]) == sorted(twice[half:])  # the next epoch follows at once
        owners += twice[:half]
    assert sorted(owners) == list(range(len(lengths)))


def orders(store, seed, epochs=8, rows=2):
    """For each row, its documents in each epoch."""
    stream = DocumentStream(store, rows, 100, seed=seed)
    found = []
    for row in range(rows):
        count = int(stream.row_segments_B[row])
        batches = [stream.batch(step) for step in range(epochs * count)]
        documents = read_row(store, batches, row, 100, epochs * count)
        found.append([tuple(documents[e * count : (e + 1) * count]) for e in range(epochs)])
    return found


def test_epochs_rows_and_seeds_have_orders_of_their_own(store_of):
    store = store_of([7] * 16)  # one segment each, so every row holds eight documents
    rows = orders(store, seed=0)
    for epochs in rows:
        assert len(set(epochs)) == len(epochs)
        assert len({frozenset(epoch) for epoch in epochs}) == 1  # the row's own, every epoch
    ranks = [[tuple(sorted(epoch).index(d) for d in epoch) for epoch in epochs] for epochs in rows]
    assert ranks[0] != ranks[1]
    others = orders(store, seed=1)
    assert set(rows[0]).isdisjoint(others[0])
    assert sorted(rows[0][0]) != sorted(others[0][0])  # assigned to other rows as well
    assert rows == orders(store, seed=0)


@properties
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 9), st.randoms())
def test_rows_are_balanced_to_within_the_longest_document(segments, rows, order):
    shuffled = list(range(len(segments)))
    order.shuffle(shuffled)
    assigned = [row.tolist() for row in assign(np.array(segments), rows, np.array(shuffled))]
    loads = [sum(segments[d] for d in row) for row in assigned]
    assert sorted(d for row in assigned for d in row) == list(range(len(segments)))
    assert max(loads) - min(loads) <= max(segments)

    plain = [[] for _ in range(rows)]
    for document in sorted(shuffled, key=lambda d: -segments[d]):
        lightest = min(range(rows), key=lambda r: sum(segments[d] for d in plain[r]))
        plain[lightest].append(document)
    assert assigned == plain


@properties
@given(corpora, st.integers(1, 15), lengths_of_segments)
def test_a_pass_scores_every_token_once_and_stops(store_of, lengths, rows, length):
    store = store_of(lengths)
    reader = DocumentPass(store, rows, length)
    scored = []
    for step in range(reader.num_steps):
        batch = reader.batch(step)
        documents_B, offsets_B = reader.positions(step)
        assert batch.weights_KBT.any()  # no step without a token to score
        for row, (document, offset) in enumerate(zip(documents_B, offsets_B)):
            targets = batch.targets_KBT[0, row][batch.weights_KBT[0, row] > 0]
            if document < 0:
                assert not targets.size and batch.starts_KB[0, row]
                assert not batch.inputs_KBT[0, row].any() and offset == 0
                continue
            assert targets.tolist() == store.tokens(document, offset, offset + length).tolist()
            wanted = plain_segments(store, document, length)[offset // length]
            assert batch.inputs_KBT[0, row].tolist() == wanted[0]
            assert batch.starts_KB[0, row] == wanted[3]
            scored += targets.tolist()
    assert sorted(scored) == list(range(1000, 1000 + store.manifest["tokens"]))
    assert not reader.batch(reader.num_steps).weights_KBT.any()


def test_a_pass_over_chosen_documents_reads_these_and_no_others(store_of):
    store = store_of(RAGGED)
    reader = DocumentPass(store, 2, N, documents=[7, 2, 5])
    read = {}
    for step in range(reader.num_steps):
        batch = reader.batch(step)
        for row, document in enumerate(reader.positions(step)[0]):
            scored = int(batch.weights_KBT[0, row].sum())
            read[int(document)] = read.get(int(document), 0) + scored
    assert {d: n for d, n in read.items() if d >= 0} == {d: RAGGED[d] for d in (2, 5, 7)}
    assert not read.get(-1)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 29])
def test_a_document_read_outside_a_store_is_cut_as_one_inside(tmp_path, length):
    text = bytes(np.random.default_rng(length).integers(0, 256, length, np.uint8))
    write_store(tmp_path / "s", [Document("d", text)], ByteVocabulary(), {}, quiet=True)
    inside = DocumentPass(TokenStore(tmp_path / "s"), 1, 8)
    outside = list(document_segments(np.frombuffer(text, np.uint8), 8))
    assert len(outside) == inside.num_steps
    for step, found in enumerate(outside):
        for a, b in zip(found, inside.batch(step).segment(0), strict=True):
            np.testing.assert_array_equal(a, b)


def test_arrays_have_the_axes_of_their_names():
    (segment,) = document_segments(np.arange(5), 8)
    batch = padding(3, 2, 8)
    for arrays in (batch, batch.segment(2), segment):
        for name, array in arrays._asdict().items():
            assert array.ndim == len(name.rpartition("_")[2]), name
