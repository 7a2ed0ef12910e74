"""The memories of `own_memories` as plain loops in NumPy float64."""

import numpy as np
import paper_numpy
from paper_numpy import sigmoid


class Gradient(paper_numpy.MixedMemory):
    """Of each head the gradient of half the squared errors, averaged over the block."""

    def begin(self, num_heads, head_size):
        return np.zeros((num_heads, head_size, head_size))

    def retrieve(self, old_HKK, h, q_K):
        return q_K @ old_HKK[h]

    def after(self, old_HKK, K_WHK, V_WHK, x_WD):
        new_HKK = old_HKK.copy()
        for t, x_D in enumerate(x_WD):
            for h in range(len(old_HKK)):
                rate = sigmoid(x_D @ self.module["rate_DH"][:, h]) / len(x_WD)
                error_K = K_WHK[t, h] @ old_HKK[h] - V_WHK[t, h]
                new_HKK[h] -= rate * np.outer(K_WHK[t, h], error_K)
        return new_HKK


class Recurrence:
    """Token by token; `step` returns the units and the term added to the residual."""

    def __init__(self, module):
        self.module = module

    def begin(self, num_heads=None, head_size=None):
        return np.zeros(len(self.module["output_UD"]))

    def step(self, h_U, x_D):
        keep_U = np.exp(-0.1 * sigmoid(x_D @ self.module["decay_DU"]))
        h_U = keep_U * h_U + (1 - keep_U) * (x_D @ self.module["input_DU"])
        return h_U, h_U @ self.module["output_UD"]

    def mix(self, h_U, Q_WHK, attended_WHK):
        return attended_WHK

    def added(self, h_U):
        def next_token(x_D):
            nonlocal h_U
            h_U, y_D = self.step(h_U, x_D)
            return y_D

        return next_token

    def after(self, h_U, K_WHK, V_WHK, x_WD):
        for x_D in x_WD:
            h_U, _ = self.step(h_U, x_D)
        return h_U


class Reader(paper_numpy.Reader):
    """A Block-Recurrent stack with a memory in its layer 1.

    kind: from the memory's parameters to `begin(H, K)`, and `mix` and `after` of blocks, or `token`
        of a memory that changes with every token, which reads it as it leaves it.
    """

    def __init__(self, params, settings, name, kind):
        super().__init__(params, settings)
        self.name, self.memory = name, kind(params["layers"][1][name])

    def begin(self):
        memory = super().begin()
        sizes = self.settings.num_heads, self.settings.head_size
        memory[1][self.name] = self.memory.begin(*sizes)
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if self.name not in memory:
            return self_WHK, None, {}
        old = memory[self.name]
        if hasattr(self.memory, "token"):
            mixed = []
            for inputs in zip(Q_WHK, K_WHK, V_WHK, self_WHK, x_WD):
                mixed_HK, old = self.memory.token(old, *inputs)
                mixed.append(mixed_HK)
            return np.array(mixed), None, {self.name: old}
        after = {self.name: self.memory.after(old, K_WHK, V_WHK, x_WD)}
        if isinstance(self.memory, Recurrence):
            after["residual"] = np.stack([*map(self.memory.added(old), x_WD)])
        return self.memory.mix(old, Q_WHK, self_WHK), None, after
