"""Transformer-XL in plain NumPy float64 loops, from the paper's equations.

It reads parameters by the released code's names and remembers lists that grow, so it shares
neither layout nor bookkeeping with brt. Artefacts of that code are here too: absolute positions
that are added to the memory again and again, and the order of the rare bins.
"""

import itertools
import json

import numpy as np

SETTINGS = dict(
    n_token=11,
    n_layer=2,
    n_head=2,
    d_model=6,
    d_head=4,
    d_inner=10,
    dropout=0.0,
    dropatt=0.0,
    tie_weight=True,
    d_embed=6,
    div_val=1,
    tie_projs=[False],
    pre_lnorm=False,
    tgt_len=4,
    ext_len=0,
    mem_len=4,
    cutoffs=[],
    same_length=False,
    attn_type=0,
    clamp_len=-1,
)


def released_params(config, seed=0):
    """Random parameters under the released code's names, matrices as [out, in]."""
    rng = np.random.default_rng(seed)
    D, A, F = config["d_model"], config["n_head"] * config["d_head"], config["d_inner"]
    heads, n = (config["n_head"], config["d_head"]), config["n_layer"]
    rows = config["tgt_len"] + config["ext_len"] + config["mem_len"]
    shapes = {}
    if config["attn_type"] == 0:
        shapes |= {"r_w_bias": heads, "r_r_bias": heads}
    elif config["attn_type"] == 1:
        shapes |= {"r_emb": (n, rows, *heads), "r_w_bias": (n, *heads)}
        shapes |= {"r_bias": (n, rows, heads[0])}
    elif config["attn_type"] == 3:
        shapes |= {"r_emb": (n, rows, *heads)}
    for i in range(n):
        attention, network = f"layers.{i}.dec_attn.", f"layers.{i}.pos_ff."
        if config["attn_type"] < 2:
            shapes[attention + "qkv_net.weight"] = 3 * A, D
        else:
            shapes |= {attention + "q_net.weight": (A, D), attention + "kv_net.weight": (2 * A, D)}
        if config["attn_type"] == 0:
            shapes[attention + "r_net.weight"] = A, D
        shapes |= {attention + "o_net.weight": (D, A)}
        shapes |= {network + "CoreNet.0.weight": (F, D), network + "CoreNet.0.bias": (F,)}
        shapes |= {network + "CoreNet.3.weight": (D, F), network + "CoreNet.3.bias": (D,)}
        for prefix in (attention, network):
            shapes |= {prefix + "layer_norm.weight": (D,), prefix + "layer_norm.bias": (D,)}
    edges = [0, *config["cutoffs"], config["n_token"]]
    if config["div_val"] == 1:
        shapes["word_emb.emb_layers.0.weight"] = config["n_token"], D
        shapes["crit.out_layers.0.bias"] = (config["n_token"],)
    else:
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            width = D // config["div_val"] ** i
            shapes[f"word_emb.emb_layers.{i}.weight"] = high - low, width
            shapes[f"word_emb.emb_projs.{i}"] = D, width
            shapes[f"crit.out_projs.{i}"] = D, width
            shapes[f"crit.out_layers.{i}.bias"] = (high - low,)
    if config["cutoffs"]:
        shapes["crit.cluster_weight"] = len(config["cutoffs"]), D
        shapes["crit.cluster_bias"] = (len(config["cutoffs"]),)
    params = {name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()}
    if config["attn_type"] in (0, 2):
        params["pos_emb.inv_freq"] = 1 / 10000.0 ** (np.arange(0, D, 2) / D)
    for name in [name for name in params if "emb_layers" in name]:  # tied: there twice
        i = name.split(".")[2]
        there = f"crit.out_layers.{i}.weight"
        params[there] = params[name] if config["tie_weight"] else 0.5 * rng.normal(
            size=params[name].shape
        )  # fmt: skip
    for i, tie in enumerate(config["tie_projs"]):
        if tie and f"crit.out_projs.{i}" in params:
            params[f"crit.out_projs.{i}"] = params[f"word_emb.emb_projs.{i}"]
    return {name: np.asarray(value, np.float32) for name, value in params.items()}


