"""The memories of `own_memories` as plain loops in NumPy float64."""

import numpy as np
import paper_numpy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class GradientReader(paper_numpy.Reader):
    """Of each head the gradient of half the squared errors, averaged over the block."""

    def begin(self):
        memory = super().begin()
        H, K = self.settings.num_heads, self.settings.head_size
        memory[1]["gradient"] = np.zeros((H, K, K))
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "gradient" not in memory:
            return self_WHK, None, {}
        module, old_HKK = layer["gradient"], memory["gradient"]
        new_HKK, mixed_WHK = old_HKK.copy(), self_WHK.copy()
        for t, x_D in enumerate(x_WD):
            for h in range(len(old_HKK)):
                share = sigmoid(module["mix_H"][h])
                found_K = Q_WHK[t, h] @ old_HKK[h]
                mixed_WHK[t, h] = (1 - share) * self_WHK[t, h] + share * found_K
                rate = sigmoid(x_D @ module["rate_DH"][:, h]) / len(x_WD)
                error_K = K_WHK[t, h] @ old_HKK[h] - V_WHK[t, h]
                new_HKK[h] -= rate * np.outer(K_WHK[t, h], error_K)
        return mixed_WHK, None, {"gradient": new_HKK}


class RecurrenceReader(paper_numpy.Reader):
    """Token by token."""

    def begin(self):
        memory = super().begin()
        memory[1]["recurrence"] = np.zeros(
            self.params["layers"][1]["recurrence"]["input_DU"].shape[1]
        )
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "recurrence" not in memory:
            return self_WHK, None, {}
        module, h_U, added = layer["recurrence"], memory["recurrence"], []
        for x_D in x_WD:
            keep_U = np.exp(-0.1 * sigmoid(x_D @ module["decay_DU"]))
            h_U = keep_U * h_U + (1 - keep_U) * (x_D @ module["input_DU"])
            added.append(h_U @ module["output_UD"])
        return self_WHK, None, {"recurrence": h_U, "residual": np.stack(added)}
