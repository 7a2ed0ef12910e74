"""Mixtures: every row reads whole documents of every store, for its share of the tokens.

What this stream has in common with all others is in tests/laws/test_stream_laws.py.
"""

import numpy as np
import pytest
from stores import RAGGED, N, Upper, joined

from brt.data.corpus import Corpus
from brt.data.mixture import MixedStore, Mixture
from brt.data.sources.files import TextFiles
from brt.data.stores.layout import token_difference
from brt.data.streams.mixture import MixtureStream
from brt.data.vocabularies.base import ByteVocabulary

BOOKS, NOTES, PAGES = [31, 40, 57, 12, 90, 33, 64, 41], [1, 2, 5, 3, 1, 1, 4], RAGGED


@pytest.fixture
def mixed(store_of):
    def make(shares=(0.5, 0.2, 0.3)):
        firsts = (1000, 5000, 9000)
        stores = [store_of(d, first=f) for d, f in zip((BOOKS, NOTES, PAGES), firsts)]
        return MixedStore(stores[: len(shares)], list(shares))

    return make


def documents_read(store, stream, row, segments):
    """Documents of a row, in order, of about so many segments; each was read whole."""
    document_of = {int(store.tokens(d)[0]): d for d in range(store.num_documents)}
    documents, number = [], 0
    while number < segments:
        document = document_of[int(stream.batch(number, row, 1).targets_KBT[0, 0, 0])]
        tokens = store.tokens(document).tolist()
        end = number + -(-len(tokens) // stream.segment_length)
        batches = [stream.batch(step, row, 1) for step in range(number, end)]
        targets = joined(batches, axis=0).targets_KBT.ravel().tolist()
        assert targets == tokens + [0] * (len(targets) - len(tokens))
        documents.append(document)
        number = end
    return documents


@pytest.mark.parametrize("shares", [(0.5, 0.2, 0.3), (0.98, 0.01, 0.01), (0.05, 0.95)])
@pytest.mark.parametrize(("rows", "length"), [(1, N), (3, 5)])
def test_every_row_reads_whole_documents_for_their_shares(mixed, shares, rows, length):
    store = mixed(shares)
    stream = MixtureStream(store, rows, length, seed=3)
    longest = np.array([part.lengths_D.max() for part in store.stores])
    owners = [set() for _ in range(rows)]
    for row in range(rows):
        tokens, epochs = np.zeros(len(shares)), [[] for _ in shares]
        for document in documents_read(store, stream, row, 400):
            which = np.searchsorted(store.bases, document, side="right") - 1
            tokens[which] += store.lengths_D[document]
            epochs[which].append(document)
            # Off by its own longest document, and its share of what all are off, at most.
            off = np.abs(tokens - tokens.sum() * np.array(shares))
            assert (off <= longest + np.array(shares) * longest.sum()).all()
        for read in filter(None, epochs):
            own = len(set(read))
            owners[row] |= set(read)
            for start in range(0, len(read) - own + 1, own):
                assert len(set(read[start : start + own])) == own  # an epoch of the row
    if shares == (0.5, 0.2, 0.3):  # all were read within the steps looked at
        assert sorted(d for row in owners for d in row) == list(range(store.num_documents))


def test_rows_begin_with_stores_in_proportion(store_of):
    stores = [store_of([9] * 40), store_of([3] * 40, first=5000)]
    for seed in range(5):
        batch = MixtureStream(MixedStore(stores, [0.75, 0.25]), 40, N, seed=seed).batch(0)
        assert (batch.targets_KBT[0, :, 0] < 5000).sum() == 30


def test_a_mixture_has_the_documents_of_its_stores(mixed):
    store = mixed()
    tokens = sum(part.num_tokens for part in store.stores)
    assert store.manifest["tokens"] == store.num_tokens == tokens
    assert store.manifest["documents"] == store.num_documents == len(store.titles())


def test_a_mixture_of_texts_and_ids_knows_no_bytes_of_its_text(mixed, monkeypatch):
    stores = mixed().stores
    monkeypatch.setitem(stores[0].manifest, "bytes", 10)
    assert MixedStore(stores, [1, 1, 1]).manifest["bytes"] == 0
    for store in stores:
        monkeypatch.setitem(store.manifest, "bytes", 10)
    assert MixedStore(stores, [1, 1, 1]).manifest["bytes"] == 30


def test_mixtures_that_differ_in_any_store_cannot_be_compared(mixed):
    stores = mixed().stores
    two, other, again = (
        MixedStore([stores[0], store], [0.5, 0.5]).manifest for store in (*stores[1:], stores[1])
    )
    assert token_difference(two, other) and not token_difference(two, again)


# What cannot be mixed.


def corpus(folder, name, vocabulary=None):
    return Corpus(str(folder / name), TextFiles(str(folder)), vocabulary or ByteVocabulary())


def test_different_vocabularies_are_refused_before_any_work(tmp_path):
    (tmp_path / "text.txt").write_text("some text")
    mixture = Mixture([corpus(tmp_path, "a"), corpus(tmp_path, "b", Upper())], [1, 1])
    with pytest.raises(ValueError, match=r"b/train .* upper .*a/train .* bytes"):
        mixture.prepare("train", quiet=True)
    assert not (tmp_path / "a").exists()
    for part in mixture.corpora:
        part.prepare("train", quiet=True)
    with pytest.raises(ValueError, match="vocabulary"):
        mixture.open("train")
