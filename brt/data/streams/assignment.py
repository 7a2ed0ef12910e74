"""Assigns the documents of a store to batch elements."""

import heapq

import numpy as np

from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore

SHARDS_PER_ROW = 32


def assign_documents(
    store: TokenStore, segments_D: np.ndarray, rows: int, seed: int
) -> list[np.ndarray]:
    """Assigns documents with so many segments to batch elements, as `assign`.

    A store of `SHARDS_PER_ROW` shards for each batch element is assigned by whole shards, so that a
    host reads only the files of its batch elements.
    """
    firsts = store.shard_documents
    shards = len(firsts) - 1
    if shards < SHARDS_PER_ROW * rows:
        return assign(segments_D, rows, permutation(len(segments_D), seed, 0, 0, 1))
    segments_of_shards = np.add.reduceat(segments_D, firsts[:-1])
    row_shards = assign(segments_of_shards, rows, permutation(shards, seed, 0, 0, 1))
    documents = np.split(np.arange(len(segments_D)), firsts[1:-1])
    return [np.concatenate([documents[shard] for shard in own]) for own in row_shards]


def assign(segments_D: np.ndarray, rows: int, order_D: np.ndarray) -> list[np.ndarray]:
    """Assigns documents to batch elements, so that all have nearly the same number of segments.

    Longest first, each to the element with the fewest segments: they differ by at most the longest
    document. `order_D`, a permutation, breaks ties.
    """
    longest_first = order_D[np.argsort(-segments_D[order_D], kind="stable")]
    row_documents: list[list[int]] = [[] for _ in range(rows)]
    loads = [(0, row) for row in range(rows)]
    for document in longest_first.tolist():
        load, row = loads[0]
        row_documents[row].append(document)
        heapq.heapreplace(loads, (load + int(segments_D[document]), row))
    return [np.array(documents, np.int64) for documents in row_documents]