def layer_norm(x, params, prefix):
    x = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return x * params[prefix + "layer_norm.weight"] + params[prefix + "layer_norm.bias"]


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def sinusoid(distance, config):
    """R of section 3.3: sines, then cosines."""
    if config["clamp_len"] > 0:
        distance = min(distance, config["clamp_len"])
    angles = distance / 10000.0 ** (np.arange(0, config["d_model"], 2) / config["d_model"])
    return np.concatenate([np.sin(angles), np.cos(angles)])


def farthest_first(table, distance, config):
    """The row of a table whose last row is distance 0."""
    rows = len(table) if config["clamp_len"] <= 0 else min(config["clamp_len"], len(table))
    return table[len(table) - 1 - min(distance, rows - 1)]


def embed(token, params, config):
    edges = [0, *config["cutoffs"], config["n_token"]]
    if token < 0:  # before a document's first token; the released code has no such row
        x = params["begin"]
    elif config["div_val"] == 1:
        x = params["word_emb.emb_layers.0.weight"][token]
    else:
        i = max(i for i, low in enumerate(edges[:-1]) if token >= low)
        x = params[f"word_emb.emb_layers.{i}.weight"][token - edges[i]]
        x = params[f"word_emb.emb_projs.{i}"] @ x
    return x * np.sqrt(config["d_model"])


def log_probabilities(x, params, config):
    """log p of every word, and the plain logits if there is one bin."""
    edges = [0, *config["cutoffs"], config["n_token"]]
    several = config["div_val"] > 1

    def logits(i):
        low, high = edges[i], edges[i + 1]
        weight, bias = (params[f"crit.out_layers.{i * several}.{w}"] for w in ("weight", "bias"))
        if not several:
            weight, bias = weight[low:high], bias[low:high]
        y = params[f"crit.out_projs.{i}"].T @ x if several else x
        if i == 0 and config["cutoffs"]:
            weight = np.concatenate([weight, params["crit.cluster_weight"]])
            bias = np.concatenate([bias, params["crit.cluster_bias"]])
        return weight @ y + bias

    head = logits(0)
    if not config["cutoffs"]:
        return log_softmax(head), head
    head = log_softmax(head)
    tails = [head[-i] + log_softmax(logits(i)) for i in range(1, len(edges) - 1)]
    return np.concatenate([head[: edges[1]], *tails]), None


def attend(i, x, memory, layer, params, config, mem_len):
    """What query i of a segment reads; section 3.3, scores of one pair at a time."""
    prefix, H, K = f"layers.{layer}.dec_attn.", config["n_head"], config["d_head"]
    kind, everything = config["attn_type"], [*memory, *x]
    if config["pre_lnorm"]:
        everything = [layer_norm(y, params, prefix) for y in everything]
    if kind < 2:
        W_q, W_k, W_v = np.split(params[prefix + "qkv_net.weight"], 3)
    else:
        W_q = params[prefix + "q_net.weight"]
        W_k, W_v = np.split(params[prefix + "kv_net.weight"], 2)
    here = len(memory) + i
    oldest = max(0, here - mem_len + 1) if config["same_length"] else 0
    q = (W_q @ everything[here]).reshape(H, K)
    read = []
    for h in range(H):
        scores, values = [], []
        for j in range(oldest, here + 1):
            k = (W_k @ everything[j]).reshape(H, K)[h]
            score = q[h] @ k
            if kind == 0:
                W_r = params[prefix + "r_net.weight"]
                r = (W_r @ sinusoid(here - j, config)).reshape(H, K)[h]
                u, v = (untied(params[name], layer) for name in ("r_w_bias", "r_r_bias"))
                score += q[h] @ r + u[h] @ k + v[h] @ r
            elif kind == 1:
                r = farthest_first(params["r_emb"][layer], here - j, config)[h]
                d = farthest_first(params["r_bias"][layer], here - j, config)[h]
                score += q[h] @ r + params["r_w_bias"][layer][h] @ k + d
            scores.append(score / np.sqrt(K))
            values.append((W_v @ everything[j]).reshape(H, K)[h])
        read.append(np.exp(log_softmax(np.array(scores))) @ np.array(values))
    return params[prefix + "o_net.weight"] @ np.concatenate(read)


