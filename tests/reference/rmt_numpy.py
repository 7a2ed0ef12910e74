"""The Recurrent Memory Transformer as plain loops in NumPy float64: an independent reference.

Read it beside Bulatov et al. 2022, arXiv:2207.06881, section 3, and for the scores Dai et al. 2019
(Transformer-XL), section 3.3. Where both are silent the comment says "code": the released
implementation, as described in shared/golden/README.md section 3. One row, one layer, one head,
one query and one key at a time; a cache is as long as what has been read, without padding.
"""

import json
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Settings:
    """Settings that the weights do not show.

    cache: M, positions of hidden states that each layer keeps; 0 for RMT alone.
    memory_at_end: [mem; tokens; mem]; otherwise [mem; tokens] (Memory Transformer).
    read_from_cache: whether memory positions see the cache (code).
    artefacts: positions to the future as the released code computes them, by accident.
    """

    num_heads: int
    cache: int = 0
    memory_at_end: bool = True
    read_from_cache: bool = False
    artefacts: bool = False


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def layer_norm(x_D, scale_D, bias_D):
    centred_D = x_D - x_D.mean()
    return centred_D / np.sqrt((centred_D**2).mean() + 1e-5) * scale_D + bias_D


def sinusoid(distance, width):
    frequencies = 1 / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(distance * frequencies), np.cos(distance * frequencies)])


def sees(settings, S, T, i, j):
    """Whether position i of [read; tokens; write] sees position j. Section 3, code."""
    read, write = i < S, i >= S + T
    if read:
        return j < S
    if write:
        return True
    return j <= i  # read memory, earlier tokens, itself; the write positions come later


def run_layer(weights, settings, x_XD, cache_MD, T):
    """[read; tokens; write] through one layer: the outputs of all positions."""
    D, X, M, H = x_XD.shape[1], len(x_XD), len(cache_MD), settings.num_heads
    S = (X - T) // (2 if settings.memory_at_end else 1)
    everything_JD = np.concatenate([cache_MD, x_XD])
    J, heads = M + X, []
    for h in range(H):
        K = weights["queries_DA"].shape[1] // H
        of_head = slice(h * K, (h + 1) * K)
        q_XK = x_XD @ weights["queries_DA"][:, of_head]
        k_JK = everything_JD @ weights["keys_DA"][:, of_head]
        v_JK = everything_JD @ weights["values_DA"][:, of_head]
        u_K, v_K = weights["u_HK"][h], weights["v_HK"][h]

        def position_term(i, distance, q_XK=q_XK, v_K=v_K, of_head=of_head):
            r_K = sinusoid(distance, D) @ weights["positions_DA"][:, of_head]
            return (q_XK[i] + v_K) @ r_K

        y_XK = np.zeros_like(q_XK)
        for i in range(X):
            is_memory = i < S or i >= S + T
            scores_J = np.full(J, -np.inf)
            for j in range(J):
                in_cache = j < M
                if in_cache and is_memory and not settings.read_from_cache:
                    continue
                if not in_cache and not sees(settings, S, T, i, j - M):
                    continue
                ahead = j - i - M
                if not settings.artefacts or ahead <= 0:
                    known = position_term(i, -ahead)
                elif ahead == 1:
                    known = 0.0
                else:  # the next query's term, of a distance counted from the far end
                    known = position_term(i + 1, J - 1 - (ahead - 2))
                scores_J[j] = ((q_XK[i] + u_K) @ k_JK[j] + known) / np.sqrt(K)
            y_XK[i] = softmax(scores_J) @ v_JK
        heads.append(y_XK)
    y_XA = np.concatenate(heads, axis=1)
    out_XD = []
    for x_D, y_A in zip(x_XD, y_XA):
        x_D = layer_norm(x_D + y_A @ weights["output_AD"], *weights["attention_norm"])
        hidden_F = np.maximum(x_D @ weights["hidden_DF"] + weights["hidden_bias_F"], 0)
        y_D = hidden_F @ weights["back_FD"] + weights["back_bias_D"]
        out_XD.append(layer_norm(x_D + y_D, *weights["feed_forward_norm"]))
    return np.stack(out_XD)


