"""Small token stores in which no id occurs twice, so that an id identifies its position."""

import itertools
import json
from collections import Counter

import numpy as np

from brt.data.sources.base import Document, Source
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch
from brt.data.vocabularies.base import BEGIN, ByteVocabulary, Vocabulary
from brt.storage.regular_files import file_sha256

W, N = 4, 12
RAGGED = [1, W - 1, W, W + 1, N, 3 * N + 5, 2 * N, 1, 2, N + 1]
SAMPLES = [2 * W + 1] * 13
"""Documents of one length, 2 W tokens to be read of each."""
FIRST = 1000
"""The first id of a store; the others follow one by one."""


def lengths_for(kind):
    """Documents that a stream of this kind can read."""
    return SAMPLES if kind in ("samples", "questions") else RAGGED


def hashes_of(folder, names):
    return {name: file_sha256(folder / name) for name in names}


class Ids(Vocabulary):
    """A vocabulary for documents that bring their tokens."""

    name = "ids"
    size = 100_000
    fingerprint = "f" * 64

    def encode(self, data, title):
        raise AssertionError("documents bring their tokens")

    def decode(self, ids):
        return " ".join(map(str, ids))


def small_vocabulary(size):
    """Bytes, of which a tiny model knows the first `size`."""
    vocabulary = ByteVocabulary()
    vocabulary.size = size
    return vocabulary


class Texts(Source):
    """Texts (bytes) by split, which cannot be listed; counts how often each split is read."""

    def __init__(self, **texts):
        self.texts, self.reads = texts, Counter()

    def documents(self, split):
        self.reads[split] += 1
        for number, text in enumerate(self.texts[split]):
            yield Document(f"{split}{number}", text)

    def settings(self):
        return {}


def make_store(
    folder, lengths, weighted=False, first=FIRST, labelled=False, shard_bytes=None
) -> TokenStore:
    """A store of documents with the given lengths, at `folder`; labelled, each with a class."""
    firsts = [first, *(first + np.cumsum(lengths)).tolist()]
    documents = [
        Document(
            f"document {d}",
            tokens=np.arange(first, first + length),
            weights=np.arange(length, dtype=np.float32) / 8 if weighted else None,
            annotation={"label": 1 + d % 3, "classes": 4} if labelled else None,
        )
        for d, (first, length) in enumerate(zip(firsts, lengths))
    ]
    write_store(folder, documents, Ids(), {}, quiet=True, shard_bytes=shard_bytes)
    return TokenStore(folder)


def rehash(folder):
    """Replaces the hashes in a store's manifest by those of its files."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["hashes"] = hashes_of(folder, manifest["hashes"])
    path.write_text(json.dumps(manifest))


def same(first, second):
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(first, second))


def joined(batches, axis):
    return Batch(*(np.concatenate(arrays, axis) for arrays in zip(*batches)))


def plain_segments(store, document, length):
    """The segments of one document, token by token: inputs, targets, weights, start."""
    tokens = store.tokens(document).tolist()
    weights = store.weights(document).tolist()
    segments = []
    previous = BEGIN
    for at, (token, weight) in enumerate(zip(tokens, weights)):
        if at % length == 0:
            segments.append(([], [], [], at == 0))
        inputs, targets, counts, _ = segments[-1]
        inputs.append(previous)
        targets.append(token)
        counts.append(weight)
        previous = token
    for inputs, targets, counts, _ in segments:
        for part in inputs, targets, counts:
            part += [0] * (length - len(part))
    return segments


def read_row(store, batches, row, length, count):
    """Follows one row for `count` segments and gives the documents it read, each in full."""
    document_of = {int(store.tokens(d)[0]): d for d in range(store.num_documents)}
    ahead = iter(
        (
            batch.inputs_KBT[k, row],
            batch.targets_KBT[k, row],
            batch.weights_KBT[k, row],
            batch.starts_KB[k, row],
        )
        for batch in batches
        for k in range(len(batch.starts_KB))
    )
    documents = []
    while count > 0:
        first = next(ahead)
        document = document_of[int(first[1][0])]
        expected = plain_segments(store, document, length)
        for wanted, found in zip(expected, itertools.chain([first], ahead)):
            assert found[0].tolist() == wanted[0]
            assert found[1].tolist() == wanted[1]
            assert found[2].tolist() == wanted[2]
            assert found[3] == wanted[3]
        documents.append(document)
        count -= len(expected)
    assert count == 0
    return documents
