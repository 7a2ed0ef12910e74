"""The laws of all streams: a batch is a function of its step, and every token is a target.

They run over every stream of tests/support/streams_under_test.py, and ask none for its name.
"""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import RAGGED, N, W, joined, same
from streams_under_test import PASSES, TRAINING

from brt.data.streams.checksum import MODULUS, checksum_of
from brt.data.vocabularies.base import BEGIN

EVERY = TRAINING + PASSES
K = 3
FAR = 10**6, 10**6 + 1, 10**9 + 7
"""Steps that no test could reach one after another."""

every_stream = pytest.mark.parametrize("entry", EVERY, ids=str)
every_training_stream = pytest.mark.parametrize("entry", TRAINING, ids=str)
every_pass = pytest.mark.parametrize("entry", PASSES, ids=str)
NEXT_TOKENS = [entry for entry in EVERY if entry.next_tokens]
every_stream_of_next_tokens = pytest.mark.parametrize("entry", NEXT_TOKENS, ids=str)
every_pass_of_next_tokens = pytest.mark.parametrize(
    "entry", [entry for entry in PASSES if entry.next_tokens], ids=str
)


def opened(entry, store_of, rows=8, length=W, segments=K, seed=5, lengths=RAGGED, weighted=False):
    """A new stream over the store of these documents."""
    store = entry.make_store(store_of, lengths, length * segments, weighted)
    return entry.open(store, rows, length, segments, seed)


def steps_of(stream, most=60):
    """The first steps of training, or all steps of a pass and one behind its end."""
    return range(stream.num_steps + 1 if hasattr(stream, "num_steps") else most)


def all_steps_of(stream):
    """The same, and far ones."""
    return [*steps_of(stream), *FAR]


def tokens_and_weights(store):
    """From every token of a store, none of which occurs twice, to its weight."""
    return {
        int(token): float(weight)
        for document in range(store.num_documents)
        for token, weight in zip(store.tokens(document), store.weights(document))
    }


# A batch is a function of store, seed, step and shape.


@every_stream
def test_a_batch_follows_from_its_step_whatever_was_asked_before(entry, store_of):
    steps = all_steps_of(opened(entry, store_of))
    alone = {step: opened(entry, store_of).batch(step) for step in steps}
    order = [*steps, *reversed(steps)]
    random.Random(0).shuffle(order)
    stream = opened(entry, store_of)
    for step in [*order, *steps]:
        assert same(stream.batch(step), alone[step])


@every_stream
def test_threads_may_ask_for_batches_at_the_same_time(entry, store_of):
    stream = opened(entry, store_of, rows=2)
    steps = steps_of(stream, 200)
    alone = [opened(entry, store_of, rows=2).batch(step) for step in steps]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(stream.batch, steps))
    assert all(same(a, b) for a, b in zip(alone, together, strict=True))


@every_stream
@pytest.mark.parametrize("hosts", [2, 8])
def test_hosts_together_read_the_global_batch(entry, store_of, hosts):
    whole = opened(entry, store_of)
    readers = [opened(entry, store_of) for _ in range(hosts)]
    rows = 8 // hosts
    for step in reversed(all_steps_of(whole)):
        parts = [reader.batch(step, host * rows, rows) for host, reader in enumerate(readers)]
        assert same(joined(parts, axis=1), whole.batch(step))
        assert same(whole.batch(step, 5), whole.batch(step, 5, 3))


@every_stream
def test_on_other_hosts_a_run_has_the_same_checksum(entry, store_of):
    def checksum(hosts, steps):
        rows = 8 // hosts
        sums = []
        for host in range(hosts):
            stream = opened(entry, store_of)
            for step in steps:
                batch = stream.batch(step, host * rows, rows)
                sums.append(checksum_of(batch, step, host * rows))
        return sum(sums) % MODULUS

    whole = checksum(1, range(40))
    assert (
        checksum(8, range(13)) + checksum(2, [13]) + checksum(4, range(14, 40))
    ) % MODULUS == whole
    assert len({whole, checksum(1, range(39)), checksum(1, [*range(39), 38])}) == 3


@every_stream
def test_the_order_is_fixed_for_good(entry, store_of):
    """A checkpoint is a step, so a stream must stay the same in every version of brt and NumPy."""
    stream = opened(entry, store_of, weighted=True)
    checksums = (checksum_of(stream.batch(step), step) for step in all_steps_of(stream))
    assert f"{sum(checksums) % MODULUS:016x}" == entry.checksum


@every_training_stream
def test_the_seed_decides_the_order(entry, store_of):
    batches = [[opened(entry, store_of, seed=s).batch(step) for step in (0, 9)] for s in (1, 2)]
    assert same(batches[0][0], batches[1][0]) != entry.seeded
    assert same(batches[0][1], batches[1][1]) != entry.seeded


