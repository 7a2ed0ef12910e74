"""GPT-2, Llama, Qwen2 and GPT-NeoX, and what brt adds to them, in loops over tokens and heads.

    reader = Reader(params, Settings(...))
    logits_TV, memory = reader.read(tokens_T, reader.begin())

Parameters are nested dictionaries of float64 arrays with brt's names. Windows restart at position
0. Source: Radford et al. 2019; Touvron et al. 2023; Black et al. 2022; folders of model_type gpt2,
llama, qwen2 and gpt_neox; Yoshida et al. 2020, section 3.
"""

import math
from dataclasses import dataclass

import numpy as np
import paper_numpy

BEGIN = -1


@dataclass(frozen=True)
class Settings:
    """Settings that the parameters do not show.

    parallel: MLP and attention have the same input (GPT-NeoX). rotary: share of a head that is
    rotated, the base, and (factor, low, high, original). sliding: W, keys that a token sees, itself
    among them, where no window restarts; None: all of a window. overlap: tokens of a window that
    the next reads again. pooled_layer: from 1, the layer that the pooled vector enters; 0: all
    layers; None: no vector. skip_repeated: pool only positions that the next window does not read
    again. pooling: "mean", "max" or "attention". num_vectors: outputs of the MLP. cell_layer, cell:
    from 1, the layer with states, and the cell's settings. layer_memory: for `LayerMemoryAt`.
    """

    num_heads: int
    begin_id: int
    num_key_heads: int = 0
    epsilon: float = 1e-5
    activation: str = "gelu_new"
    scale_scores: bool = True
    inverse_layer_scale: bool = False
    parallel: bool = False
    rotary_share: float = 0.0
    rotary_base: float = 10_000.0
    rotary_scaling: tuple | None = None
    sliding: int | None = None
    overlap: int = 0
    pooled_layer: int | None = None
    skip_repeated: bool = False
    pooling: str = "mean"
    num_vectors: int = 1
    cell_layer: int | None = None
    cell: paper_numpy.Settings | None = None
    layer_memory: tuple | None = None


def normed(x_D, norm, epsilon):
    mean = sum(x_D) / len(x_D) if "bias_D" in norm else 0.0
    variance = sum((x - mean) ** 2 for x in x_D) / len(x_D)
    return (x_D - mean) / math.sqrt(variance + epsilon) * norm["scale_D"] + norm.get("bias_D", 0.0)


def activated(x_F, name):
    def one(x):
        if name == "relu":
            return max(x, 0.0)
        if name == "silu":
            return x / (1 + math.exp(-x))
        if name == "gelu":
            return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    return np.array([one(x) for x in x_F])


def softmax(scores):
    parts = np.exp(np.array(scores) - max(scores))
    return parts / parts.sum()


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


def projected(layer, part, x_D):
    """x matrix + bias of queries, keys or values, whatever the name of the output axis."""
    (matrix,) = (layer[name] for name in layer if name.startswith(f"{part}_D"))
    bias = [layer[name] for name in layer if name.startswith(f"{part}_bias")]
    return x_D @ matrix + (bias[0] if bias else 0.0)


