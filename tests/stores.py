"""Small token stores in which no id occurs twice, so that every token read tells its place."""

import numpy as np

from brt.data.document_stream import Batch
from brt.data.sources import Document
from brt.data.token_store import TokenStore, write_store

W, N = 4, 12
RAGGED = [1, W - 1, W, W + 1, N, 3 * N + 5, 2 * N, 1, 2, N + 1]
FIRST = 1000
"""The first id of a store; the others follow one by one."""


class Ids:
    name, size, fingerprint = "ids", 100_000, "f" * 64


def make_store(folder, lengths, weighted=False, first=FIRST) -> TokenStore:
    """A store of documents with the given lengths, at `folder`."""
    firsts = [first, *(first + np.cumsum(lengths)).tolist()]
    documents = [
        Document(
            f"document {d}",
            tokens=np.arange(first, first + length),
            weights=np.arange(length, dtype=np.float32) / 8 if weighted else None,
        )
        for d, (first, length) in enumerate(zip(firsts, lengths))
    ]
    write_store(folder, documents, Ids, {}, quiet=True)
    return TokenStore(folder)


def same(first, second):
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(first, second))


def joined(batches, axis):
    return Batch(*(np.concatenate(arrays, axis) for arrays in zip(*batches)))
