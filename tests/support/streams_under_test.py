"""Every stream of batches, for the laws that all of them keep (tests/laws/test_stream_laws.py).

A new stream is one more entry of `TRAINING` or `PASSES`, and no other edit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stores import FIRST

from brt.data.mixture import MixedStore
from brt.data.streams.select import evaluation_pass, training_stream

SECOND = FIRST + 10_000
"""The first id of a mixture's second store."""


def documents(store_of, lengths, cut, weighted):
    """Documents of the given lengths."""
    return store_of(lengths, weighted)


def samples(store_of, lengths, cut, weighted):
    """As many documents, of which `cut` tokens are read each."""
    return store_of([cut + 1] * len(lengths), weighted)


def mixture(store_of, lengths, cut, weighted):
    """Documents of two stores; only the first has loss weights."""
    stores = [store_of(lengths, weighted), store_of(lengths[::-1], first=SECOND)]
    return MixedStore(stores, [0.7, 0.3])


def labelled(store_of, lengths, cut, weighted):
    """Documents of the given lengths, each with a class."""
    return store_of(lengths, weighted, labelled=True)


def epoch_of_each_row(stream, epoch):
    """(row, number of the segment) of all that an epoch of every row reads."""
    counts = stream.row_segments_B.tolist()
    return [
        (row, epoch * count + number) for row, count in enumerate(counts) for number in range(count)
    ]


def epoch_of_turns(stream, epoch):
    """The same, where rows take whole samples in turn."""
    K, samples = stream.segments_per_step, stream.store.num_documents
    steps = [divmod(turn, stream.rows) for turn in range(epoch * samples, (epoch + 1) * samples)]
    return [(row, step * K + k) for step, row in steps for k in range(K)]


def whole_pass(stream, epoch):
    """The same, of a pass."""
    return [(row, step) for row in range(stream.rows) for step in range(stream.num_steps)]


@dataclass(frozen=True)
class StreamUnderTest:
    """A stream and what it promises.

    open: makes it, from (store, rows, segment_length, segments_per_step, seed).
    checksum: the hash of what it reads in `test_the_order_is_fixed_for_good`; the failing test of a
        new stream tells it.
    epoch: from (stream, epoch) to the (row, number of the segment) pairs in which every token is a
        target once, but `unread` of them; None where nothing of the kind is promised.
    unread: from (store, rows) to that number.
    make_store: makes a store that it can read, from (store_of, lengths, tokens of a step,
        weighted).
    begins: whether it feeds BEGIN before each document.
    seeded: whether its order follows from the seed.
    any_cut: whether K segments of a step are K steps of one; not where K T is the data's.
    waits: whether a row may be without anything to read at the end of an epoch, or before a
        document that is shorter than a step.
    overlaps: whether its segments overlap, so that all of them are starts.
    next_tokens: whether the targets are the next tokens; otherwise they are labels.
    """

    name: str
    open: Callable
    checksum: str
    epoch: Callable | None
    unread: Callable = lambda store, rows: 0
    make_store: Callable = documents
    begins: bool = True
    seeded: bool = True
    any_cut: bool = True
    waits: bool = False
    overlaps: bool = False
    next_tokens: bool = True

    def __str__(self):
        return self.name


def _training(name, kind, checksum, epoch, **promises):
    return StreamUnderTest(
        name, lambda *sizes: training_stream(kind, *sizes), checksum, epoch, **promises
    )


def _pass(name, kind, checksum, epoch=whole_pass, stride=None, **promises):
    def begin(store, rows, length, K, seed):
        return evaluation_pass(kind, store, rows, length, stride, K)

    overlaps = stride is not None
    return StreamUnderTest(
        name, begin, checksum, epoch, seeded=False, overlaps=overlaps, **promises
    )


JOINED = dict(begins=False, unread=lambda store, rows: 1)
SAMPLES = dict(begins=False, unread=lambda store, rows: store.num_documents, make_store=samples)
LABELLED = dict(make_store=labelled, next_tokens=False)
CUT = dict(begins=False, unread=lambda store, rows: 1 + (store.num_tokens - 1) % rows)

TRAINING = [
    _training("documents", "documents", "9f473473a32fe4a2", epoch_of_each_row),
    _training(
        "contiguous", "contiguous", "d91cc66a397ec8b0", epoch_of_each_row, **CUT, seeded=False
    ),
    _training("shuffled", "shuffled", "fd955d5b7d5fcd0c", epoch_of_each_row, **JOINED, waits=True),
    _training("samples", "samples", "8b5e1edb62cb1176", epoch_of_turns, **SAMPLES, any_cut=False),
    _training("mixture", "documents", "cf0de5976494ac8f", None, make_store=mixture),
    _training(
        "labelled", "labelled", "287ee8f5e934bc53", None, **LABELLED, any_cut=False, waits=True
    ),
]
PASSES = [
    _pass("document pass", "documents", "b4f06c01ca1788be"),
    _pass("mixture pass", "documents", "bcdae6c4953d534a", make_store=mixture),
    _pass("contiguous pass", "contiguous", "ec9b2e9553c69152", **JOINED),
    _pass("sample pass", "samples", "2aa9764845a4ee32", **SAMPLES),
    _pass("shifted pass", "documents", "2709b76f18a43c87", stride=1),
    _pass("shifted contiguous pass", "contiguous", "0ea5a2e222b9657a", stride=1, **JOINED),
    _pass("labelled pass", "labelled", "54bda0715dea6ec8", None, **LABELLED),
]