def read_segment(weights, settings, x_TD, memory_SD, caches):
    """One segment of one row.

    Args:
        x_TD: embedded tokens, already times the root of D.
        memory_SD: the memory this segment begins with; put in as it is.
        caches: one array (at most M, D) a layer, what it keeps of its inputs before.

    Returns:
        logits (T, V), the next memory (S, D), the caches after, the last layer's outputs (X, D).

    Source: RMT, section 3; the cache takes all positions of the segment, memory too (code).
    """
    S, T = len(memory_SD), len(x_TD)
    ends = [memory_SD] if settings.memory_at_end else []
    x_XD, after = np.concatenate([memory_SD, x_TD, *ends]), []
    for layer, cache_MD in zip(weights["layers"], caches, strict=True):
        kept_JD = np.concatenate([cache_MD, x_XD])
        after.append(kept_JD[len(kept_JD) - min(settings.cache, len(kept_JD)) :])
        x_XD = run_layer(layer, settings, x_XD, cache_MD, T)
    next_SD = x_XD[S + T :] if settings.memory_at_end else x_XD[:S]
    logits_TV = x_XD[S : S + T] @ weights["embedding_VD"].T + weights["bias_V"]
    return logits_TV, next_SD, after, x_XD


def empty_caches(weights):
    return [np.zeros((0, weights["embedding_VD"].shape[1])) for _ in weights["layers"]]


def read_document(weights, settings, segments, memory_SD=None):
    """Segments (N, T) of token ids of one row, from its start.

    Returns:
        logits (N, T, V), the memory each segment began with and the last one (N + 1, S, D), the
        outputs of all positions (N, X, D), and the caches before each segment and after the last.
    """
    memory_SD = weights["memory_SD"] if memory_SD is None else memory_SD
    caches, logits, memories, hidden = [empty_caches(weights)], [], [memory_SD], []
    for tokens_T in segments:
        x_TD = embed(weights, tokens_T)
        logits_TV, memory_SD, after, x_XD = read_segment(
            weights, settings, x_TD, memory_SD, caches[-1]
        )
        logits.append(logits_TV)
        memories.append(memory_SD)
        hidden.append(x_XD)
        caches.append(after)
    return np.stack(logits), np.stack(memories), np.stack(hidden), caches


def embed(weights, tokens_T):
    """Rows of the table, or of the begin vector, times the root of D (Transformer-XL's code)."""
    rows = [weights["begin_D"] if t < 0 else weights["embedding_VD"][t] for t in tokens_T]
    return np.stack(rows) * np.sqrt(len(rows[0]))


def of_recording(params):
    """Weights from the released code's names, `layers.0.dec_attn.r_net.weight` and so on."""
    params = {name: np.asarray(x, np.float64) for name, x in params.items()}
    layers = []
    while f"layers.{len(layers)}.dec_attn.qkv_net.weight" in params:
        attention = f"layers.{len(layers)}.dec_attn."
        network = f"layers.{len(layers)}.pos_ff."

        def norm(prefix):
            return params[f"{prefix}layer_norm.weight"], params[f"{prefix}layer_norm.bias"]

        queries_AD, keys_AD, values_AD = np.split(params[f"{attention}qkv_net.weight"], 3)
        layers.append(
            {
                "queries_DA": queries_AD.T,
                "keys_DA": keys_AD.T,
                "values_DA": values_AD.T,
                "output_AD": params[f"{attention}o_net.weight"].T,
                "positions_DA": params[f"{attention}r_net.weight"].T,
                "attention_norm": norm(attention),
                "hidden_DF": params[f"{network}CoreNet.0.weight"].T,
                "hidden_bias_F": params[f"{network}CoreNet.0.bias"],
                "back_FD": params[f"{network}CoreNet.3.weight"].T,
                "back_bias_D": params[f"{network}CoreNet.3.bias"],
                "feed_forward_norm": norm(network),
                "u_HK": params["r_w_bias"],
                "v_HK": params["r_r_bias"],
            }
        )
    return {
        "layers": layers,
        "embedding_VD": params["word_emb.emb_layers.0.weight"],
        "bias_V": params["crit.out_layers.0.bias"],
        "begin_D": np.zeros_like(params["word_emb.emb_layers.0.weight"][0]),
        "memory_SD": params["mem_tokens"][:, 0],
    }


