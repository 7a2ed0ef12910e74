"""The Block-Recurrent Transformer as plain loops in NumPy float64: an independent reference.

Read it beside Hutchins et al. 2022, arXiv:2203.07852; "section", "eq." and "Fig." mean that paper.
Where the paper is silent the comment says "code": the released implementation, as described in
shared/golden/README.md section 1. Nothing here is fast, shared or clever on purpose: one row, one
block, one layer, one head and one query at a time.

Axes: T tokens of a segment, W tokens of a block, X = 2W tokens of two blocks, S states,
H heads, K head size, A = H K, C = 2 A (self beside cross), D width, F feed-forward width,
V vocabulary, R relative-position buckets; N is any number of keys or vectors.
Names: e is computed from the token embeddings, s from the states; v is the vertical direction
(tokens out), h the horizontal one (states out). So Qv_s are the token queries against the states.
"""

from dataclasses import dataclass

import memorizing_numpy
import numpy as np


@dataclass(frozen=True)
class Settings:
    """Settings that the parameters do not show. Source: sections 3 to 3.5; App. E for feedback.

    gate_form: "paper" is eq. 1-7 (b_z; tanh in the lstm gate only); "meliad" has no b_z, and its
        tanh belongs to the single arrangement only, whatever the gate (code).
    order: "parallel", or "sequential": cross-attention after self-attention, each with a gate of
        its own (section 3.1 mentions it and gives no equations; Fig. 1 read in that order).
    state_ids: False leaves section 3.2's state IDs out.
    qk_norm: False leaves section 3.2's normalisation out: scores are q.k / sqrt(K), plus the bias.
    logits_divisor: "vocabulary" for sqrt(V), "width" for sqrt(D) (code; two releases differ).
    recurrent_layers, memorizing_layers: layer indices, counted from 0.
    size, neighbours, search: of an external memory, see tests/reference/memorizing_numpy.py.
    """

    num_heads: int
    head_size: int
    window: int
    recurrent_layers: tuple = ()
    gate: str = "fixed"
    arrangement: str = "dual"
    gate_form: str = "paper"
    order: str = "parallel"
    state_ids: bool = True
    qk_norm: bool = True
    feedback: bool = False
    logits_divisor: str = "vocabulary"
    memorizing_layers: tuple = ()
    size: int = 0
    neighbours: int = 0
    search: str = "exact"

    def __post_init__(self):
        assert self.gate in ("fixed", "lstm"), self.gate
        assert self.arrangement in ("dual", "single", "skip"), self.arrangement
        assert self.gate_form in ("paper", "meliad"), self.gate_form
        assert self.logits_divisor in ("vocabulary", "width"), self.logits_divisor
        assert self.recurrent_layers or not self.feedback, "feedback needs a recurrent layer"


def run_vectors(params, settings, x_TD, memory, own_memory=None):
    """Embedded positions of one row through the stack, block by block.

    memory: as from `Reader.begin`; not changed.
    own_memory: `Reader.own_memory`, or None.

    Returns: the outputs of the last layer (T, D), and the new memory.
    Source: section 3 and Fig. 2 (segments, blocks, cache), section 3.1, App. E (feedback).
    """
    W, L = settings.window, len(params["layers"])
    memory, outputs = list(memory), []
    if len(x_TD) % W:
        raise ValueError(f"a segment of {len(x_TD)} tokens is not a whole number of blocks of {W}")
    # Without feedback a layer reads no block of another layer but the current one, so blocks
    # outside and layers inside give the same as the reverse.
    for first in range(0, len(x_TD), W):
        x_WD = x_TD[first : first + W]
        fed_back = None
        if settings.feedback:
            # App. E: layers without states of their own read those of the recurrent layer (of
            # several, the highest: code), as the blocks before this one left them.
            top = max(settings.recurrent_layers)
            cell = params["layers"][top]["cell"]
            fed_back = state_keys_and_values(cell, settings, memory[top]["states"])
        for index in range(L):
            layer = params["layers"][index]
            x_WD, memory[index] = run_layer(
                layer, settings, x_WD, memory[index], fed_back, own_memory
            )
        outputs.append(x_WD)
    return np.concatenate(outputs), memory


