"""Llama, Qwen2 and GPT-NeoX transcribed in loops over tokens and heads; as in `gpt2_numpy`.

Source: Touvron et al. 2023; Black et al. 2022; folders of model_type llama, qwen2 and gpt_neox.
"""

import math
from dataclasses import dataclass

import gpt2_numpy
import numpy as np
import paper_numpy
from gpt2_numpy import activated, part_of, softmax


@dataclass(frozen=True)
class Settings(gpt2_numpy.Settings):
    """Besides, rotary positions: their base, the share of a head, (factor, low, high, original).

    sliding: W, keys that a token sees, itself among them, where no window restarts; None: all of a
    window. parallel: MLP and attention have the same input (GPT-NeoX).
    """

    num_key_heads: int = 0
    rotary_base: float = 10_000.0
    rotary_share: float = 1.0
    rotary_scaling: tuple | None = None
    parallel: bool = False
    sliding: int | None = None


def rotated(x, position, settings):
    """A head's vector, rotated in the planes of entries r and r + half."""
    size = int(len(x) * settings.rotary_share)
    half = size // 2
    y = np.array(x)
    for r in range(half):
        frequency = settings.rotary_base ** (-2 * r / size)
        if settings.rotary_scaling:
            factor, low, high, original = settings.rotary_scaling
            wave = 2 * math.pi / frequency
            if wave > original / low:
                frequency /= factor
            elif wave >= original / high:
                smooth = (original / wave - low) / (high - low)
                frequency = (1 - smooth) * frequency / factor + smooth * frequency
        angle = position * frequency
        y[r] = x[r] * math.cos(angle) - x[half + r] * math.sin(angle)
        y[half + r] = x[half + r] * math.cos(angle) + x[r] * math.sin(angle)
    return y


def normed(x_D, norm, epsilon):
    if "bias_D" in norm:
        return gpt2_numpy.normed(x_D, norm, epsilon)
    return x_D / math.sqrt(sum(x * x for x in x_D) / len(x_D) + epsilon) * norm["scale_D"]


