"""Layers without attention as plain loops in NumPy float64: one token and one head at a time.

Gated DeltaNet (arXiv:2412.06464, section 3.4 and figure 1), Kimi Linear (arXiv:2510.26692, section
4) and linear attention (arXiv:2006.16236, section 3.4) with the norm of arXiv:2210.10340.
"""

import numpy as np
import paper_numpy
from associative_numpy import features
from kimi_delta_numpy import next_state
from paper_numpy import sigmoid, unit_length

TAPS = 4


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.log1p(np.exp(x))


def convolution(inputs_TA, taps_OA):
    """SiLU of the last output of a depthwise convolution, (A,); zeros before the first token."""
    y_A = np.zeros(taps_OA.shape[1])
    for back in range(min(TAPS, len(inputs_TA))):
        y_A = y_A + taps_OA[TAPS - 1 - back] * inputs_TA[-1 - back]
    return silu(y_A)


def normed(x_K, scale_K):
    return x_K / np.sqrt((x_K**2).mean() + 1e-6) * scale_K


class GatedDelta:
    """Decay and step of a head, and the SiLU gate."""

    def __init__(self, module, num_heads):
        self.m, self.H = module, num_heads

    def log_decay(self, h, x_D):
        m = self.m
        soft = softplus(x_D @ m["decay_DH"][:, h] + m["decay_bias_H"][h])
        return -np.exp(m["decay_rate_H"][h]) * soft

    def shaped(self, q_K, k_K):
        return unit_length(q_K) / np.sqrt(len(q_K)), unit_length(k_K)

    def next_state(self, S_KK, h, k_K, v_K, x_D):
        decays_K = np.broadcast_to(self.log_decay(h, x_D), k_K.shape)
        return next_state(S_KK, k_K, v_K, decays_K, sigmoid(x_D @ self.m["step_DH"][:, h]))

    def gate(self, x_D):
        return silu(x_D @ self.m["gate_DA"])

    def token(self, state, x_D):
        """The output of a token, (D,), and the state after it.

        state: the matrices (H, K, K), and projections of all tokens so far, lists of (A,).
        """
        S_HKK, *inputs = state
        (q_HK, k_HK, v_HK), inputs = self.heads(inputs, x_D)
        S_HKK, read_HK = S_HKK.copy(), np.zeros_like(q_HK)
        for h in range(self.H):
            S_HKK[h] = self.next_state(S_HKK[h], h, k_HK[h], v_HK[h], x_D)
            read_HK[h] = q_HK[h] @ S_HKK[h]
        return self.output(read_HK, x_D), (S_HKK, *inputs)

    def heads(self, inputs, x_D):
        """Queries, keys and values (H, K) of a token, and the projections so far with its own."""
        m = self.m
        names = "queries_DA", "keys_DA", "values_DA"
        inputs = [[*seen, x_D @ m[name]] for seen, name in zip(inputs, names)]
        taps = m["query_taps_OA"], m["key_taps_OA"], m["value_taps_OA"]
        q_HK, k_HK, v_HK = (
            convolution(seen, taps_OA).reshape(self.H, -1) for seen, taps_OA in zip(inputs, taps)
        )
        pairs = [self.shaped(q_K, k_K) for q_K, k_K in zip(q_HK, k_HK)]
        return (*map(np.array, zip(*pairs)), v_HK), inputs

    def output(self, read_HK, x_D):
        y_HK = np.array([normed(read_K, self.m["norm_K"]) for read_K in read_HK])
        return (y_HK.reshape(-1) * self.gate(x_D)) @ self.m["output_AD"]


class KimiDelta(GatedDelta):
    """Decays of channels, and a sigmoid gate of low rank."""

    def log_decay(self, h, x_D):
        m, K = self.m, len(self.m["norm_K"])
        soft_A = softplus(x_D @ m["decay_down_DK"] @ m["decay_up_KA"] + m["decay_bias_A"])
        return -np.exp(m["decay_rate_H"][h]) * soft_A[h * K : (h + 1) * K]

    def gate(self, x_D):
        return sigmoid(x_D @ self.m["gate_down_DK"] @ self.m["gate_up_KA"])


class LinearAttention(GatedDelta):
    """Sums without decay, of positive features."""

    def shaped(self, q_K, k_K):
        return features(q_K), features(k_K)

    def next_state(self, S_KK, h, k_K, v_K, x_D):
        return S_KK + np.outer(k_K, v_K)


KINDS = {
    "gated_delta_layer": GatedDelta,
    "kimi_delta_layer": KimiDelta,
    "linear_attention_layer": LinearAttention,
}


class DeltaLayersReader(paper_numpy.Reader):
    """A Block-Recurrent stack in which some layers have a memory instead of attention."""

    def begin(self):
        memory = super().begin()
        for layer, own in zip(self.params["layers"].values(), memory):
            if "memory_norm" in layer:
                own["state"] = self.begin_layer(layer)
        return memory

    def begin_layer(self, layer):
        H, K = self.settings.num_heads, self.settings.head_size
        return np.zeros((H, K, K)), [], [], []

    def module(self, layer):
        (name,) = layer.keys() & KINDS.keys()
        return KINDS[name](layer[name], self.settings.num_heads)

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "memory_norm" not in layer:
            return self_WHK, None, {}
        module, state, outputs = self.module(layer), memory["state"], []
        for x_D in x_WD:
            y_D, state = module.token(state, x_D)
            outputs.append(y_D)
        return None, None, {"state": state, "residual": np.array(outputs)}