def embed(params, tokens_W):
    """Token embeddings (W, D), unscaled; no global positions (section 3.2)."""
    return np.stack([params["begin_D"] if t == -1 else params["embedding_VD"][t] for t in tokens_W])


def predict(params, settings, x_WD):
    """Logits (W, V) of the stack's outputs: the final norm, then `words`."""
    return words(params, settings, rms_norm(x_WD, params["final_norm"]))


def words(params, settings, y_WD):
    """Logits (W, V): the tied embedding table, a constant divisor (code)."""
    V, D = params["embedding_VD"].shape
    logits_WV = y_WD @ params["embedding_VD"].T
    return logits_WV / np.sqrt(V if settings.logits_divisor == "vocabulary" else D)


def run_layer(layer, settings, x_WD, memory, fed_back, own_memory=None):
    """One layer, one block, one row: tokens (W, D) and the memory after it. Source: Fig. 1."""
    if "memory_norm" in layer:  # without attention: a residual around the memory alone
        y_WD = rms_norm(x_WD, layer["memory_norm"])
        _, _, new_memory = own_memory(layer, None, None, None, None, memory, y_WD)
        return with_mlp(layer, x_WD + new_memory.pop("residual")), new_memory
    # K_e, V_e and the token queries, all from one pre-norm (code); no biases (code).
    y_WD = rms_norm(x_WD, layer["attention_norm"])
    K_e_WHK = normalised(heads(y_WD, layer["keys_DA"], settings), settings)
    V_e_WHK = heads(y_WD, layer["values_DA"], settings)
    Qv_e_WHK = normalised(heads(y_WD, layer["queries_DA"], settings), settings)
    # Section 3.1: the previous block's keys and values come before this block's, 2W in all.
    K_e_XHK = np.concatenate([memory["keys"], K_e_WHK])
    V_e_XHK = np.concatenate([memory["values"], V_e_WHK])
    self_WA = windowed_attention(layer, settings, Qv_e_WHK, K_e_XHK, V_e_XHK)
    new_memory, read = {"keys": K_e_WHK, "values": V_e_WHK}, fed_back
    if "memory" in layer:  # section 4.5: read first, then written
        self_WHK = self_WA.reshape(Qv_e_WHK.shape)
        old = {name: memory[name] for name in ("memory_keys", "memory_values", "written")}
        self_WA = memorizing_numpy.mix(layer, settings, Qv_e_WHK, self_WHK, old).reshape(
            self_WA.shape
        )
        new_memory |= memorizing_numpy.take_in(settings, old, K_e_WHK, V_e_WHK)
    if own_memory:
        tokens = Qv_e_WHK, K_e_WHK, V_e_WHK
        self_WHK = self_WA.reshape(Qv_e_WHK.shape)
        self_WHK, offered, after = own_memory(layer, *tokens, self_WHK, memory, y_WD)
        self_WA, read = self_WHK.reshape(self_WA.shape), offered or read
        x_WD = x_WD + after.pop("residual", 0)
        new_memory |= after
    if "states" in memory:
        # Section 3.1: keys and values of tokens and of states serve both directions, and both
        # directions read the states as they were before this block.
        cell, c_SD = layer["cell"], memory["states"]
        read = state_keys_and_values(cell, settings, c_SD)
        new_memory["states"] = next_states(cell, settings, c_SD, *read, K_e_XHK, V_e_XHK)
    if read is None:
        projected_WD = self_WA @ layer["output_AD"]
    else:
        # Section 3.1: cross-attention beside self-attention, no mask, no bias; then concatenated.
        if "cross_norm" in layer:  # after it, in the sequential order
            A = self_WA.shape[1]
            y_WD = rms_norm(x_WD + self_WA @ layer["output_CD"][:A], layer["cross_norm"])
        Qv_s_WHK = normalised(heads(y_WD, layer["cross_queries_DA"], settings), settings)
        cross_WA = full_attention(Qv_s_WHK, *read, scales(layer, "cross_scale_H", settings))
        projected_WD = np.concatenate([self_WA, cross_WA], axis=1) @ layer["output_CD"]

    return with_mlp(layer, x_WD + projected_WD), new_memory


