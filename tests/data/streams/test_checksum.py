"""The checksum: a hash of every row that was read, with its row and step.

That hosts add up to the same checksum, and that it is fixed for good, are laws of all streams
(tests/laws/test_stream_laws.py).
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import RAGGED, W

from brt.data.streams.checksum import MODULUS, checksum_of, row_hashes
from brt.data.streams.select import training_stream

SIZES = 8, W, 2, 5


def mixed(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor % MODULUS
    return x ^ x >> 31


def plain_hash(batch, step, row, first_row):
    """The hash of one row, word by word."""
    total = 0
    for number, array in enumerate(batch):
        row_KT = array[:, row].ravel()
        words = (row_KT.view(np.uint32) if array.dtype == np.float32 else row_KT).tolist()
        bits = np.random.Philox(np.random.SeedSequence((number, 1))).random_raw(len(words))
        total += sum(word % 2**32 * (int(b) | 1) for word, b in zip(words, bits))
    return mixed((total + mixed((first_row + row + mixed(step)) % MODULUS)) % MODULUS)


def test_the_hash_is_a_plain_loop_and_rows_keep_their_number(store_of):
    stream = training_stream("documents", store_of(RAGGED, weighted=True), *SIZES)
    for step, first in ((0, 0), (3, 2), (7, 5)):
        batch = stream.batch(step, first)
        plain = [plain_hash(batch, step, row, first) for row in range(8 - first)]
        assert row_hashes(batch, step, first).tolist() == plain
        assert checksum_of(batch, step, first) == sum(plain) % MODULUS


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.sampled_from(range(4)),
    st.integers(0, 1),
    st.integers(0, 7),
    st.integers(0, W - 1),
    st.data(),
)
def test_whatever_changes_in_a_row_changes_its_hash_and_no_other(store_of, field, k, row, at, data):
    batch = training_stream("documents", store_of(RAGGED), *SIZES).batch(3)
    changed = list(map(np.copy, batch))
    index = (k, row, at)[: changed[field].ndim]
    old = changed[field][index]
    new = not old if field == 3 else data.draw(st.integers(-1, 2**20).filter(lambda x: x != old))
    changed[field][index] = new
    different = row_hashes(type(batch)(*changed), 3) != row_hashes(batch, 3)
    assert different.tolist() == [r == row for r in range(8)]
