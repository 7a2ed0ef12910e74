"""The data checksum (`data/ledger` in the records): equal for runs that have read the same data.

It is the sum, modulo 2**64, of a hash of each batch element of each step, over all hosts.
"""

import functools

import numpy as np

from brt.data.streams.batch import Batch

MODULUS = 2**64


def row_hashes(batch: Batch, step: int, first_row: int = 0) -> np.ndarray:
    """Returns a hash of each batch element, uint64 (rows,).

    The 32-bit words are multiplied by fixed random odd numbers and added modulo 2**64; the sum is
    mixed with step and batch element. A difference of one word always changes the hash, several
    leave it unchanged with probability 2**-33 at most.
    """
    rows = np.arange(first_row, first_row + batch.starts_KB.shape[1], dtype=np.uint64)
    sums_B = np.zeros(len(rows), np.uint64)
    for number, array in enumerate(batch):
        words = array.astype(np.uint32) if array.dtype == bool else array.view(np.uint32)
        words_KBT = words.reshape(*array.shape[:2], -1)
        sums_B += np.einsum("kbt,kt->b", words_KBT, _factors(number, *words_KBT.shape[::2]))
    rows_and_step_B = _mixed(rows + _mixed(np.full(1, step, np.uint64)))
    return _mixed(sums_B + rows_and_step_B)


def checksum_of(batch: Batch, step: int, first_row: int = 0) -> int:
    """Returns the data checksum of a batch, in [0, 2**64)."""
    return int(row_hashes(batch, step, first_row).sum(dtype=np.uint64))


@functools.lru_cache(maxsize=16)
def _factors(number, segments, length):
    bits = np.random.Philox(np.random.SeedSequence((number, 1))).random_raw(segments * length)
    return bits.reshape(segments, length) | np.uint64(1)


def _mixed(x):
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
