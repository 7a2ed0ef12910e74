"""Orders that follow from a key alone, the same on every machine and in every version of NumPy."""

import numpy as np


def permutation(count: int, *key: int) -> np.ndarray:
    """Returns a permutation of `count` things that follows from the key alone, int64 (count,).

    Args:
        count: how many there are to order.
        key: integers, at least 0; the last one above 0, because NumPy takes keys that differ by
            zeros at the end for equal.
    """
    # Raw bits, because NumPy keeps those the same in all versions, unlike its shuffles.
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")