def keys_values(layer, inputs, settings):
    """Keys without positions, and values, (T, H, K), each key head as often as queries read it."""
    x = [normed(y, layer["attention_norm"], settings.epsilon) for y in inputs]
    G = settings.num_key_heads or settings.num_heads
    found = []
    for part in ("keys", "values"):
        rows = np.array([projected(layer, part, y) for y in x]).reshape(len(x), G, -1)
        found.append(np.repeat(rows, settings.num_heads // G, axis=1))
    return found


def layer_outputs(layer, number, inputs, extras, settings, added=None, mix=None, before=()):
    """Outputs of a layer, its number counted from 1.

    extras: inputs for keys and values at position 0 that all tokens see. added: from a token's
    normed input to a term that is added to its attention's output. mix: from its queries, attention
    outputs, keys and values (H, K) and normed input to new attention outputs. before: keys and
    values of the earlier tokens, the oldest first; positions count from it.
    """
    old_keys, old_values = before or ([], [])
    extra = list(zip(*keys_values(layer, extras, settings))) if extras else []
    own_keys, own_values = keys_values(layer, inputs, settings)
    keys, values = [*old_keys, *own_keys], [*old_values, *own_values]
    outputs = []
    for t, x_D in enumerate(inputs):
        position = len(old_keys) + t
        y_D = normed(x_D, layer["attention_norm"], settings.epsilon)
        q_HK = projected(layer, "queries", y_D).reshape(settings.num_heads, -1)
        first = max(position - settings.sliding + 1, 0) if settings.sliding else 0
        found = []
        for head, q in enumerate(q_HK):
            q = rotated(q, position, settings)
            seen = [(k[head], v[head]) for k, v in extra]
            for j in range(first, position + 1):
                seen.append((rotated(keys[j][head], j, settings), values[j][head]))
            scores = [q @ k for k, _ in seen]
            if settings.scale_scores:
                scores = [score / math.sqrt(len(q)) for score in scores]
            if settings.inverse_layer_scale:
                scores = [score / number for score in scores]
            found.append(sum(w * v for w, (_, v) in zip(softmax(scores), seen)))
        if mix is not None:
            found = mix(q_HK, np.array(found), own_keys[t], own_values[t], y_D)
        attended = np.concatenate(found) @ layer["output_AD"] + layer.get("output_bias_D", 0.0)
        if added is not None:
            attended = attended + added(y_D)
        after = x_D + attended
        h_D = x_D if settings.parallel else after
        h_D = normed(h_D, layer["feed_forward_norm"], settings.epsilon)
        if "gate_DF" in layer:
            h_F = activated(h_D @ layer["gate_DF"], "silu") * (h_D @ layer["hidden_DF"])
        else:
            h_F = activated(h_D @ layer["hidden_DF"] + layer["hidden_bias_F"], settings.activation)
        outputs.append(after + h_F @ layer["output_FD"] + layer.get("feed_forward_bias_D", 0.0))
    return outputs


def enter(body, words):
    """The first layer's inputs."""
    if "positions_RD" not in body:
        return words
    return [word + body["positions_RD"][t] for t, word in enumerate(words)]


def window(body, words, settings, extras=None, added=None, mixes=None):
    """Outputs of every layer over a window of embedded words, the last ones after the final norm.

    extras: by layer, from 1, vectors among its inputs for keys and values. added, mixes: likewise.
    """
    x = enter(body, words)
    outputs = []
    for number in range(1, len(body["layers"]) + 1):
        own = (extras or {}).get(number, [])
        further = (added or {}).get(number), (mixes or {}).get(number)
        x = layer_outputs(body["layers"][number - 1], number, x, own, settings, *further)
        outputs.append(x)
    outputs[-1] = [normed(y, body["final_norm"], settings.epsilon) for y in x]
    return outputs


def embedded(body, token, settings):
    return body["embedding_VD"][settings.begin_id if token == BEGIN else token]


def logits(body, outputs):
    head = body.get("head_VD", body["embedding_VD"])
    return np.array([head @ y for y in outputs])


class Memory:
    """The state of a memory between windows, and its additions to the layers of one."""

    def __init__(self, module, settings):
        self.module, self.settings = module, settings

    def begin(self):
        return None

    def extras(self, held, num_layers):
        return {}

    def added(self, held):
        return {}

    def mixes(self, held):
        return {}

    def after(self, held, body, inputs, outputs, pooled, new):
        """What it holds after a window, of which the last `new` positions are new."""
        raise NotImplementedError


class PooledVectors(Memory):
    """Vectors that the MLP computed from the last window."""

    def begin(self):
        return []

    def extras(self, vectors, num_layers):
        one = self.settings.pooled_layer
        return dict.fromkeys(range(1, num_layers + 1) if one == 0 else [one], vectors)

    def after(self, vectors, body, inputs, outputs, pooled, new):
        """Vectors that the MLP computes from the positions in `pooled`; none without positions."""
        if not pooled:
            return []
        module, settings = self.module, self.settings
        weights = softmax(list(module["mixture_L"]))
        mixed = [sum(w * layer[t] for w, layer in zip(weights, outputs)) for t in pooled]
        if settings.pooling == "max":
            h = np.max(mixed, axis=0)
        elif settings.pooling == "mean":
            h = sum(mixed) / len(mixed)
        else:
            scores = [x @ module["key_D"] / math.sqrt(len(x)) for x in mixed]
            h = sum(w * x for w, x in zip(softmax(scores), mixed))
        *inner, last = (module["network"][i] for i in range(len(module["network"])))
        for one in inner:
            h = activated(h @ one["matrix_IU"] + one["bias_U"], settings.activation)
        h = h @ last["matrix_IU"] + last["bias_U"]
        return list(h.reshape(settings.num_vectors, -1))


class States(Memory):
    """The states of a Block-Recurrent cell, whose block is a window."""

    def begin(self):
        return self.module["memory"]["initial_states_SD"]

    def added(self, states):
        cell = self.settings.cell
        pair = paper_numpy.state_keys_and_values(self.module["memory"], cell, states)

        def read(x_D):
            q = paper_numpy.heads(x_D[None], self.module["cross_queries_DA"], cell)
            q = paper_numpy.unit_length(q)
            found = paper_numpy.full_attention(q, *pair, self.module["cross_scale_H"])
            return found[0] @ self.module["cross_output_AD"]

        return {self.settings.cell_layer: read}

    def after(self, states, body, inputs, outputs, pooled, new):
        """They read the tokens that the window was the first to read."""
        number = self.settings.cell_layer
        below = [inputs, *outputs][number - 1][-new:]
        return self.next(states, *keys_values(body["layers"][number - 1], below, self.settings))

    def next(self, states, keys, values):
        cell, module = self.settings.cell, self.module["memory"]
        pair = paper_numpy.state_keys_and_values(module, cell, states)
        seen = paper_numpy.unit_length(keys), values
        return paper_numpy.next_states(module, cell, states, *pair, *seen)


class LayerMemoryAt(Memory):
    """A memory of one layer, as `own_memories_numpy.Reader` has it.

    One that `sees_inputs` sees nothing but the normed inputs, and what it reads is added to the
    residual.
    """

    def __init__(self, module, settings):
        self.number, build = settings.layer_memory
        self.memory = build(module["memory"])
        self.sees_inputs = getattr(self.memory, "sees_inputs", False)
        self.settings = settings

    def added(self, held):
        if self.sees_inputs:
            held = self.memory.begin() if held is None else held

            def read(x_D):
                nonlocal held
                y_D, held = self.memory.token(held, x_D)
                return y_D

            return {self.number: read}
        if not hasattr(self.memory, "added"):
            return {}
        return {self.number: self.memory.added(self.memory.begin() if held is None else held)}

    def mixes(self, held):
        if self.sees_inputs:
            return {}

        def mix(q_HK, attended_HK, k_HK, v_HK, x_D):
            nonlocal held
            held = self.memory.begin(*q_HK.shape) if held is None else held
            q_HK, k_HK = paper_numpy.unit_length(q_HK), paper_numpy.unit_length(k_HK)
            if hasattr(self.memory, "token"):
                mixed_HK, held = self.memory.token(held, q_HK, k_HK, v_HK, attended_HK, x_D)
                return mixed_HK
            return self.memory.mix(held, q_HK[None], attended_HK[None])[0]

        return {self.number: mix}

    def after(self, held, body, inputs, outputs, pooled, new):
        below = [inputs, *outputs][self.number - 1][-new:]
        layer = body["layers"][self.number - 1]
        norm, epsilon = layer["attention_norm"], self.settings.epsilon
        inputs = np.array([normed(y, norm, epsilon) for y in below])
        if self.sees_inputs:
            held = self.memory.begin() if held is None else held
            for x_D in inputs:
                _, held = self.memory.token(held, x_D)
            return held
        keys, values = keys_values(layer, below, self.settings)
        held = self.memory.begin(*keys.shape[1:]) if held is None else held
        keys = paper_numpy.unit_length(keys)
        if hasattr(self.memory, "token"):
            for k_HK, v_HK, x_D in zip(keys, values, inputs):
                _, held = self.memory.token(held, k_HK, k_HK, v_HK, v_HK, x_D)
            return held
        return self.memory.after(held, keys, values, inputs)


class Reader:
    """Reads documents window by window: a body, and what its memories carry between windows."""

    def __init__(self, params, settings):
        self.body, self.settings, self.memories = params["body"], settings, []
        for number in range(len(params.get("memories", {}))):
            module = params["memories"][number]
            of_layer = States if settings.cell else LayerMemoryAt
            kind = of_layer if "memory" in module else PooledVectors
            self.memories.append(kind(module, settings))

    def begin(self):
        return [], [memory.begin() for memory in self.memories]

    def embed(self, tokens_T):
        return [embedded(self.body, token, self.settings) for token in tokens_T]

    def read(self, tokens_T, carried):
        earlier, held = carried
        words = [*earlier, *self.embed(tokens_T)]
        o = self.settings.overlap
        again = words[max(len(words) - o, 0) :] if o else []
        pooled = range(len(words) - len(again) * self.settings.skip_repeated)
        outputs, held = self.run(words, held, pooled, len(tokens_T))
        return logits(self.body, outputs[len(earlier) :]), (again, held)

    def run(self, words, held, pooled, new):
        """Outputs of the last layer over a window, and what the memories hold after it."""
        extras, added, mixes = {}, {}, {}
        for memory, one in zip(self.memories, held):
            extras |= memory.extras(one, len(self.body["layers"]))
            added |= memory.added(one)
            mixes |= memory.mixes(one)
        outputs = window(self.body, words, self.settings, extras, added, mixes)
        of_window = self.body, enter(self.body, words), outputs, pooled, new
        pairs = zip(self.memories, held)
        return outputs[-1], [memory.after(one, *of_window) for memory, one in pairs]


class MemoryTokensReader(Reader):
    """The same with the memory vectors at both ends of every window, which has no overlap."""

    def __init__(self, params, settings):
        super().__init__(params["body"], settings)
        self.memory_SD = params["memory_SD"]

    def begin(self):
        return self.memory_SD, [memory.begin() for memory in self.memories]

    def read(self, tokens_T, carried):
        memory_SD, held = carried
        words, S = [*memory_SD, *self.embed(tokens_T), *memory_SD], len(memory_SD)
        outputs, held = self.run(words, held, [], len(words))
        return logits(self.body, outputs[S:-S]), (np.array(outputs[-S:]), held)


class SlidingReader(Reader):
    """Reads documents block by block, each token the W tokens up to itself; with a cell or not."""

    def __init__(self, params, settings):
        super().__init__(params, settings)
        self.cell = States(params["cell"], settings) if "cell" in params else Memory(None, settings)

    def begin(self):
        """Keys and values of each layer of all tokens so far, and the states."""
        return [([], []) for _ in self.body["layers"]], self.cell.begin()

    def read(self, tokens_T, memory):
        found, W = [], self.settings.sliding
        for first in range(0, len(tokens_T), W):
            rows, memory = self.read_block(tokens_T[first : first + W], memory)
            found.append(rows)
        return np.concatenate(found), memory

    def read_block(self, tokens_W, memory):
        earlier, states = memory
        x, after, added = self.embed(tokens_W), [], self.cell.added(states)
        for number, before in enumerate(earlier, 1):
            layer = self.body["layers"][number - 1]
            own = keys_values(layer, x, self.settings)
            x = layer_outputs(layer, number, x, [], self.settings, added.get(number), before=before)
            after.append([[*old, *new] for old, new in zip(before, own)])
            if number in added:
                states = self.cell.next(states, *map(self.last, after[-1]))
        y = [normed(row, self.body["final_norm"], self.settings.epsilon) for row in x]
        return logits(self.body, y), (after, states)

    def last(self, rows):
        """The last two blocks, (2W, H, K); zeros before the document, as published."""
        W = self.settings.sliding
        rows = list(rows[-2 * W :])
        return np.array([np.zeros_like(rows[0])] * (2 * W - len(rows)) + rows)
