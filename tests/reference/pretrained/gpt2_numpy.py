"""GPT-2, and what brt adds to it, transcribed in loops over tokens and heads.

    reader = Reader(params, Settings(...))
    logits_TV, memory = reader.read(tokens_T, reader.begin())

Parameters are nested dictionaries of float64 arrays with brt's names. Windows restart at position
0. Source: Radford et al. 2019; folders of model_type gpt2; Yoshida et al. 2020, section 3.
"""

import math
from dataclasses import dataclass

import numpy as np
import paper_numpy

BEGIN = -1


@dataclass(frozen=True)
class Settings:
    """Settings that the parameters do not show.

    overlap: tokens of a window that the next reads again. pooled_layer: from 1, the layer that the
    pooled vector enters; 0: all layers; None: no vector. skip_repeated: pool only positions that
    the next window does not read again. pooling: "mean", "max" or "attention". num_vectors:
    outputs of the MLP. cell_layer, cell: from 1, the layer with states, and the cell's settings.
    """

    num_heads: int
    begin_id: int
    epsilon: float = 1e-5
    activation: str = "gelu_new"
    scale_scores: bool = True
    inverse_layer_scale: bool = False
    overlap: int = 0
    pooled_layer: int | None = None
    skip_repeated: bool = False
    pooling: str = "mean"
    num_vectors: int = 1
    cell_layer: int | None = None
    cell: paper_numpy.Settings | None = None
    layer_memory: tuple | None = None


def normed(x_D, norm, epsilon):
    mean = sum(x_D) / len(x_D)
    variance = sum((x - mean) ** 2 for x in x_D) / len(x_D)
    return (x_D - mean) / math.sqrt(variance + epsilon) * norm["scale_D"] + norm["bias_D"]


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


def part_of(x_A, head, num_heads):
    K = len(x_A) // num_heads
    return x_A[head * K : (head + 1) * K]


def layer_outputs(layer, number, inputs, extras, settings, added=None, mix=None):
    """Outputs of a layer, its number counted from 1; extras: further inputs for keys and values.

    added: from a token's normed input to a term that is added to its attention's output. mix: from
    its queries, attention outputs, keys and values (H, K) and normed input to new attention
    outputs.
    """
    H = settings.num_heads
    normed_inputs = [normed(x, layer["attention_norm"], settings.epsilon) for x in inputs]
    seen = [normed(x, layer["attention_norm"], settings.epsilon) for x in extras]
    keys, values = [], []
    outputs = []
    for x in [*seen, *normed_inputs]:
        keys.append(x @ layer["keys_DA"] + layer["keys_bias_A"])
        values.append(x @ layer["values_DA"] + layer["values_bias_A"])
    for t, x_D in enumerate(normed_inputs):
        query = x_D @ layer["queries_DA"] + layer["queries_bias_A"]
        found = []
        for head in range(H):
            q = part_of(query, head, H)
            scores = []
            for k in keys[: len(seen) + t + 1]:
                score = q @ part_of(k, head, H)
                if settings.scale_scores:
                    score /= math.sqrt(len(q))
                if settings.inverse_layer_scale:
                    score /= number
                scores.append(score)
            weights = softmax(scores)
            found.append(sum(w * part_of(v, head, H) for w, v in zip(weights, values)))
        if mix is not None:
            own = (x[len(seen) + t].reshape(H, -1) for x in (keys, values))
            found = mix(query.reshape(H, -1), np.array(found), *own, x_D)
        y_D = np.concatenate(found) @ layer["output_AD"] + layer["output_bias_D"]
        if added is not None:
            y_D = y_D + added(x_D)
        x_D = inputs[t] + y_D
        hidden = normed(x_D, layer["feed_forward_norm"], settings.epsilon)
        hidden = activated(
            hidden @ layer["hidden_DF"] + layer["hidden_bias_F"], settings.activation
        )
        outputs.append(x_D + hidden @ layer["output_FD"] + layer["feed_forward_bias_D"])
    return outputs


