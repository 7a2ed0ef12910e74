"""Assigns the documents of a store to batch elements."""

import heapq

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore

SHARDS_PER_ROW = 32


def assign_documents(
    store: TokenStore | MixedStore, segments_D: np.ndarray, rows: int, key: tuple[int, ...] = ()
) -> list[np.ndarray]:
    """Returns the documents of each batch element, in order, as `assign` does.

    A store of `SHARDS_PER_ROW` shards for each batch element is assigned by whole shards, so that a
    host reads only the files of its batch elements.

    segments_D: segments of each document. key: of the permutation that breaks ties; without one
    they stay in the order of the store.
    """

    def order(count):
        return permutation(count, *key) if key else np.arange(count)

    firsts = store.shard_documents
    shards = len(firsts) - 1
    if shards < SHARDS_PER_ROW * rows:
        return assign(segments_D, rows, order(len(segments_D)))
    segments_of_shards = np.add.reduceat(segments_D, firsts[:-1])
    row_shards = assign(segments_of_shards, rows, order(shards))
    documents = np.split(np.arange(len(segments_D)), firsts[1:-1])
    return [np.concatenate([documents[shard] for shard in own]) for own in row_shards]


def assign(segments_D: np.ndarray, rows: int, order_D: np.ndarray) -> list[np.ndarray]:
    """Assigns documents to batch elements, so that all have nearly the same number of segments.

    Longest first, each to the element with the fewest segments: sums differ by at most the longest
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
