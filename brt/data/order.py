"""Permutations by a key, the same on every machine and in every version of NumPy."""

import numpy as np


def permutation(count: int, *key: int) -> np.ndarray:
    """Returns a permutation of 0 ... count - 1, int64 (count,).

    The key consists of integers of 0 or more, the last one above 0: NumPy ignores trailing zeros.
    """
    # Raw bits do not depend on the version of NumPy, unlike its shuffles.
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")
