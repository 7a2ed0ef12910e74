"""Keyed permutations, the same on every machine and in every version of NumPy."""

import numpy as np


def permutation(count: int, *key: int) -> np.ndarray:
    """Returns a permutation of 0 ... count - 1, int64 (count,).

    The key is integers of 0 or more, the last above 0: NumPy ignores trailing zeros.
    """
    # Unlike NumPy's shuffles, raw bits do not depend on its version.
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")
