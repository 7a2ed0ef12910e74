"""A ragged corpus: documents of every awkward length, as steps of segments."""

from typing import NamedTuple

import numpy as np

from brt.data.vocabularies.base import BEGIN


class Ragged(NamedTuple):
    """A corpus of short and long documents, as steps of segments.

    tokens: int32 (steps, B, N), as read: BEGIN, then the document but its last token; 0 in
        padding.
    starts: bool (steps, B), segments that begin a document or hold nothing.
    valid: bool (steps, B, N), false in padding.
    """

    tokens: np.ndarray
    starts: np.ndarray
    valid: np.ndarray


def ragged_segments(window, segment_length, vocabulary, rows, seed) -> Ragged:
    """Each row reads documents of all ragged lengths, in a rotated order of its own.

    So some rows start documents at steps where others are in the middle of theirs. With
    several rows the last one leaves out its last document and reads padding instead.
    """
    rng = np.random.default_rng(seed)
    lengths = (1, window - 1, window, window + 1, segment_length, 3 * segment_length + 5)
    lengths = tuple(length for length in lengths if length)
    by_row = []
    for row in range(rows):
        turn = 2 * row % len(lengths)
        documents = lengths[turn:] + lengths[:turn]
        by_row.append(documents[:-1] if row and row == rows - 1 else documents)
    steps = max(sum(-(-length // segment_length) for length in row) for row in by_row)
    tokens = np.zeros((rows, steps * segment_length), np.int32)
    valid = np.zeros(tokens.shape, bool)
    starts = np.ones((rows, steps), bool)
    for row, documents in enumerate(by_row):
        step = 0
        for length in documents:
            first, segments = step * segment_length, -(-length // segment_length)
            tokens[row, first] = BEGIN
            tokens[row, first + 1 : first + length] = rng.integers(0, vocabulary, length - 1)
            valid[row, first : first + length] = True
            starts[row, step + 1 : step + segments] = False
            step += segments
    shape = (rows, steps, segment_length)
    return Ragged(
        np.moveaxis(tokens.reshape(shape), 1, 0),
        np.moveaxis(starts, 1, 0),
        np.moveaxis(valid.reshape(shape), 1, 0),
    )
