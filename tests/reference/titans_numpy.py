"""Titans' neural memory (arXiv:2501.00663, sections 3.1 and 3.2) as plain loops in NumPy float64.

Weights and momentum are lists [hidden (N, K), output (K, N)].
"""

import lact_numpy
import numpy as np
from paper_numpy import sigmoid


def network(weights, x_K):
    hidden, output = weights
    h_N = hidden @ x_K
    return output @ (h_N * sigmoid(h_N))


def gradient(weights, k_K, v_K):
    """Of |f(k) - v|^2, entry by entry."""
    hidden, output = weights
    found = [np.zeros_like(w) for w in weights]
    error_K = network(weights, k_K) - v_K
    for n, h in enumerate(hidden @ k_K):
        s = sigmoid(h)
        found[1][:, n] = 2 * error_K * h * s
        found[0][n] = 2 * (error_K @ output[:, n]) * (s + h * s * (1 - s)) * k_K
    return found


def after_chunk(weights, momentum, ends, k_TK, v_TK, rate_T, keep_T, forget_T):
    """Equations 13 and 14, token by token, with the gradients of the weights before the chunk.

    ends: the weights that the memory decays to; in the paper zeros.
    """
    start = weights
    for k_K, v_K, rate, keep, forget in zip(k_TK, v_TK, rate_T, keep_T, forget_T):
        surprise = gradient(start, k_K, v_K)
        momentum = [keep * s - rate * g for s, g in zip(momentum, surprise)]
        decayed = [(1 - forget) * w + forget * w0 for w, w0 in zip(weights, ends)]
        weights = [w + s for w, s in zip(decayed, momentum)]
    return weights, momentum


class Titans(lact_numpy.Lact):
    """The memory of a layer: of each head a pair of weights and momentum."""

    network = staticmethod(network)

    def __init__(self, module, window):
        self.module, self.window = module, window

    def first(self, h):
        return [self.module[name][h] for name in ("hidden_HNK", "output_HKN")]

    def after(self, heads, K_WHK, V_WHK, x_WD):
        m = self.module
        rate_WH = sigmoid(x_WD @ m["rate_DH"] + m["rate_bias_H"]) / self.window
        keep_WH = sigmoid(x_WD @ m["momentum_DH"] + m["momentum_bias_H"])
        forget_WH = sigmoid(x_WD @ m["decay_DH"] + m["decay_bias_H"])
        tokens = K_WHK, V_WHK, rate_WH, keep_WH, forget_WH
        return [
            after_chunk(*head, self.first(h), *(x_WH[:, h] for x_WH in tokens))
            for h, head in enumerate(heads)
        ]
