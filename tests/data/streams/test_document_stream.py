"""Whole documents: the balance of rows, and what becomes of their segments.

What this stream has in common with all others is in tests/laws/test_stream_laws.py.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import RAGGED, N

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import document_segments
from brt.data.streams.documents import DocumentPass, assign
from brt.data.vocabularies.base import ByteVocabulary

properties = settings(deadline=None, derandomize=True, max_examples=40)


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