def keys_values(layer, inputs, settings):
    """Keys without positions, and values, each key head as often as queries read it."""
    x = [normed(y, layer["attention_norm"], settings.epsilon) for y in inputs]
    G = settings.num_key_heads or settings.num_heads
    found = []
    for part in ("keys", "values"):
        rows = np.array([projected(layer, part, y) for y in x]).reshape(len(x), G, -1)
        found.append(np.repeat(rows, settings.num_heads // G, axis=1))
    return found


def projected(layer, part, x_D):
    """x matrix + bias of queries, keys or values, whatever the name of the output axis."""
    (matrix,) = (layer[name] for name in layer if name.startswith(f"{part}_D"))
    bias = [layer[name] for name in layer if name.startswith(f"{part}_bias")]
    return x_D @ matrix + (bias[0] if bias else 0.0)


def layer_outputs(layer, inputs, extras, settings, added=None, before=()):
    """Outputs of a layer; extras: inputs for keys and values at position 0 that all tokens see.

    before: (keys, values) of each earlier token, the oldest first; positions count from it.
    """
    H = settings.num_heads
    old_keys, old_values = before if len(before) else ([], [])
    extra_keys, extra_values = keys_values(layer, extras, settings) if extras else ([], [])
    own_keys, own_values = keys_values(layer, inputs, settings)
    keys = [*old_keys, *own_keys]
    values = [*old_values, *own_values]
    outputs = []
    for t, x_D in enumerate(inputs):
        position = len(old_keys) + t
        y_D = normed(x_D, layer["attention_norm"], settings.epsilon)
        query = projected(layer, "queries", y_D)
        first = max(position - settings.sliding + 1, 0) if settings.sliding else 0
        found = []
        for head in range(H):
            q = rotated(part_of(query, head, H), position, settings)
            seen = [(k[head], v[head]) for k, v in zip(extra_keys, extra_values)]
            seen += [
                (rotated(keys[j][head], j, settings), values[j][head])
                for j in range(first, position + 1)
            ]
            weights = softmax([q @ k / math.sqrt(len(q)) for k, _ in seen])
            found.append(sum(w * v for w, (_, v) in zip(weights, seen)))
        attended = np.concatenate(found) @ layer["output_AD"] + layer.get("output_bias_D", 0.0)
        if added is not None:
            attended = attended + added(y_D)
        after = x_D + attended
        h_D = normed(
            x_D if settings.parallel else after, layer["feed_forward_norm"], settings.epsilon
        )
        if "gate_DF" in layer:
            gate = h_D @ layer["gate_DF"]
            h_F = gate / (1 + np.exp(-gate)) * (h_D @ layer["hidden_DF"])
        else:
            h_F = activated(h_D @ layer["hidden_DF"] + layer["hidden_bias_F"], settings.activation)
        outputs.append(after + h_F @ layer["output_FD"] + layer.get("feed_forward_bias_D", 0.0))
    return outputs


def window(body, words, settings, extras=None, added=None, mixes=None):
    """As `gpt2_numpy.window`."""
    x = list(words)
    outputs = []
    for number in range(1, len(body["layers"]) + 1):
        layer = body["layers"][number - 1]
        own = (extras or {}).get(number, [])
        x = layer_outputs(layer, x, own, settings, (added or {}).get(number))
        outputs.append(x)
    outputs[-1] = [normed(y, body["final_norm"], settings.epsilon) for y in x]
    return outputs


class Reader(gpt2_numpy.Reader):
    """As `gpt2_numpy.Reader`."""

    window = staticmethod(window)
    keys_values = staticmethod(keys_values)

    def enter(self, words):
        return words


class SlidingReader:
    """Reads documents block by block, each token the W tokens up to itself; with a cell or not."""

    def __init__(self, params, settings):
        self.body = params["body"]
        self.module = params.get("cell")
        self.settings = settings

    def begin(self):
        """Keys and values of each layer of all tokens so far, and the states."""
        nothing = [([], []) for _ in self.body["layers"]]
        return nothing, None if self.module is None else self.module["memory"]["initial_states_SD"]

    def read(self, tokens_T, memory):
        W = self.settings.sliding
        found = []
        for first in range(0, len(tokens_T), W):
            rows, memory = self.read_block(tokens_T[first : first + W], memory)
            found.append(rows)
        return np.concatenate(found), memory

    def read_block(self, tokens_W, memory):
        earlier, states = memory
        settings, cell = self.settings, self.settings.cell
        added = {}
        if self.module is not None:
            kind = gpt2_numpy.States(self.module, settings, 0, keys_values)
            added = kind.added(states)
        x = [gpt2_numpy.embedded(self.body, token, settings) for token in tokens_W]
        after = []
        for number in range(1, len(self.body["layers"]) + 1):
            layer = self.body["layers"][number - 1]
            before = earlier[number - 1]
            keys, values = keys_values(layer, x, settings)
            x = layer_outputs(layer, x, [], settings, added.get(number), before)
            after.append(([*before[0], *keys], [*before[1], *values]))
            if added and number == settings.cell_layer:
                pair = paper_numpy.state_keys_and_values(self.module["memory"], cell, states)
                seen = [self.last(rows) for rows in after[-1]]
                seen[0] = paper_numpy.unit_length(seen[0])
                states = paper_numpy.next_states(self.module["memory"], cell, states, *pair, *seen)
        y = [normed(row, self.body["final_norm"], settings.epsilon) for row in x]
        return gpt2_numpy.logits(self.body, y), (after, states)

    def last(self, rows):
        """The last two blocks, (2W, H, K); zeros before the document, as published."""
        W = self.settings.sliding
        rows = list(rows[-2 * W :])
        return np.array([np.zeros_like(rows[0])] * (2 * W - len(rows)) + rows)