def window(body, words, settings, extras=None, added=None, mixes=None):
    """Outputs of every layer over a window of embedded words, the last ones after the final norm.

    extras: by layer, from 1, vectors among its inputs for keys and values. added, mixes: likewise.
    """
    x = [word + body["positions_RD"][t] for t, word in enumerate(words)]
    outputs = []
    for number in range(1, len(body["layers"]) + 1):
        layer = body["layers"][number - 1]
        own = (extras or {}).get(number, [])
        further = (added or {}).get(number), (mixes or {}).get(number)
        x = layer_outputs(layer, number, x, own, settings, *further)
        outputs.append(x)
    outputs[-1] = [normed(y, body["final_norm"], settings.epsilon) for y in x]
    return outputs


def embedded(body, token, settings):
    return body["embedding_VD"][settings.begin_id if token == BEGIN else token]


def logits(body, outputs):
    head = body.get("head_VD", body["embedding_VD"])
    return np.array([head @ y for y in outputs])


def next_vectors(module, outputs, pooled, settings):
    """Vectors that the MLP computes from the positions in `pooled`; none without positions."""
    if not pooled:
        return []
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


def keys_values(layer, inputs, settings):
    """Keys and values of a layer's inputs, (T, H, K) each."""
    x = np.array([normed(y, layer["attention_norm"], settings.epsilon) for y in inputs])
    shape = len(x), settings.num_heads, -1
    keys = x @ layer["keys_DA"] + layer["keys_bias_A"]
    values = x @ layer["values_DA"] + layer["values_bias_A"]
    return keys.reshape(shape), values.reshape(shape)


class PooledVectors:
    """Vectors that the MLP computed from the last window."""

    def __init__(self, module, settings, num_layers, keys_values):
        self.module = module
        self.settings = settings
        one = settings.pooled_layer
        self.at = range(1, num_layers + 1) if one == 0 else [one]

    def begin(self):
        return []

    def extras(self, vectors):
        return {number: vectors for number in self.at}

    def added(self, vectors):
        return {}

    mixes = added

    def after(self, vectors, body, inputs, outputs, pooled, new):
        return next_vectors(self.module, outputs, pooled, self.settings)


class States:
    """The states of a Block-Recurrent cell, whose block is a window."""

    def __init__(self, module, settings, num_layers, keys_values):
        self.module = module
        self.settings = settings
        self.keys_values = keys_values

    def begin(self):
        return self.module["memory"]["initial_states_SD"]

    def extras(self, states):
        return {}

    def added(self, states):
        cell = self.settings.cell
        pair = paper_numpy.state_keys_and_values(self.module["memory"], cell, states)

        def read(x_D):
            q = paper_numpy.heads(x_D[None], self.module["cross_queries_DA"], cell)
            q = paper_numpy.unit_length(q)
            found = paper_numpy.full_attention(q, *pair, self.module["cross_scale_H"])
            return found[0] @ self.module["cross_output_AD"]

        return {self.settings.cell_layer: read}

    def mixes(self, states):
        return {}

    def after(self, states, body, inputs, outputs, pooled, new):
        """They read the tokens that the window was the first to read."""
        cell, number = self.settings.cell, self.settings.cell_layer
        below = inputs if number == 1 else outputs[number - 2]
        keys, values = self.keys_values(body["layers"][number - 1], below[-new:], self.settings)
        keys = paper_numpy.unit_length(keys)
        pair = paper_numpy.state_keys_and_values(self.module["memory"], cell, states)
        return paper_numpy.next_states(self.module["memory"], cell, states, *pair, keys, values)