def untied(bias, layer):
    """u or v of a layer: its own, or that of all."""
    return bias[layer] if bias.ndim == 3 else bias


def feed_forward(x, layer, params, config):
    prefix = f"layers.{layer}.pos_ff."
    y = layer_norm(x, params, prefix) if config["pre_lnorm"] else x
    h = np.maximum(params[prefix + "CoreNet.0.weight"] @ y + params[prefix + "CoreNet.0.bias"], 0)
    x = x + params[prefix + "CoreNet.3.weight"] @ h + params[prefix + "CoreNet.3.bias"]
    return x if config["pre_lnorm"] else layer_norm(x, params, prefix)


def read_segment(tokens, memories, params, config, mem_len, artefacts=True):
    """One segment of one row.

    Args:
        tokens: T ids.
        memories: for each layer, and for the last one's outputs, a list of vectors.

    Returns:
        The last layer's outputs, T vectors, and the memories after the segment.
    """
    T, n = len(tokens), config["n_layer"]
    x, after = [embed(token, params, config) for token in tokens], []
    if config["attn_type"] == 2:
        x = [y + sinusoid(T - 1 - i, config) for i, y in enumerate(x)]
    for layer in range(n):
        memory = list(memories[layer])
        if artefacts and config["attn_type"] == 2 and layer == 0:
            positions = [len(memory) + T - 1 - m for m in range(len(memory))]
            memory = [y + sinusoid(position, config) for y, position in zip(memory, positions)]
        if config["attn_type"] == 3:
            table = params["r_emb"][layer].reshape(-1, config["d_model"])
            x = [y + farthest_first(table, T - 1 - i, config) for i, y in enumerate(x)]
            if artefacts:
                positions = [len(memory) + T - 1 - m for m in range(len(memory))]
                rows = [farthest_first(table, position, config) for position in positions]
                memory = [y + row for y, row in zip(memory, rows)]
        after.append((memory + x)[max(0, len(memory) + T - mem_len) :])
        attended = []
        for i, y in enumerate(x):
            y = y + attend(i, x, memory, layer, params, config, mem_len)
            prefix = f"layers.{layer}.dec_attn."
            attended.append(y if config["pre_lnorm"] else layer_norm(y, params, prefix))
        x = [feed_forward(y, layer, params, config) for y in attended]
    after.append((memories[n] + x)[max(0, len(memories[n]) + T - mem_len) :])
    return x, after


class Reader:
    """Reads documents of one row.

    Args:
        params: of a `TransformerXL`, a nested dictionary of arrays.
        config: the released code's settings; those of `SETTINGS` that are missing are filled in.
    """

    def __init__(self, params, config):
        self.config = SETTINGS | config
        self.params = of_model(params, self.config)

    def begin(self):
        return [[] for _ in range(self.config["n_layer"] + 1)]

    def read(self, tokens_T, memories):
        """Logits or log-probabilities (T, V) of a segment, and the memories after it."""
        outputs, memories = read_segment(
            tokens_T, memories, self.params, self.config, self.config["mem_len"], artefacts=False
        )
        scored = []
        for y in outputs:
            log_p, logits = log_probabilities(y, self.params, self.config)
            scored.append(log_p if logits is None else logits)
        return np.array(scored), memories


