"""Kimi Delta Attention (arXiv:2510.26692, section 3) as plain loops in NumPy float64.

`recurrence` is the rule alone, of one batch element; `KimiDelta` a memory in a layer.
"""

import numpy as np
import paper_numpy


def next_state(S_KV, k_K, v_V, log_decay_K, step):
    """S = (I - b k k^T) Diag(a) S + b k v^T."""
    decayed_KV = np.exp(log_decay_K)[:, None] * S_KV
    return (np.eye(len(k_K)) - step * np.outer(k_K, k_K)) @ decayed_KV + step * np.outer(k_K, v_V)


def recurrence(S_HKV, q_THK, k_THK, v_THV, log_decay_THK, step_TH):
    """Values read (T, H, V), and the states after the last token."""
    S_HKV, read_THV = S_HKV.copy(), np.zeros_like(v_THV)
    for t in range(len(q_THK)):
        for h in range(len(S_HKV)):
            inputs = k_THK[t, h], v_THV[t, h], log_decay_THK[t, h], step_TH[t, h]
            S_HKV[h] = next_state(S_HKV[h], *inputs)
            read_THV[t, h] = q_THK[t, h] @ S_HKV[h]
    return read_THV, S_HKV


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class KimiDelta:
    """The memory of a layer, token by token: `token` returns what it reads and the next state."""

    def __init__(self, module):
        self.module = module

    def begin(self, num_heads, head_size):
        return np.zeros((num_heads, head_size, head_size))

    def token(self, S_HKK, q_HK, k_HK, v_HK, attended_HK, x_D):
        m, (H, K) = self.module, k_HK.shape
        S_HKK, mixed_HK = S_HKK.copy(), np.zeros_like(attended_HK)
        soft_A = np.log1p(np.exp(x_D @ m["decay_down_DK"] @ m["decay_up_KA"] + m["decay_bias_A"]))
        for h in range(H):
            log_decay_K = -np.exp(m["decay_rate_H"][h]) * soft_A[h * K : (h + 1) * K]
            step = sigmoid(x_D @ m["step_DH"][:, h])
            S_HKK[h] = next_state(S_HKK[h], k_HK[h], v_HK[h], log_decay_K, step)
            share = sigmoid(m["mix_H"][h])
            mixed_HK[h] = (1 - share) * attended_HK[h] + share * q_HK[h] @ S_HKK[h]
        return mixed_HK, S_HKK


class KimiDeltaReader(paper_numpy.Reader):
    """A Block-Recurrent stack with the memory in one layer."""

    def __init__(self, params, settings, layer):
        super().__init__(params, settings)
        self.layer = layer
        self.memory = KimiDelta(params["layers"][layer]["kimi_delta"])

    def begin(self):
        memory = super().begin()
        sizes = self.settings.num_heads, self.settings.head_size
        memory[self.layer]["kimi_delta"] = self.memory.begin(*sizes)
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "kimi_delta" not in memory:
            return self_WHK, None, {}
        state, mixed = memory["kimi_delta"], []
        for token in zip(Q_WHK, K_WHK, V_WHK, self_WHK, x_WD):
            mixed_HK, state = self.memory.token(state, *token)
            mixed.append(mixed_HK)
        return np.array(mixed), None, {"kimi_delta": state}