def with_mlp(layer, x_WD):
    """Fig. 1 left: residual, then feed-forward and residual."""
    if "feed_forward" not in layer:
        return x_WD
    y_WD = rms_norm(x_WD, layer["feed_forward_norm"])
    hidden_WF = np.maximum(y_WD @ layer["feed_forward"]["hidden_DF"], 0)
    return x_WD + hidden_WF @ layer["feed_forward"]["output_FD"]


def state_keys_and_values(cell, settings, c_SD):
    """K_s and V_s, both (S, H, K). Source: section 3.1, sharing of keys and values."""
    # Section 3.2: state IDs for keys, values and queries, not for c itself; after the norm (code).
    y_SD = with_ids(rms_norm(c_SD, cell["norm"]), cell, settings)
    K_s_SHK = normalised(heads(y_SD, cell["keys_DA"], settings), settings)
    return K_s_SHK, heads(y_SD, cell["values_DA"], settings)


def next_states(cell, settings, c_SD, K_s_SHK, V_s_SHK, K_e_XHK, V_e_XHK):
    """The horizontal direction: c_t to c_(t+1), both (S, D). Source: Fig. 1 right, section 3.5."""
    y_SD = with_ids(rms_norm(c_SD, cell["norm"]), cell, settings)  # section 3.2
    Qh_s_SHK = normalised(heads(y_SD, cell["queries_DA"], settings), settings)
    self_scale_H = scales(cell, "attention_scale_H", settings)
    self_SA = full_attention(Qh_s_SHK, K_s_SHK, V_s_SHK, self_scale_H)
    if settings.order == "sequential":
        c_SD = gate(cell["self_gate"], settings, c_SD, self_SA, "A")
        y_SD = with_ids(rms_norm(c_SD, cell["cross_norm"]), cell, settings)
    Qh_e_SHK = normalised(heads(y_SD, cell["cross_queries_DA"], settings), settings)
    # Against both blocks of tokens (code); no position bias (section 3.2).
    cross_scale_H = scales(cell, "cross_scale_H", settings)
    cross_SA = full_attention(Qh_e_SHK, K_e_XHK, V_e_XHK, cross_scale_H)
    if settings.order == "sequential":
        c_SD = gate(cell["cross_gate"], settings, c_SD, cross_SA, "A")
        return c_SD if settings.arrangement == "skip" else fed_states(cell, settings, c_SD)
    h_SC = np.concatenate([self_SA, cross_SA], axis=1)
    if settings.arrangement == "skip":  # one projection with its gate, no feed-forward
        return gate(cell["attention_gate"], settings, c_SD, h_SC, "C")
    if settings.arrangement == "single":  # attention goes straight into the feed-forward
        hidden_SF = np.maximum(h_SC @ cell["hidden_CF"], 0)
        return gate(cell["feed_forward_gate"], settings, c_SD, hidden_SF, "F")
    # dual: both residuals of an ordinary layer become gates
    return fed_states(cell, settings, gate(cell["attention_gate"], settings, c_SD, h_SC, "C"))


def fed_states(cell, settings, c_SD):
    """The feed-forward network of the states and its gate (dual)."""
    y_SD = rms_norm(c_SD, cell["feed_forward_norm"])
    hidden_SF = np.maximum(y_SD @ cell["hidden_DF"], 0)
    return gate(cell["feed_forward_gate"], settings, c_SD, hidden_SF, "F")


