"""LaCT (arXiv:2505.23884, section 3) as plain loops in NumPy float64: one token and head at a time.

`chunks` is the rule alone, of one head; `Lact` a memory in a layer. Weights and momentum are lists
[gate (N, K), up (N, K), down (V, N)], rates of a token three numbers or vectors in that order.
"""

import numpy as np
from paper_numpy import MixedMemory, sigmoid

COEFFICIENTS = (
    *((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037)),
    *((2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)),
)


def network(weights, x_K):
    gate, up, down = weights
    g_N = gate @ x_K
    return down @ (g_N * sigmoid(g_N) * (up @ x_K))


def ascent(weights, k_K, v_V, rates):
    """Of v . f(k): for each matrix its gradient, whose inputs are multiplied by the rates."""
    gate, up, down = weights
    found = [np.zeros_like(w) for w in weights]
    for n, (g, u) in enumerate(zip(gate @ k_K, up @ k_K)):
        s, e = sigmoid(g), down[:, n] @ v_V
        found[0][n] = e * u * (s + g * s * (1 - s)) * (rates[0] * k_K)
        found[1][n] = e * g * s * (rates[1] * k_K)
        found[2][:, n] = v_V * g * s * u * np.broadcast_to(rates[2], len(gate))[n]
    return found


def muon(matrix):
    """The iterations change singular values alone."""
    U, s, Vh = np.linalg.svd(matrix, full_matrices=False)
    s = s / (np.sqrt(np.sum(s**2)) + 1e-7)
    for a, b, c in COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    return U @ np.diag(s) @ Vh


def lengths(matrix):
    return np.sqrt(np.sum(matrix**2, axis=1, keepdims=True))


def after_chunk(weights, momentum, first, k_TK, v_TV, rates_T, keep_T, with_muon):
    """The next weights and momentum; first: the weights of new documents. keep_T: or None."""
    change = [np.zeros_like(w) for w in weights]
    for k_K, v_V, rates in zip(k_TK, v_TV, rates_T):
        change = [x + y for x, y in zip(change, ascent(weights, k_K, v_V, rates))]
    if keep_T is not None:
        change = [x + np.mean(keep_T) * y for x, y in zip(change, momentum)]
        momentum = change
    if with_muon:
        change = [*map(muon, change)]
    after = [w + x for w, x in zip(weights, change)]
    after = [w / (lengths(w) + 1e-5) * lengths(w0) for w, w0 in zip(after, first)]
    return after, momentum


def chunks(first, q_TK, k_TK, v_TV, rates_T, keep_T, length, with_muon):
    """Outputs (T, V): tokens of a chunk read the weights that the chunks before it left."""
    weights, momentum, outputs = first, [np.zeros_like(w) for w in first], []
    for start in range(0, len(q_TK), length):
        part = slice(start, start + length)
        outputs += [network(weights, q_K) for q_K in q_TK[part]]
        keep = None if keep_T is None else keep_T[part]
        arguments = k_TK[part], v_TV[part], rates_T[part], keep, with_muon
        weights, momentum = after_chunk(weights, momentum, first, *arguments)
    return np.array(outputs)


class Lact(MixedMemory):
    """The memory of a layer: of each head a pair of weights and momentum."""

    network = staticmethod(network)

    def __init__(self, module, momentum=True, muon=False):
        super().__init__(module)
        self.momentum, self.muon = momentum, muon

    def first(self, h):
        return [self.module[name][h] for name in ("gate_HNK", "up_HNK", "down_HKN")]

    def begin(self, num_heads, head_size):
        firsts = map(self.first, range(num_heads))
        return [(weights, [np.zeros_like(w) for w in weights]) for weights in firsts]

    def retrieve(self, heads, h, q_K):
        weights, _ = heads[h]
        y_K = self.network(weights, q_K)
        return y_K / np.sqrt(np.mean(y_K**2) + 1e-6) * self.module["norm_K"]

    def after(self, heads, K_WHK, V_WHK, x_WD):
        m, keep_WH = self.module, None
        rates_WHZ = np.log1p(np.exp(x_WD @ m["rate_DZ"] + m["rate_bias_Z"]))
        rates_WHZ = rates_WHZ.reshape(len(x_WD), len(heads), 3)
        if self.momentum:
            keep_WH = sigmoid(x_WD @ m["momentum_DH"] + m["momentum_bias_H"])
        new = []
        for h, (weights, momentum) in enumerate(heads):
            keep_W = None if keep_WH is None else keep_WH[:, h]
            arguments = K_WHK[:, h], V_WHK[:, h], rates_WHZ[:, h], keep_W, self.muon
            new.append(after_chunk(weights, momentum, self.first(h), *arguments))
        return new