@every_training_stream
def test_a_far_step_costs_no_replay(entry, store_of):
    begun = time.process_time()
    opened(entry, store_of).batch(10**12)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("entry", [entry for entry in TRAINING if entry.any_cut], ids=str)
@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    lengths=st.lists(st.sampled_from(RAGGED), min_size=4, max_size=12),
    rows=st.integers(1, 4),
    length=st.sampled_from([1, 2, W, N, 64]),
    segments=st.integers(2, 5),
    step=st.integers(0, 20),
)
def test_k_segments_a_step_are_k_steps_of_one(
    entry, store_of, lengths, rows, length, segments, step
):
    sizes = {"rows": rows, "length": length, "lengths": lengths}
    together = opened(entry, store_of, segments=segments, **sizes).batch(step)
    single = opened(entry, store_of, segments=1, **sizes)
    parts = [single.batch(step * segments + k) for k in range(segments)]
    assert same(together, joined(parts, axis=0))


# Every token has its turn.


@pytest.mark.parametrize("entry", [e for e in TRAINING if e.seeded and e.epoch], ids=str)
def test_every_epoch_has_an_order_of_its_own_in_every_row(entry, store_of):
    """The order of a row, however long it is: the ranks of what it reads among all it reads."""
    stream = opened(entry, store_of, rows=2, lengths=[W * K - 1] * 16)
    orders = []
    for epoch in range(4):
        targets = {}
        for row, number in entry.epoch(stream, epoch):
            step, k = divmod(number, stream.segments_per_step)
            batch = stream.batch(step, row, 1)
            targets.setdefault(row, []).extend(batch.targets_KBT[k, 0].tolist())
        orders += [tuple(np.argsort(read)) for read in targets.values()]
    assert len(set(orders)) == len(orders) == 8


@pytest.mark.parametrize("entry", [entry for entry in EVERY if entry.epoch], ids=str)
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    lengths=st.lists(st.sampled_from(RAGGED), min_size=4, max_size=12),
    rows=st.integers(1, 4),
    length=st.sampled_from([1, 2, W, N, 64]),
    segments=st.integers(1, 3),
    seed=st.integers(0, 9),
    epoch=st.sampled_from([0, 1, 5]),
)
def test_every_token_is_a_target_exactly_once_an_epoch(
    entry, store_of, lengths, rows, length, segments, seed, epoch
):
    stream = opened(entry, store_of, rows, length, segments, seed, lengths)
    targets = Counter()
    batches = {}
    for row, number in entry.epoch(stream, epoch):
        step, k = divmod(number, stream.segments_per_step)
        if step not in batches:
            batches[step] = stream.batch(step)
        scored = batches[step].weights_KBT[k, row] > 0
        targets.update(batches[step].targets_KBT[k, row][scored].tolist())
    assert set(targets.values()) == {1}
    assert targets.keys() <= tokens_and_weights(stream.store).keys()
    assert len(targets) == stream.store.num_tokens - entry.unread(stream.store, rows)


