"""Infini-attention's memory (arXiv:2404.07143, eq. 3-6) as plain loops in NumPy float64."""

import numpy as np
from paper_numpy import sigmoid


def features(x_K):
    return np.array([x + 1 if x > 0 else np.exp(x) for x in x_K])


class Associative:
    """The memory of one layer; `rule` is "linear" or "delta"."""

    def __init__(self, module, rule):
        self.module, self.rule = module, rule

    def begin(self, num_heads, head_size):
        return np.zeros((num_heads, head_size, head_size)), np.zeros((num_heads, head_size))

    def retrieve(self, memory, h, x_K):
        matrix_HKK, sum_HK = memory
        weight = features(x_K) @ sum_HK[h]
        return features(x_K) @ matrix_HKK[h] / weight if weight else np.zeros(len(x_K))

    def mix(self, memory, Q_THK, attended_THK):
        mixed_THK = np.zeros_like(attended_THK)
        for t, q_HK in enumerate(Q_THK):
            for h, b in enumerate(self.module["mix_H"]):
                share, found_K = sigmoid(b), self.retrieve(memory, h, q_HK[h])
                mixed_THK[t, h] = (1 - share) * attended_THK[t, h] + share * found_K
        return mixed_THK

    def after(self, memory, K_THK, V_THK, x_TD):
        matrix_HKK, sum_HK = (x.copy() for x in memory)
        for k_HK, v_HK in zip(K_THK, V_THK):
            for h, (k_K, v_K) in enumerate(zip(k_HK, v_HK)):
                if self.rule == "delta":
                    v_K = v_K - self.retrieve(memory, h, k_K)
                matrix_HKK[h] += np.outer(features(k_K), v_K)
                sum_HK[h] += features(k_K)
        return matrix_HKK, sum_HK