def of_model(params, config):
    """A model's parameters under the released code's names, matrices as [out, in]; tied ones."""
    n = config["n_layer"]
    layers = params["layers"]
    found = of_words(params["embedding"], config)
    for i in range(n):
        layer, attention, network = layers[i], f"layers.{i}.dec_attn.", f"layers.{i}.pos_ff."
        q, k, v = (layer[f"{name}_DA"].T for name in ("queries", "keys", "values"))
        if config["attn_type"] < 2:
            found[attention + "qkv_net.weight"] = np.concatenate([q, k, v])
        else:
            found |= {
                attention + "q_net.weight": q,
                attention + "kv_net.weight": np.concatenate([k, v]),
            }
        if config["attn_type"] == 0:
            found[attention + "r_net.weight"] = layer["positions_DA"].T
        found[attention + "o_net.weight"] = layer["output_AD"].T
        of_network = layer["feed_forward"]
        found[network + "CoreNet.0.weight"] = of_network["hidden_DF"].T
        found[network + "CoreNet.0.bias"] = of_network["hidden_bias_F"]
        found[network + "CoreNet.3.weight"] = of_network["output_FD"].T
        found[network + "CoreNet.3.bias"] = of_network["output_bias_D"]
        for prefix, norm in ((attention, "attention_norm"), (network, "feed_forward_norm")):
            found[prefix + "layer_norm.weight"] = layer[norm]["scale_D"]
            found[prefix + "layer_norm.bias"] = layer[norm]["bias_D"]
    tops = {"r_w_bias": "content_bias_HK", "r_r_bias": "position_bias_HK"}
    of_layers = {"r_emb": "distance_keys_RHK", "r_bias": "distance_bias_RH"}
    for there, here in (tops | of_layers).items():
        if here in params:
            found[there] = params[here]
        elif here in layers[0]:
            found[there] = np.stack([layers[i][here] for i in range(n)])
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def of_words(embedding, config):
    """The embedding of words and its softmax under the released code's names, as `of_model`."""
    bins, found = embedding["bins"], {"begin": embedding["begin_D"]}
    several, tied = config["div_val"] > 1, config.get("tied", True)
    tables = [bins[i]["table_VE"] for i in range(len(bins))]
    biases = [bins[i]["bias_V"] for i in range(len(bins))]
    if not several:
        tables, biases = [np.concatenate(tables)], [np.concatenate(biases)]
    outputs = tables
    if not tied:
        outputs = [bins[i]["output_VE"] for i in range(len(bins))]
        outputs = outputs if several else [np.concatenate(outputs)]
    for i, (table, output, bias) in enumerate(zip(tables, outputs, biases)):
        found[f"word_emb.emb_layers.{i}.weight"] = table
        found[f"crit.out_layers.{i}.weight"] = output
        found[f"crit.out_layers.{i}.bias"] = bias
        if several:
            projection = bins[i]["projection_ED"]
            found[f"word_emb.emb_projs.{i}"] = projection.T
            back = projection if tied else bins[i]["output_projection_ED"]
            found[f"crit.out_projs.{i}"] = back.T
    if config["cutoffs"]:
        # The released code numbers the rare bins' logits from the end.
        found["crit.cluster_weight"] = embedding["clusters_ND"][::-1]
        found["crit.cluster_bias"] = embedding["cluster_bias_N"][::-1]
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def record(config, params, tokens, targets, artefacts=True):
    """A recording, time major, as the released code would have made it.

    Args:
        tokens, targets: (S, T, B) ids.
    """
    (S, T, B), D, V = tokens.shape, config["d_model"], config["n_token"]
    mem_len = config.get("reset_length", [0, 0, config["mem_len"]])[2]
    wide = {name: value.astype(np.float64) for name, value in params.items()}
    memories = [[[] for _ in range(config["n_layer"] + 1)] for _ in range(B)]
    hidden, scored = np.zeros((S, T, B, D)), np.zeros((S, T, B, V))
    log_p, kept = np.zeros((S, T, B, V)), {}
    for s in range(S):
        if s == 1 and mem_len:
            kept |= {f"mems_in_seg1/{i}": _stacked(memories, i) for i in range(len(memories[0]))}
        for b in range(B):
            x, memories[b] = read_segment(
                tokens[s, :, b], memories[b], wide, config, mem_len, artefacts
            )
            hidden[s, :, b] = x
            for t in range(T):
                log_p[s, t, b], logits = log_probabilities(x[t], wide, config)
                scored[s, t, b] = log_p[s, t, b] if logits is None else logits
    if mem_len:
        kept |= {f"mems/{i}": _stacked(memories, i) for i in range(len(memories[0]))}
    found = {"tokens": tokens, "targets": targets, "hidden": hidden, **kept}
    found["log_probs" if config["cutoffs"] else "logits"] = scored
    found["loss"] = -np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    found |= {f"params/{name}": value for name, value in params.items()}
    return found | {"config_json": np.array(json.dumps(config))}


def _stacked(memories, layer):
    """(M, B, D) of every row's memory of a layer."""
    return np.stack([np.array(row[layer]) for row in memories], axis=1)
