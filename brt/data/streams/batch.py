"""The arrays of one step, on the host.

Axes of all streams: K segments of a step, B batch elements, T tokens of a segment, D documents.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.token_ids import BEGIN


class Segment(NamedTuple):
    """One segment of B batch elements: a `Batch` without the K axis, on the host or a device."""

    inputs_BT: Any
    targets_BT: Any
    weights_BT: Any
    starts_B: Any


class Batch(NamedTuple):
    """K consecutive segments of B batch elements.

    inputs_KBT: int32; a document's first is BEGIN, padding is 0.
    targets_KBT: int32; padding is 0.
    weights_KBT: float32, the weight of each target in the loss; padding has weight 0.
    starts_KB: bool, True if a segment begins a document or is padding.
    """

    inputs_KBT: np.ndarray
    targets_KBT: np.ndarray
    weights_KBT: np.ndarray
    starts_KB: np.ndarray

    def segment(self, k: int) -> Segment:
        return Segment(*(array[k] for array in self))


DTYPES = np.int32, np.int32, np.float32, np.bool_


def padding(segments: int, rows: int, segment_length: int) -> Batch:
    shapes = *[(segments, rows, segment_length)] * 3, (segments, rows)
    batch = Batch._make(map(np.zeros, shapes, DTYPES))
    batch.starts_KB[:] = True
    return batch


def gather(
    store: TokenStore | MixedStore,
    positions_KB: Sequence[Sequence[tuple[int, int]]],
    segment_length: int,
) -> Batch:
    """Reads segments of documents; they end with their document.

    positions_KB: K lists of B pairs (document, offset of the segment's first target); document -1
    is padding.
    """
    batch = padding(len(positions_KB), len(positions_KB[0]), segment_length)
    for k, positions_B in enumerate(positions_KB):
        for b, (document, offset) in enumerate(positions_B):
            if document < 0:
                continue
            end = offset + segment_length
            # A segment's first input is the previous segment's last target.
            tokens = store.tokens(document, max(offset - 1, 0), end)
            targets = tokens[min(offset, 1) :]
            length = len(targets)
            batch.targets_KBT[k, b, :length] = targets
            batch.inputs_KBT[k, b, 1:length] = targets[:-1]
            batch.inputs_KBT[k, b, 0] = BEGIN if offset == 0 else tokens[0]
            batch.starts_KB[k, b] = offset == 0
            batch.weights_KBT[k, b, :length] = store.weights(document, offset, end)
    return batch


def document_segments(tokens: ArrayLike, segment_length: int) -> Iterator[Segment]:
    """Yields the tokens of one document as segments of one batch element."""
    tokens = np.asarray(tokens, np.int32)
    length = len(tokens)
    batch = padding(-(-length // segment_length), 1, segment_length)
    batch.inputs_KBT.reshape(-1)[:length] = np.concatenate([[BEGIN], tokens[:-1]])
    batch.targets_KBT.reshape(-1)[:length] = tokens
    batch.weights_KBT.reshape(-1)[:length] = 1
    batch.starts_KB[1:] = False
    yield from map(batch.segment, range(len(batch.starts_KB)))
