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
    """log p of every word, and the plain logits if there is one bin, else log p again."""
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
    log_p = np.concatenate([head[: edges[1]], *tails])
    return log_p, log_p


def run_layer(x, memory, layer, params, config, sees, artefacts=False):
    """The outputs of a layer; section 3.3, the score of one pair at a time.

    sees: whether a query reads a key, both by their numbers, from the oldest vector of the memory.
    """
    prefix, H, K = f"layers.{layer}.dec_attn.", config["n_head"], config["d_head"]
    kind, everything = config["attn_type"], [*memory, *x]
    if config["pre_lnorm"]:
        everything = [layer_norm(y, params, prefix) for y in everything]
    if kind < 2:
        W_q, W_k, W_v = np.split(params[prefix + "qkv_net.weight"], 3)
        u_HK = untied(params["r_w_bias"], layer)
    else:
        W_q, u_HK = params[prefix + "q_net.weight"], np.zeros((H, K))
        W_k, W_v = np.split(params[prefix + "kv_net.weight"], 2)
    q, k, v = ([(W @ y).reshape(H, K) for y in everything] for W in (W_q, W_k, W_v))

    def of_position(h, query, distance):
        if kind == 0:
            r_HK = (params[prefix + "r_net.weight"] @ sinusoid(distance, config)).reshape(H, K)
            return (q[query][h] + untied(params["r_r_bias"], layer)[h]) @ r_HK[h]
        if kind == 1:
            r, d = (farthest_first(params[x][layer], distance, config) for x in ("r_emb", "r_bias"))
            return q[query][h] @ r[h] + d[h]
        return 0.0

    def score(h, query, key):
        ahead = key - query
        if ahead < 1 or not artefacts:
            known = of_position(h, query, -ahead)
        elif ahead == 1:
            known = 0.0
        else:  # the next query's, of a distance counted from the far end
            known = of_position(h, query + 1, len(everything) - 1 - (ahead - 2))
        return ((q[query][h] + u_HK[h]) @ k[key][h] + known) / np.sqrt(K)

    outputs = []
    for here, y in enumerate(x, len(memory)):
        seen, read = [j for j in range(len(everything)) if sees(here, j)], []
        for h in range(H):
            weights = np.exp(log_softmax(np.array([score(h, here, j) for j in seen])))
            read.append(weights @ np.array([v[j][h] for j in seen]))
        y = y + params[prefix + "o_net.weight"] @ np.concatenate(read)
        y = y if config["pre_lnorm"] else layer_norm(y, params, prefix)
        outputs.append(feed_forward(y, layer, params, config))
    return outputs


def untied(bias, layer):
    """u or v of a layer: its own, or that of all."""
    return bias[layer] if bias.ndim == 3 else bias


def feed_forward(x, layer, params, config):
    prefix = f"layers.{layer}.pos_ff."
    y = layer_norm(x, params, prefix) if config["pre_lnorm"] else x
    h = np.maximum(params[prefix + "CoreNet.0.weight"] @ y + params[prefix + "CoreNet.0.bias"], 0)
    x = x + params[prefix + "CoreNet.3.weight"] @ h + params[prefix + "CoreNet.3.bias"]
    return x if config["pre_lnorm"] else layer_norm(x, params, prefix)


def read_segment(x, memories, params, config, mem_len, artefacts=True, sees=None):
    """One segment of one row.

    Args:
        x: T vectors, of tokens as from `embed`.
        memories: for each layer, and for the last one's outputs, a list of vectors.
        sees: as of `run_layer`; None: the vectors before each, at most mem_len with same_length.

    Returns:
        The last layer's outputs, T vectors, and the memories after the segment.
    """
    T, n, after = len(x), config["n_layer"], []

    def earlier(query, key):
        return key <= query and (key > query - mem_len or not config["same_length"])

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
        x = run_layer(x, memory, layer, params, config, sees or earlier, artefacts)
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
        outputs, memories = self.run(self.embed(tokens_T), memories, self.config["mem_len"])
        return self.scores(outputs), memories

    def embed(self, tokens_T):
        return [embed(token, self.params, self.config) for token in tokens_T]

    def run(self, x, memories, mem_len):
        return read_segment(x, memories, self.params, self.config, mem_len, artefacts=False)

    def scores(self, outputs):
        return np.array([log_probabilities(y, self.params, self.config)[1] for y in outputs])


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
    S, n = len(tokens), config["n_layer"]
    mem_len = config.get("reset_length", [0, 0, config["mem_len"]])[2]
    wide = {name: value.astype(np.float64) for name, value in params.items()}
    memories, hidden, kept = [[[] for _ in range(n + 1)]] * tokens.shape[2], [], {}
    for s in range(S):
        rows = []
        for tokens_T, memory in zip(tokens[s].T, memories):
            x = [embed(token, wide, config) for token in tokens_T]
            rows.append(read_segment(x, memory, wide, config, mem_len, artefacts))
        x, memories = zip(*rows)
        hidden.append(np.stack(x, axis=1))
        for prefix in ["mems_in_seg1"] * (s == 0) + ["mems"] * (s == S - 1):
            kept |= {f"{prefix}/{i}": stacked(memories, i) for i in range(n + 1)}
    found = scored_targets(np.array(hidden), targets, wide, config)
    found |= kept if mem_len else {}
    found |= {"tokens": tokens, "targets": targets, "hidden": np.array(hidden)}
    found |= {f"params/{name}": value for name, value in params.items()}
    return found | {"config_json": np.array(json.dumps(config))}


def scored_targets(x, targets, params, config):
    """The logits, or log p if there are several bins, of outputs (S, T, B, D), and the losses."""
    both = [log_probabilities(y, params, config) for y in x.reshape(-1, x.shape[-1])]
    log_p, scores = (np.array(each).reshape(*x.shape[:-1], -1) for each in zip(*both))
    loss = -np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    return {"log_probs" if config["cutoffs"] else "logits": scores, "loss": loss}


def stacked(memories, layer):
    """(M, B, D) of every row's memory of a layer."""
    return np.stack([np.array(row[layer]) for row in memories], axis=1)
