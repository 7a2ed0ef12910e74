"""MELODI as plain loops in NumPy float64: one window, one layer, one head and one query at a time.

Written from the equations of Chen et al. 2024 (arXiv:2410.03156) and the released code's choices:
memories are normed and projected like tokens; empty slots are zeros and visible; the bias is added
before the scale; a summary token attends to its whole window and the summary tokens before it.
"""

from dataclasses import dataclass

import numpy as np
import paper_numpy
from paper_numpy import rms_norm, sigmoid, unit_length


@dataclass(frozen=True)
class Settings:
    """Settings that the parameters do not show; long_layers: indices from 0."""

    num_heads: int
    window: int
    long_layers: tuple
    long_memory: int


def softmax(scores):
    parts = np.exp(np.array(scores) - max(scores))
    return parts / parts.sum()


def heads(layer, x_ND, name, H):
    A = layer[name].shape[1]
    return (x_ND @ layer[name]).reshape(len(x_ND), H, A // H)


def attend(layer, position, q_HK, seen, long):
    """Attention of one position to (keys, values) lists; the memory begins at position 0."""
    result = []
    for h, q_K in enumerate(q_HK):
        scale = abs(layer["attention_scale_H"][h])
        table_R = layer["relative_bias"]["table_HR"][h]
        scores, values = [], []
        for j, (k_HK, v_HK) in enumerate(seen):
            if position - j < 1:
                break
            bucket = paper_numpy.bucket(position - j)
            scores.append((unit_length(q_K) @ unit_length(k_HK[h]) + table_R[bucket]) * scale)
            values.append(v_HK[h])
        read_K = softmax(scores) @ np.array(values)
        if long:
            weights = softmax([unit_length(q_K) @ unit_length(k_HK[h]) * scale for k_HK, _ in long])
            gate_K = sigmoid(layer["gate_HK"][h])
            found_K = weights @ np.array([v_HK[h] for _, v_HK in long])
            read_K = gate_K * read_K + (1 - gate_K) * found_K
        result.append(read_K)
    return np.concatenate(result)


def mix(mixing, tokens_WD, summary_UD):
    """One output position after another."""
    x_WD, u_UD = tokens_WD, summary_UD
    if "tokens_norm" in mixing:
        x_WD = rms_norm(tokens_WD, mixing["tokens_norm"])
        u_UD = rms_norm(summary_UD, mixing["summary_norm"])
    together_XD = np.concatenate([x_WD, u_UD])
    outputs = []
    for y in range(mixing["matrix_XI"].shape[1]):
        output_D = mixing["bias_I"][y] + sum(
            weight * x_D for weight, x_D in zip(mixing["matrix_XI"][:, y], together_XD)
        )
        outputs.append(output_D + summary_UD[y] if "tokens_norm" in mixing else output_D)
    return np.stack(outputs)


class Reader:
    """Reads documents segment by segment, each a whole number of windows."""

    def __init__(self, params, settings):
        self.params, self.settings = params, settings

    def begin(self):
        D = self.params["embedding_VD"].shape[1]
        memory = []
        for index in range(len(self.params["layers"])):
            S = self.params["layers"][index]["short_mixing"]["matrix_XI"].shape[1]
            M = self.settings.long_memory if index in self.settings.long_layers else 0
            memory.append((np.zeros((S, D)), np.zeros((M, D))))
        return memory

    def read(self, tokens_T, memory):
        W, outputs, memory = self.settings.window, [], list(memory)
        x_TD = paper_numpy.embed(self.params, tokens_T)
        for first in range(0, len(x_TD), W):
            x_WD, u_UD = x_TD[first : first + W], self.params["summary_RD"]
            for index in range(len(self.params["layers"])):
                layer = self.params["layers"][index]
                x_WD, u_UD, memory[index] = self.layer(layer, x_WD, u_UD, *memory[index])
            outputs.extend(rms_norm(x_WD, self.params["final_norm"]))
        table_VD = self.params["embedding_VD"]
        return np.array(outputs) @ table_VD.T / np.sqrt(table_VD.shape[1]), memory

    def layer(self, layer, x_WD, u_UD, short_SD, long_MD):
        H, W, S = self.settings.num_heads, len(x_WD), len(short_SD)
        together_XD = np.concatenate([x_WD, u_UD])

        def pairs(x_ND):
            normed_ND = rms_norm(x_ND, layer["attention_norm"])
            keys_values = (heads(layer, normed_ND, f"{name}_DA", H) for name in ("keys", "values"))
            return list(zip(*keys_values))

        seen, long = pairs(np.concatenate([short_SD, together_XD])), pairs(long_MD)
        normed_XD = rms_norm(together_XD, layer["attention_norm"])
        outputs = []
        for i, q_HK in enumerate(heads(layer, normed_XD, "queries_DA", H)):
            attended_A = attend(layer, S + i, q_HK, seen, long)
            y_D = together_XD[i] + attended_A @ layer["output_AD"]
            h_D = rms_norm(y_D[None], layer["feed_forward_norm"])[0]
            mlp = layer["feed_forward"]
            hidden_F = np.maximum(h_D @ mlp["hidden_DF"] + mlp["hidden_bias_F"], 0)
            outputs.append(y_D + hidden_F @ mlp["output_FD"] + mlp["output_bias_D"])
        tokens_WD, summary_UD = np.array(outputs[:W]), np.array(outputs[W:])
        if len(long_MD):
            new_ID = mix(layer["long_mixing"], tokens_WD, summary_UD)
            long_MD = np.concatenate([long_MD, new_ID])[len(new_ID) :]
        new_SD = mix(layer["short_mixing"], tokens_WD, summary_UD)
        return tokens_WD, mix(layer["summary_mixing"], tokens_WD, summary_UD), (new_SD, long_MD)