def gate(weights, settings, c, h, axis):
    """Equations 1-7: states c (S, D) and gate input h (S, axis) to the next states (S, D)."""
    z = h @ weights[f"candidate_{axis}D"]  # W_z h_t
    if settings.gate_form == "paper":
        z = z + weights["candidate_bias_D"]  # eq. 1, 4
        z = np.tanh(z) if settings.gate == "lstm" else z  # eq. 4
    else:
        z = np.tanh(z) if settings.arrangement == "single" else z  # code
    if settings.gate == "fixed":
        g = sigmoid(weights["keep_bias_D"])  # eq. 2: one vector for all states
        return c * g + z * (1 - g)  # eq. 3
    i = sigmoid(h @ weights[f"input_{axis}D"] + weights["input_bias_D"] - 1)  # eq. 5
    f = sigmoid(h @ weights[f"forget_{axis}D"] + weights["forget_bias_D"] + 1)  # eq. 6
    return c * f + z * i  # eq. 7


def windowed_attention(layer, settings, Q_WHK, K_XHK, V_XHK):
    """Token i over the W tokens before it (section 3, Fig. 2), itself excluded (code): (W, A)."""
    W = settings.window
    attended_WHK = np.zeros_like(Q_WHK)
    for i in range(W):
        seen = range(i, i + W)  # token i lies at W + i among the 2W
        buckets = [bucket(W + i - j) for j in seen]
        for h, scale in enumerate(scales(layer, "attention_scale_H", settings)):
            bias_N = 0  # for a memorizing layer (code)
            if "relative_bias" in layer:
                bias_N = layer["relative_bias"]["table_HR"][h, buckets]  # section 3.2
            seen_heads = K_XHK[seen, h], V_XHK[seen, h]
            attended_WHK[i, h] = attend(Q_WHK[i, h], *seen_heads, scale, bias_N)
    return attended_WHK.reshape(W, -1)


def full_attention(Q_MHK, K_NHK, V_NHK, scale_H):
    """Every query over every key, no mask and no bias: (M, A). Source: section 3.1."""
    attended_MHK = np.zeros_like(Q_MHK)
    for m in range(len(Q_MHK)):
        for h, scale in enumerate(scale_H):
            attended_MHK[m, h] = attend(Q_MHK[m, h], K_NHK[:, h], V_NHK[:, h], scale, bias_N=0)
    return attended_MHK.reshape(len(Q_MHK), -1)


def attend(Q_K, K_NK, V_NK, scale, bias_N):
    """One query of one head: (K,). The bias is scaled too; the scale's sign is dropped (code).

    Without a scale, the plain scaled dot product.
    """
    if scale is None:
        scores_N = K_NK @ Q_K / np.sqrt(len(Q_K)) + bias_N
    else:
        scores_N = (K_NK @ Q_K + bias_N) * abs(scale)
    # A softmax with one more entry, of score -1000 and value zero (code).
    peak = max(scores_N.max(), -1000)
    weights_N = np.exp(scores_N - peak)
    return weights_N @ V_NK / (weights_N.sum() + np.exp(-1000 - peak))


def bucket(distance):
    """T5 bucket, 0 to 31 (section 3.2): exact below 16, logarithmic to 128, then the last."""
    if distance < 16:
        return distance
    return min(31, 16 + int(np.log(distance / 16) / np.log(128 / 16) * 16))


def heads(x_ND, weight_DA, settings):
    """Project and split: (N, H, K)."""
    return (x_ND @ weight_DA).reshape(len(x_ND), settings.num_heads, settings.head_size)


def with_ids(y_SD, cell, settings):
    """The state IDs, added after the norm (section 3.2)."""
    return y_SD + cell["state_ids_SD"] if settings.state_ids else y_SD


def scales(weights, name, settings):
    """Each head's learned scale; None of each head without normalisation."""
    return weights[name] if settings.qk_norm else [None] * settings.num_heads


def normalised(x_NHK, settings):
    """Queries or keys, normalised if the settings have `qk_norm`."""
    return unit_length(x_NHK) if settings.qk_norm else x_NHK


