"""Kimi Delta Attention (arXiv:2510.26692, section 3) as plain loops in NumPy float64.

`recurrence` is the rule alone, of one batch element; `KimiDelta` a memory in a layer, `GatedDelta`
one with a decay of each head (arXiv:2412.06464, eq. 10).
"""

import numpy as np
from paper_numpy import sigmoid


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


class GatedDelta:
    """The memory of a layer, token by token: `token` returns what it reads and the next state."""

    def __init__(self, module):
        self.module = module

    def begin(self, num_heads, head_size):
        return np.zeros((num_heads, head_size, head_size))

    def log_decays(self, x_D, h, K):
        m = self.module
        return np.full(K, -np.log1p(np.exp(x_D @ m["decay_DH"][:, h] + m["decay_bias_H"][h])))

    def token(self, S_HKK, q_HK, k_HK, v_HK, attended_HK, x_D):
        m, (H, K) = self.module, k_HK.shape
        S_HKK, mixed_HK = S_HKK.copy(), np.zeros_like(attended_HK)
        for h in range(H):
            step, share = sigmoid(x_D @ m["step_DH"][:, h]), sigmoid(m["mix_H"][h])
            S_HKK[h] = next_state(S_HKK[h], k_HK[h], v_HK[h], self.log_decays(x_D, h, K), step)
            mixed_HK[h] = (1 - share) * attended_HK[h] + share * q_HK[h] @ S_HKK[h]
        return mixed_HK, S_HKK


class KimiDelta(GatedDelta):
    """Gated delta memory with a decay of each channel."""

    def log_decays(self, x_D, h, K):
        m, of_head = self.module, slice(h * K, (h + 1) * K)
        soft_A = np.log1p(np.exp(x_D @ m["decay_down_DK"] @ m["decay_up_KA"] + m["decay_bias_A"]))
        return -np.exp(m["decay_rate_H"][h]) * soft_A[of_head]
