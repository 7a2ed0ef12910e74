"""The ledger: a hash of all that was read, the same whoever read it and in whatever order.

Each row of each step has a hash of its number, its step and all its tokens, weights and starts.
The ledger is the sum of these hashes modulo 2**64. Each host adds up its own rows, and the sums of
the hosts add up to the same ledger for any number of hosts. Two runs with equal ledgers at a step
have read the same data.
"""

import functools

import numpy as np

from brt.data.streams.batch import Batch

MODULUS = 2**64


def row_hashes(batch: Batch, step: int, first_row: int = 0) -> np.ndarray:
    """Hashes the rows of a batch.

    A row's 32-bit words are multiplied by fixed random odd numbers, one for each word, and added
    modulo 2**64; the sum is then mixed with step and row. One word that differs always changes the
    sum; several leave it as it is with a chance of 2**-33 at most. It finds mistakes, not forgery.

    Args:
        batch: arrays on the host, as a stream gives them.
        step: the step it was read for.
        first_row: number of its first row in the global batch.

    Returns:
        uint64 (rows,).
    """
    rows = np.arange(first_row, first_row + batch.starts_KB.shape[1], dtype=np.uint64)
    sums_B = np.zeros(len(rows), np.uint64)
    for number, array in enumerate(batch):
        words = array.astype(np.uint32) if array.dtype == bool else array.view(np.uint32)
        words_KBT = words.reshape(*array.shape[:2], -1)
        sums_B += np.einsum("kbt,kt->b", words_KBT, _factors(number, *words_KBT.shape[::2]))
    rows_and_step_B = _mixed(rows + _mixed(np.full(1, step, np.uint64)))
    return _mixed(sums_B + rows_and_step_B)


def ledger_of(batch: Batch, step: int, first_row: int = 0) -> int:
    """Returns the sum of the hashes of a batch's rows, in [0, 2**64); arguments as `row_hashes`."""
    return int(row_hashes(batch, step, first_row).sum(dtype=np.uint64))


@functools.lru_cache(maxsize=16)
def _factors(number, segments, length):
    """A random odd number for each word of one array of a row."""
    bits = np.random.Philox(np.random.SeedSequence((number, 1))).random_raw(segments * length)
    return bits.reshape(segments, length) | np.uint64(1)


def _mixed(x):
    """A bijection of 64 bits in which every bit of `x` moves about half of the others.

    Source: Steele, Lea and Flood 2014, the finalizer of SplitMix64.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
