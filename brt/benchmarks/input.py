"""Measures how fast token stores are read, how much is padding, and how even the rows are."""

import os
import tempfile
import time
from typing import Any

import numpy as np

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.ids import check_ids
from brt.data.streams.ledger import ledger_of
from brt.data.streams.select import STREAMS, training_stream
from brt.data.vocabularies.base import ByteVocabulary


def measure_store(
    folder: str | os.PathLike,
    rows: int,
    segment_length: int,
    batches: int = 200,
    rounds: int = 5,
) -> dict[str, dict]:
    """Reads a token store with each kind of stream, on the thread that calls, to host memory.

    Args:
        folder: of the store.
        rows, segment_length: B and T.
        batches: to read in each round.
        rounds: the fastest counts.

    Returns:
        For each of `STREAMS` but samples a dictionary: `first_batch_seconds` from opening the
        store to the first batch; `tokens_per_second` and `tokens_per_second_with_ledger`, tokens
        of a batch (padding included) by one core's time; `padding`, the share of an epoch's
        batches that holds no token; `row_segments`, the fewest and the most segments that a row
        has in an epoch.

    Raises:
        ValueError, FileNotFoundError: as `TokenStore` and the streams.
    """
    found = {}
    for kind in STREAMS:
        if kind in ("samples", "labelled"):  # which is seldom what a store holds
            continue
        begun = time.perf_counter()
        store = TokenStore(folder)
        stream = training_stream(kind, store, rows, segment_length)
        stream.batch(0)
        first = time.perf_counter() - begun
        segments_B = stream.row_segments_B
        capacity = int(segments_B.sum()) * segment_length
        found[kind] = {
            "first_batch_seconds": first,
            "tokens_per_second": max(_rate(stream, batches, False) for _ in range(rounds)),
            "tokens_per_second_with_ledger": max(
                _rate(stream, batches, True) for _ in range(rounds)
            ),
            "padding": 1 - _tokens_read(kind, store, rows) / capacity,
            "row_segments": (int(segments_B.min()), int(segments_B.max())),
        }
    return found


def time_input(rows: int, segment_length: int, segments_per_step: int, steps: int = 200) -> float:
    """Measures the tokens per second of the input alone, check and ledger included.

    Reads `steps` batches of whole documents, of random bytes, from a store made for it.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(segment_length // 2, 40 * segment_length, 2 * rows)
    documents = (
        Document(str(i), rng.integers(0, 256, size, np.uint8).tobytes())
        for i, size in enumerate(lengths)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        write_store(path, documents, ByteVocabulary(), {"source": "random"}, quiet=True)
        store = TokenStore(path)
        stream = training_stream("documents", store, rows, segment_length, segments_per_step)
        stream.batch(0)
        return _rate(stream, steps, True)


def _rate(stream, batches, ledger):
    """Tokens of a batch read per second of this thread's own time, whatever else is running."""
    begun = time.thread_time()
    for step in range(1, batches + 1):
        batch = stream.batch(step)
        if ledger:  # what a training run does with every batch
            check_ids(batch, stream.store)
            ledger_of(batch, step)
    tokens = stream.rows * stream.segment_length * stream.segments_per_step
    return batches * tokens / (time.thread_time() - begun)


def _tokens_read(kind, store, rows):
    """Targets in one epoch."""
    if kind == "documents":
        return store.num_tokens
    pairs = store.num_tokens - 1
    return pairs // rows * rows if kind == "contiguous" else pairs


def show(folder: str, rows: int, segment_length: int) -> dict[str, Any]:
    """Prints and returns what reading one store costs, for each kind of stream."""
    print(f"{folder}, {rows} rows of {segment_length} tokens; rates are of one core's time")
    titles = "first batch s", "M tokens/s", "with ledger", "padding", "row segments"
    print(" " * 10, *(f"{title:>16}" for title in titles))
    found = measure_store(folder, rows, segment_length)
    for kind, figures in found.items():
        least, most = figures["row_segments"]
        cells = (
            f"{figures['first_batch_seconds']:.3f}",
            f"{figures['tokens_per_second'] / 1e6:,.0f}",
            f"{figures['tokens_per_second_with_ledger'] / 1e6:,.0f}",
            f"{figures['padding']:.2%}",
            f"{least:,} to {most:,}",
        )
        print(f"{kind:<10}", *(f"{cell:>16}" for cell in cells))
    return found
