"""Associative memories as plain loops in NumPy float64: one token and one head at a time.

Infini-attention (arXiv:2404.07143, eq. 3-6) and Gated DeltaNet (arXiv:2412.06464, eq. 10).
"""

import numpy as np
import paper_numpy


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
                share = 1 / (1 + np.exp(-b))
                found_K = self.retrieve(memory, h, q_HK[h])
                mixed_THK[t, h] = (1 - share) * attended_THK[t, h] + share * found_K
        return mixed_THK

    def after(self, memory, K_THK, V_THK):
        matrix_HKK, sum_HK = (x.copy() for x in memory)
        for k_HK, v_HK in zip(K_THK, V_THK):
            for h, (k_K, v_K) in enumerate(zip(k_HK, v_HK)):
                if self.rule == "delta":
                    v_K = v_K - self.retrieve(memory, h, k_K)
                matrix_HKK[h] += np.outer(features(k_K), v_K)
                sum_HK[h] += features(k_K)
        return matrix_HKK, sum_HK


class AssociativeReader(paper_numpy.Reader):
    """A Block-Recurrent stack with the memory in one layer."""

    def __init__(self, params, settings, layer, rule):
        super().__init__(params, settings)
        self.layer = layer
        self.memory = Associative(params["layers"][layer]["associative"], rule)

    def begin(self):
        memory = super().begin()
        sizes = self.settings.num_heads, self.settings.head_size
        memory[self.layer]["associative"] = self.memory.begin(*sizes)
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "associative" not in memory:
            return self_WHK, None, {}
        old = memory["associative"]
        new = {"associative": self.memory.after(old, K_WHK, V_WHK)}
        return self.memory.mix(old, Q_WHK, self_WHK), None, new


class GatedDeltaReader(paper_numpy.Reader):
    """A Block-Recurrent stack with a gated delta memory in one layer: token by token."""

    def __init__(self, params, settings, layer):
        super().__init__(params, settings)
        self.layer = layer

    def begin(self):
        memory = super().begin()
        H, K = self.settings.num_heads, self.settings.head_size
        memory[self.layer]["gated_delta"] = np.zeros((H, K, K))
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "gated_delta" not in memory:
            return self_WHK, None, {}
        module, state_HKK = layer["gated_delta"], memory["gated_delta"].copy()
        mixed_WHK = np.zeros_like(self_WHK)
        for t, x_D in enumerate(x_WD):
            for h in range(self.settings.num_heads):
                rate = np.log1p(np.exp(x_D @ module["decay_DH"][:, h] + module["decay_bias_H"][h]))
                keep, step = np.exp(-rate), 1 / (1 + np.exp(-x_D @ module["step_DH"][:, h]))
                q_K, k_K = Q_WHK[t, h], K_WHK[t, h]  # of unit length
                erase_KK = np.eye(len(k_K)) - step * np.outer(k_K, k_K)
                written_KK = step * np.outer(k_K, V_WHK[t, h])
                state_HKK[h] = keep * erase_KK @ state_HKK[h] + written_KK
                share = 1 / (1 + np.exp(-module["mix_H"][h]))
                mixed_WHK[t, h] = (1 - share) * self_WHK[t, h] + share * q_K @ state_HKK[h]
        return mixed_WHK, None, {"gated_delta": state_HKK}
