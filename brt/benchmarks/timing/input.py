"""Speed of reading token stores, share of padding, and balance of batch elements."""

import os
import time
from typing import Any

from brt.benchmarks.tables import Column, aligned
from brt.data.stores.token_store import TokenStore
from brt.data.streams.checksum import checksum_of
from brt.data.streams.select import SAMPLES, STREAMS, training_stream

BATCHES, ROUNDS = 200, 5


def measure_store(folder: str | os.PathLike, rows: int, segment_length: int) -> dict[str, dict]:
    """Reads a token store with each stream; the fastest round counts.

    Returns by stream: rates of one core (padding included), with and without checksums; `padding`,
    its share of an epoch; `row_segments`, fewest and most segments of a batch element in an epoch.
    """
    by_stream = {}
    for kind in STREAMS:
        if kind in (*SAMPLES, "labelled"):  # few stores fit
            continue
        begun = time.perf_counter()
        store = TokenStore(folder)
        stream = training_stream(kind, store, rows, segment_length)
        stream.batch(0)
        first = time.perf_counter() - begun
        segments_B = stream.row_segments_B
        capacity = int(segments_B.sum()) * segment_length
        plain, checked = (
            max(_rate(stream, BATCHES, checksum) for _ in range(ROUNDS))
            for checksum in (False, True)
        )
        by_stream[kind] = {
            "first_batch_seconds": first,
            "tokens_per_second": plain,
            "tokens_per_second_with_checksum": checked,
            "padding": 1 - _tokens_read(kind, store, rows) / capacity,
            "row_segments": (int(segments_B.min()), int(segments_B.max())),
        }
    return by_stream


def _rate(stream, batches, checksum):
    begun = time.thread_time()
    for step in range(1, batches + 1):
        batch = stream.batch(step)
        if checksum:  # as in training
            checksum_of(batch, step)
    tokens = stream.rows * stream.segment_length * stream.segments_per_step
    return batches * tokens / (time.thread_time() - begun)


def _tokens_read(kind, store, rows):
    if kind == "documents":
        return store.num_tokens
    pairs = store.num_tokens - 1
    return pairs // rows * rows if kind == "contiguous" else pairs


COLUMNS = (
    Column("first_batch_seconds", "first batch s", "{:.3f}"),
    Column("tokens_per_second", "M tokens/s", "{:,.0f}", 1e6),
    Column("tokens_per_second_with_checksum", "with checksum", "{:,.0f}", 1e6),
    Column("padding", "padding", "{:.2%}"),
    Column("fewest", "fewest segments", "{:,.0f}"),
    Column("most", "most segments", "{:,.0f}"),
)


def show(folder: str, rows: int, segment_length: int) -> dict[str, Any]:
    print(f"{folder}, {rows} rows of {segment_length} tokens; rates are of one core's time")
    by_stream = measure_store(folder, rows, segment_length)
    lines = [
        {"name": kind, **figures, **dict(zip(("fewest", "most"), figures["row_segments"]))}
        for kind, figures in by_stream.items()
    ]
    print("\n".join(aligned(lines, COLUMNS)))
    return by_stream