def unit_length(x_NHK):
    """Query and key normalisation, each vector of each head (section 3.2; epsilon: code)."""
    return x_NHK / np.sqrt((x_NHK**2).sum(axis=-1, keepdims=True) + 1e-6)


def rms_norm(x_ND, norm):
    """Root mean square norm with a learned scale, no centring, no bias (code)."""
    return x_ND / np.sqrt((x_ND**2).mean(axis=-1, keepdims=True) + 1e-6) * norm["scale_D"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class MixedMemory:
    """A memory of one layer that each head mixes with its attention; `retrieve` is a subclass's."""

    def __init__(self, module):
        self.module = module

    def mix(self, memory, Q_THK, attended_THK):
        mixed_THK = np.zeros_like(attended_THK)
        for t, q_HK in enumerate(Q_THK):
            for h, b in enumerate(self.module["mix_H"]):
                share, found_K = sigmoid(b), self.retrieve(memory, h, q_HK[h])
                mixed_THK[t, h] = (1 - share) * attended_THK[t, h] + share * found_K
        return mixed_THK


class Reader:
    """Reads documents of one row.

    The reference of a stack with a custom memory inherits from it and overrides `begin` and
    `own_memory`.

    Args:
        params: nested dict of float64 arrays, the shapes in their names.
        settings: `Settings`.
    """

    def __init__(self, params, settings):
        assert params["embedding_VD"].dtype == np.float64, "the reference works in float64"
        self.params, self.settings = params, settings

    def begin(self):
        """What each layer remembers of a document that has not begun: zeros, learned states.

        Source: section 3 (cache of the last block), 3.1 (states); zeros and learned values: code.
        """
        settings, layers = self.settings, self.params["layers"]
        shape_WHK = settings.window, settings.num_heads, settings.head_size
        memory = [{name: np.zeros(shape_WHK) for name in ("keys", "values")} for _ in layers]
        for index in settings.recurrent_layers:
            memory[index]["states"] = layers[index]["cell"]["initial_states_SD"]
        for index in settings.memorizing_layers:
            memory[index] |= memorizing_numpy.empty(settings)
        return memory

    def read(self, tokens_T, memory):
        """Logits (T, V) of a segment, and the memory after it; a token of -1 begins a document."""
        x_TD = embed(self.params, tokens_T)
        y_TD, memory = run_vectors(self.params, self.settings, x_TD, memory, self.own_memory)
        return predict(self.params, self.settings, y_TD), memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        """A custom memory at one block of one layer; nothing, if not overridden.

        Args:
            layer: its parameters.
            Q_WHK, K_WHK, V_WHK: queries, keys and values of the block's tokens.
            self_WHK: outputs of the window's attention and of the layer's earlier memories.
            memory: of the layer, a dict; without the memory's entries in layers that lack it.
            x_WD: the layer's normalised inputs.

        Returns: self_WHK with the memory's output; keys and values (S, H, K) of the states that it
            offers, or None; and a dict of its entries after the block.
        """
        return self_WHK, None, {}


class MemoryTokensReader(Reader):
    """The same stack with memory tokens around each segment, positions like any other.

    Args:
        params: of the stack.
        settings: of the stack.
        memory_SD: the first memory of a document.

    Source: RMT, section 3, around a stack in which a position sees what stands before it.
    """

    def __init__(self, params, settings, memory_SD):
        super().__init__(params, settings)
        self.memory_SD = memory_SD

    def begin(self):
        return self.memory_SD, super().begin()

    def read(self, tokens_T, memory):
        memory_SD, of_stack = memory
        S, T = len(memory_SD), len(tokens_T)
        x_XD = np.concatenate([memory_SD, embed(self.params, tokens_T), memory_SD])
        y_XD, of_stack = run_vectors(self.params, self.settings, x_XD, of_stack, self.own_memory)
        y_XD = rms_norm(y_XD, self.params["final_norm"])  # the stack's outputs are normalised
        return words(self.params, self.settings, y_XD[S : S + T]), (y_XD[S + T :], of_stack)
