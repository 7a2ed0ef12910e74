"""Infini-attention's memory (arXiv:2404.07143, eq. 3-6) as plain loops in NumPy float64."""

import numpy as np
from paper_numpy import MixedMemory


def features(x_K):
    return np.array([x + 1 if x > 0 else np.exp(x) for x in x_K])


class Associative(MixedMemory):
    """The memory of one layer; `rule` is "linear" or "delta"."""

    def __init__(self, module, rule):
        super().__init__(module)
        self.rule = rule

    def begin(self, num_heads, head_size):
        return np.zeros((num_heads, head_size, head_size)), np.zeros((num_heads, head_size))

    def retrieve(self, memory, h, x_K):
        matrix_HKK, sum_HK = memory
        weight = features(x_K) @ sum_HK[h]
        return features(x_K) @ matrix_HKK[h] / weight if weight else np.zeros(len(x_K))

    def after(self, memory, K_THK, V_THK, x_TD):
        matrix_HKK, sum_HK = (x.copy() for x in memory)
        for k_HK, v_HK in zip(K_THK, V_THK):
            for h, (k_K, v_K) in enumerate(zip(k_HK, v_HK)):
                if self.rule == "delta":
                    v_K = v_K - self.retrieve(memory, h, k_K)
                matrix_HKK[h] += np.outer(features(k_K), v_K)
                sum_HK[h] += features(k_K)
        return matrix_HKK, sum_HK
