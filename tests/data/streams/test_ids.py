"""An id beyond the vocabulary is noticed wherever it is read, and the error names its position."""

import shutil

import numpy as np
import pytest
from stores import RAGGED, W, lengths_for, make_store

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.ids import check_ids, check_store
from brt.data.streams.mixture import MixtureStream
from brt.data.streams.select import SAMPLES, STREAMS, evaluation_pass, training_stream

SIZE = 100_000
"""Of the vocabulary of `make_store`."""
MOST = 12
"""Segments of W tokens that hold the longest document."""


def spoiled(store, folder, number, id=SIZE) -> TokenStore:
    """Returns a copy of a store in which one token is replaced by `id`."""
    shutil.copytree(store.folder, folder)
    tokens = np.memmap(folder / "shard-00000" / "tokens.bin", store.all_tokens.dtype, mode="r+")
    tokens[number] = id
    tokens.flush()
    return TokenStore(folder)


def place(store, number):
    ends = np.cumsum(store.lengths_D)
    document = int(np.argmax(ends > number))
    return document, number - int(ends[document] - store.lengths_D[document])


def steps_of(stream):
    """Steps in which every row has read an epoch, or the pass has ended."""
    segments = getattr(stream, "row_segments_B", None)
    return stream.num_steps if segments is None else max(segments)


@pytest.mark.parametrize("stride", [None, 1])
@pytest.mark.parametrize("kind", STREAMS)
def test_no_token_of_a_store_is_read_unnoticed(store_of, tmp_path, kind, stride):
    options = dict(labelled=kind == "labelled", weighted=kind == "questions")
    whole = store_of(lengths_for(kind), **options)
    drops = kind == "contiguous" and stride is None  # what rows do not share evenly
    last = (whole.num_tokens - 1) // 2 * 2 + 1 if drops else whole.num_tokens
    for number in (*range(0, last, 3), last - 1):
        store = spoiled(whole, tmp_path / str(number), number)
        if stride is None:
            segments = MOST if kind == "labelled" else 2 if kind in SAMPLES else 1
            stream = training_stream(kind, store, 2, W, segments)
        elif kind in (*SAMPLES, "labelled"):
            stream = evaluation_pass(kind, store, 2, W, segments_per_step=MOST)
        else:
            stream = evaluation_pass(kind, store, 2, W, stride)
        document, offset = place(store, number)
        text = rf"^{store.folder} is damaged: token {offset} of document {document} has id 100,000"
        with pytest.raises(ValueError, match=rf"{text}.* 100,000 ids\. .*prepare it again"):
            for step in range(steps_of(stream) + 1):
                check_ids(stream.batch(step), store, stream.targets_are_tokens)
        shutil.rmtree(store.folder)


@pytest.mark.parametrize("id", [SIZE, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_any_id_that_the_file_can_hold_is_noticed(store_of, tmp_path, id):
    store = spoiled(store_of(RAGGED), tmp_path / "store", 9, id)
    with pytest.raises(ValueError, match=rf"has id {id:,}, and"):
        check_store(store)
    stream = training_stream("documents", store, 1, 200)
    with pytest.raises(ValueError, match=rf"has id {id:,}, and"):
        for step in range(len(RAGGED)):
            check_ids(stream.batch(step), store)


def test_of_a_mixture_the_store_is_named(tmp_path):
    first = make_store(tmp_path / "first", RAGGED)
    second = spoiled(make_store(tmp_path / "other", RAGGED), tmp_path / "second", 7)
    mixed = MixedStore([first, second], [0.5, 0.5], ["a", "b"])
    with pytest.raises(ValueError, match=rf"^{tmp_path}/second is damaged: token 3 of document 2"):
        check_store(mixed)
    stream = MixtureStream(mixed, 2, W, 1, 0)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/second is damaged"):
        for step in range(60):
            check_ids(stream.batch(step), mixed)