@pytest.mark.parametrize("entry", [entry for entry in TRAINING if not entry.waits], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_no_row_waits_for_another(entry, store_of, rows):
    """Loads are uneven here: one document is longer than all the others together."""
    stream = opened(entry, store_of, rows=rows, lengths=[*RAGGED, 300])
    for step in range(100):
        assert stream.batch(step).weights_KBT.any(axis=2).all()


@every_pass
@pytest.mark.parametrize("rows", [1, 3, 30])
def test_a_pass_ends_with_its_last_target(entry, store_of, rows):
    stream = opened(entry, store_of, rows=rows)
    assert stream.segments_per_step == 1
    for step in range(stream.num_steps):
        assert (stream.positions(step)[0] >= 0).any()
        assert stream.batch(step).weights_KBT.any() or not entry.next_tokens
    assert stream.batch(stream.num_steps - 1).weights_KBT.any()
    for step in (stream.num_steps, stream.num_steps + 1, 10**6):
        assert not stream.batch(step).weights_KBT.any()
        documents_B, offsets_B = stream.positions(step)
        assert (documents_B == -1).all() and not offsets_B.any()


@every_pass_of_next_tokens
def test_places_say_where_each_segment_begins(entry, store_of):
    stream = opened(entry, store_of, rows=3)
    for step in steps_of(stream):
        batch = stream.batch(step)
        documents_B, offsets_B = stream.positions(step)
        for row, (document, offset) in enumerate(zip(documents_B, offsets_B, strict=True)):
            first = batch.targets_KBT[0, row, 0]
            assert first == (stream.store.tokens(document)[offset] if document >= 0 else 0)
            assert document >= 0 or offset == 0
        for part, whole in zip(stream.positions(step, 1, 2), (documents_B, offsets_B), strict=True):
            assert part.tolist() == whole[1:].tolist()


# The arrays of a batch.


@every_stream
def test_shapes_and_types_are_as_promised(entry, store_of):
    stream = opened(entry, store_of, rows=5, length=N)
    segments = stream.segments_per_step
    assert segments == (K if entry in TRAINING else 1)
    assert [(array.shape, array.dtype.name) for array in stream.batch(2)] == [
        ((segments, 5, N), "int32"),
        ((segments, 5, N), "int32"),
        ((segments, 5, N), "float32"),
        ((segments, 5), "bool"),
    ]


def followed(stream, row, steps):
    """Yields a row's segments: inputs, targets, weights, the padding of each, and the start."""
    for step in steps:
        batch = stream.batch(step, row, 1)
        for k in range(stream.segments_per_step):
            inputs, targets, weights = (array[k, 0].tolist() for array in batch[:3])
            count = sum(target != 0 for target in targets)
            parts = [array[:count] for array in (inputs, targets, weights)]
            behind = [array[count:] for array in (inputs, targets, weights)]
            yield *parts, behind, bool(batch.starts_KB[k, 0])


@every_stream_of_next_tokens
@pytest.mark.parametrize("rows", [1, 8])
def test_a_row_reads_on_where_it_stopped_unless_it_starts(entry, store_of, rows):
    """Nothing that a model carries crosses a gap, and nothing is thrown away without one."""
    # With this seed no epoch begins, by chance, with the token that the one before ended with.
    stream = opened(entry, store_of, rows=rows, seed=4)
    for row in range(rows):
        last = None
        for inputs, targets, _, _, start in followed(stream, row, steps_of(stream)):
            assert inputs[1:] == targets[:-1]
            reads_on = bool(targets) and inputs[0] == last
            assert start == (entry.overlaps or not reads_on)
            last = targets[-1] if targets else None


@every_stream_of_next_tokens
def test_begin_stands_before_first_tokens_and_nowhere_else(entry, store_of):
    rows = 3
    stream = opened(entry, store_of, rows=rows)
    first_tokens = {int(stream.store.tokens(d)[0]) for d in range(stream.store.num_documents)}
    begun = set()
    for row in range(rows):
        for inputs, targets, _, _, start in followed(stream, row, steps_of(stream)):
            assert BEGIN not in inputs[1:]
            if inputs and inputs[0] == BEGIN:
                assert start and targets[0] in first_tokens
                begun.add(targets[0])
            elif entry.begins:
                assert not {targets[0] if targets else None} & first_tokens
    assert begun == (first_tokens if entry.begins else set())


@every_stream_of_next_tokens
def test_padding_is_at_the_end_and_has_weight_0(entry, store_of):
    rows = 3
    stream = opened(entry, store_of, rows=rows, length=N)
    padded = 0
    for row in range(rows):
        for inputs, _, weights, behind, start in followed(stream, row, steps_of(stream)):
            assert not any(map(any, behind))
            assert set(weights) <= ({0, 1} if entry.overlaps else {1})
            assert inputs or start
            padded += bool(behind[0])
    assert padded or not entry.any_cut


@every_stream_of_next_tokens
def test_loss_weights_go_with_their_targets(entry, store_of):
    stream = opened(entry, store_of, weighted=True)
    weight_of = tokens_and_weights(stream.store)
    assert len(set(weight_of.values())) > 2
    for step in steps_of(stream):
        batch = stream.batch(step)
        for target, weight in zip(batch.targets_KBT.flat, batch.weights_KBT.flat):
            expected = weight_of[int(target)] if target else 0
            assert weight == expected or (entry.overlaps and weight == 0)


# Refusals.


@every_stream
def test_rows_outside_the_batch_are_refused(entry, store_of):
    stream = opened(entry, store_of)
    for call in (stream.batch, stream.positions) if entry in PASSES else (stream.batch,):
        for asked in ((-1, 0, 1), (0, -1, 1), (0, 2, 7), (0, 8, None), (0, 0, 0)):
            with pytest.raises(ValueError, match="8 elements"):
                call(*asked)


@every_stream
def test_sizes_below_one_and_negative_seeds_are_refused(entry, store_of):
    sizes = {"rows": 2, "length": W, "segments": K, "seed": 0}
    store = entry.make_store(store_of, RAGGED, W * K, False)
    takes_seed = entry.seeded or entry in TRAINING
    wrong = [{"rows": 0}, {"rows": -1}, {"length": 0}, *([{"seed": -1}] if takes_seed else [])]
    wrong += [{"segments": 0}] if entry in TRAINING else []
    for each in wrong:
        with pytest.raises(ValueError, match=r"rows = |segments_per_step = 0"):
            entry.open(store, *(sizes | each).values())


def test_every_entry_is_listed_once():
    names = [entry.name for entry in EVERY]
    assert len(set(names)) == len(names)
