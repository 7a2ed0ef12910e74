"""Small token stores in which no id occurs twice, so that an id identifies its position."""

import json
from collections import Counter

import numpy as np

from brt.data.sources.base import Document, Source
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch
from brt.data.vocabularies.base import ByteVocabulary, Frame, Vocabulary
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


class Words(Vocabulary):
    """Ids are the lengths of words; where each stands is known; an encoder's frame."""

    name = "lengths of words"
    size = 1000
    fingerprint = "w" * 64
    frame = Frame((0,), (99,))

    def spans(self, text):
        found, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            found.append((at, at + len(word)))
            at += len(word)
        return np.array([b - a for a, b in found], np.int32), np.array(found).reshape(-1, 2)

    def encode(self, data, title):
        return self.spans(data.decode())[0]

    def decode(self, ids):
        return " ".join("x" * i for i in ids)


class Upper(ByteVocabulary):
    name, fingerprint = "upper", "0" * 64


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