def of_model(params):
    """Weights from a model's parameters, a nested dictionary."""
    params = _arrays(params)
    memory_SD, params = params["memory_SD"], params["body"]
    layers = []
    for index in sorted(params["layers"]):
        layer = dict(params["layers"][index])
        network = layer.pop("feed_forward")
        for name in ("attention_norm", "feed_forward_norm"):
            layer[name] = layer[name]["scale_D"], layer[name]["bias_D"]
        layers.append(
            layer
            | {
                "u_HK": params["content_bias_HK"],
                "v_HK": params["position_bias_HK"],
                "hidden_DF": network["hidden_DF"],
                "hidden_bias_F": network["hidden_bias_F"],
                "back_FD": network["output_FD"],
                "back_bias_D": network["output_bias_D"],
            }
        )
    table = params["embedding"]["bins"][0]
    return {
        "layers": layers,
        "embedding_VD": table["table_VE"],
        "bias_V": table["bias_V"],
        "begin_D": params["embedding"]["begin_D"],
        "memory_SD": memory_SD,
    }


class Reader:
    """Reads documents of one row.

    Args:
        params: of a `RecurrentMemoryTransformer` around a `TransformerXL`, a nested dictionary.
        settings: `Settings`.
    """

    def __init__(self, params, settings):
        self.weights, self.settings = of_model(params), settings

    def begin(self):
        return self.weights["memory_SD"], empty_caches(self.weights)

    def read(self, tokens_T, memory):
        """Logits (T, V) of a segment, and the memory after it."""
        x_TD = embed(self.weights, tokens_T)
        logits_TV, *after, _ = read_segment(self.weights, self.settings, x_TD, *memory)
        return logits_TV, tuple(after)


def record(config, params, tokens, targets):
    """A recording, time major, as the released code would have made it, without gradients.

    Args:
        config, params: settings and state dictionary of that code.
        tokens, targets: (N, T, B) ids.
    """
    weights = of_recording(params)
    settings = Settings(
        config["n_head"],
        config["mem_len"],
        config["mem_at_end"],
        config["read_mem_from_cache"],
        artefacts=True,
    )
    rows = range(tokens.shape[2])
    logits, memories, hidden, caches = zip(
        *(read_document(weights, settings, tokens[:, :, b]) for b in rows)
    )
    logits, memories, hidden = (np.stack(x, axis=2) for x in (logits, memories, hidden))
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    found = {
        "tokens": tokens,
        "targets": targets,
        "logits": logits,
        "loss": np.log(np.exp(logits).sum(axis=-1)) - chosen,
        "hidden_full": hidden,
        "memory_in": memories[:-1],
        "memory_out": memories[1:],
        "config_json": np.array(json.dumps(config)),
    } | {f"params/{name}": value for name, value in params.items()}
    if config["mem_len"]:
        for prefix, segment in (("mems_in_seg1", 1), ("mems", len(tokens))):
            kept = [
                np.stack([caches[b][segment][i] for b in rows], 1) for i in range(len(caches[0][0]))
            ]
            outputs = np.concatenate(list(hidden[:segment]))
            kept.append(outputs[len(outputs) - len(kept[0]) :])
            found |= {f"{prefix}/{i}": x_MBD for i, x_MBD in enumerate(kept)}
    return found


def _arrays(tree):
    if isinstance(tree, dict):
        return {name: _arrays(value) for name, value in tree.items()}
    return np.asarray(tree, np.float64)