class LayerMemoryAt:
    """A memory of one layer, as `own_memories_numpy.Reader` has it.

    One that `sees_inputs` sees nothing but the normed inputs, and what it reads is added to the
    residual.
    """

    def __init__(self, module, settings, num_layers, keys_values):
        self.number, build = settings.layer_memory
        self.memory = build(module["memory"])
        self.settings = settings
        self.keys_values = keys_values

    def begin(self):
        return None

    def extras(self, held):
        return {}

    def added(self, held):
        if getattr(self.memory, "sees_inputs", False):
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
        if getattr(self.memory, "sees_inputs", False):
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
        below = inputs if self.number == 1 else outputs[self.number - 2]
        layer = body["layers"][self.number - 1]
        norm, epsilon = layer["attention_norm"], self.settings.epsilon
        inputs = np.array([normed(y, norm, epsilon) for y in below[-new:]])
        if getattr(self.memory, "sees_inputs", False):
            held = self.memory.begin() if held is None else held
            for x_D in inputs:
                _, held = self.memory.token(held, x_D)
            return held
        keys, values = self.keys_values(layer, below[-new:], self.settings)
        held = self.memory.begin(*keys.shape[1:]) if held is None else held
        keys = paper_numpy.unit_length(keys)
        if hasattr(self.memory, "token"):
            for k_HK, v_HK, x_D in zip(keys, values, inputs):
                _, held = self.memory.token(held, k_HK, k_HK, v_HK, v_HK, x_D)
            return held
        return self.memory.after(held, keys, values, inputs)


class Reader:
    """Reads documents window by window: a body, and what its memories carry between windows."""

    window = staticmethod(window)
    keys_values = staticmethod(keys_values)

    def enter(self, words):
        """What enters the first layer: words and their positions."""
        return [word + self.body["positions_RD"][t] for t, word in enumerate(words)]

    def __init__(self, params, settings):
        self.body = params["body"]
        self.settings = settings
        self.memories = []
        for number in range(len(params.get("memories", {}))):
            module = params["memories"][number]
            kind = PooledVectors
            if "memory" in module:
                kind = States if settings.cell else LayerMemoryAt
            self.memories.append(kind(module, settings, len(self.body["layers"]), self.keys_values))

    def begin(self):
        return [], [memory.begin() for memory in self.memories]

    def read(self, tokens_T, carried):
        earlier, held = carried
        words = [*earlier, *(embedded(self.body, token, self.settings) for token in tokens_T)]
        extras, added, mixes = {}, {}, {}
        for memory, one in zip(self.memories, held):
            extras |= memory.extras(one)
            added |= memory.added(one)
            mixes |= memory.mixes(one)
        outputs = self.window(self.body, words, self.settings, extras, added, mixes)
        inputs = self.enter(words)
        o = self.settings.overlap
        again = words[max(len(words) - o, 0) :] if o else []
        pooled = list(range(len(words) - len(again) * self.settings.skip_repeated))
        held = [
            memory.after(one, self.body, inputs, outputs, pooled, len(tokens_T))
            for memory, one in zip(self.memories, held)
        ]
        return logits(self.body, outputs[-1][len(earlier) :]), (again, held)


class MemoryTokensReader(Reader):
    """The same with the memory vectors at both ends of every window, which has no overlap."""

    def __init__(self, params, settings):
        super().__init__(params["body"], settings)
        self.memory_SD = params["memory_SD"]

    def begin(self):
        return self.memory_SD, [memory.begin() for memory in self.memories]

    def read(self, tokens_T, carried):
        memory_SD, held = carried
        words = [embedded(self.body, token, self.settings) for token in tokens_T]
        words = [*memory_SD, *words, *memory_SD]
        added = {}
        for memory, one in zip(self.memories, held):
            added |= memory.added(one)
        outputs = self.window(self.body, words, self.settings, {}, added)
        inputs = self.enter(words)
        held = [
            memory.after(one, self.body, inputs, outputs, [], len(words))
            for memory, one in zip(self.memories, held)
        ]
        S = len(memory_SD)
        last = outputs[-1]
        return logits(self.body, last[S:-S]), (np.array(last[-S:]), held)
