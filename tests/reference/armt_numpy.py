"""The Associative Recurrent Memory Transformer as plain loops in NumPy float64.

Read it beside Rodkin et al. 2024, arXiv:2407.04841, section 2: one row, one layer, one position and
one memory token at a time. The layers are Transformer-XL's, from txl_numpy.py; the memory tokens
are the last tokens.
"""

import numpy as np
import txl_numpy


def dpfp(x_Y):
    """DPFP-3 of Schlag et al. 2021, of unit length: one product at a time."""
    r = [max(x, 0.0) for x in x_Y] + [max(-x, 0.0) for x in x_Y]
    f_L = np.array([r[i] * r[i - j] for j in (1, 2, 3) for i in range(len(r))])
    length = np.sqrt((f_L**2).sum())
    return f_L / length if length else f_L


class Matrix:
    """A and z of one layer."""

    def __init__(self, weights):
        self.weights = weights
        D, Y = weights["queries_DY"].shape
        self.A_LD = np.zeros((6 * Y, D))
        self.z_L = np.zeros(6 * Y)

    def stored(self, f_L):
        total = sum(f * z for f, z in zip(f_L, self.z_L))
        return sum(f * row_D for f, row_D in zip(f_L, self.A_LD)) / (total + 1e-5), total

    def read(self, x_D):
        return x_D + self.stored(dpfp(x_D @ self.weights["queries_DY"]))[0]

    def write(self, outputs_SD):
        """The matrix after a segment; all tokens compare with the matrix from before it."""
        after = Matrix(self.weights)
        after.A_LD, after.z_L = self.A_LD.copy(), self.z_L.copy()
        for m_D in outputs_SD:
            f_L = dpfp(m_D @ self.weights["keys_DY"])
            old_D, total = self.stored(f_L)
            rate = m_D @ self.weights["rate_D"] + self.weights["rate_bias_N"][0]
            beta = 1 / (1 + np.exp(-rate))
            after.A_LD += beta * np.outer(f_L, m_D @ self.weights["values_DD"] - old_D)
            after.z_L += min(max(1 - total, 0.0), 1.0) * f_L
        return after


class Reader(txl_numpy.Reader):
    """Reads documents of one row; params: a nested dictionary of the model's."""

    def __init__(self, params, config):
        super().__init__(params["body"], config)
        self.memory_SD = np.asarray(params["memory_SD"], np.float64)
        self.associations = [
            {name: np.asarray(x, np.float64) for name, x in params["associations"][i].items()}
            for i in sorted(params["associations"])
        ]

    def begin(self):
        return [Matrix(weights) for weights in self.associations]

    def read(self, tokens_T, matrices):
        """Logits (T, V) of a segment, and the matrices after it."""
        T, x, after = len(tokens_T), [*self.embed(tokens_T), *self.memory_SD], []
        for layer, matrix in enumerate(matrices):
            x = [matrix.read(x_D) for x_D in x]
            x = txl_numpy.run_layer(x, [], layer, self.params, self.config, lambda i, j: j <= i)
            after.append(matrix.write(x[T:]))
        return self.scores(x[:T]), after
