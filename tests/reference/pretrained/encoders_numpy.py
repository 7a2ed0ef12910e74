"""Encoders and T5 in float64, position by position, from tensors by their names on disk.

Sources: Devlin et al. 2019; Liu et al. 2019; He et al. 2021, two papers; Raffel et al. 2020.
`real` is a list of booleans: false where there is padding.
"""

import math

import numpy as np


def gelu(x):
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel()]).reshape(
        x.shape
    )


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x, tensors, name, epsilon):
    x = x - x.mean()
    return (
        x / np.sqrt((x * x).mean() + epsilon) * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
    )


def dense(x, tensors, name):
    return tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"]


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def heads(x, count):
    return x.reshape(count, -1)


def post_norm_layer(x, tensors, name, config, attended):
    """What follows attention in BERT and DeBERTa, of one position."""
    epsilon = config["layer_norm_eps"]
    y = dense(attended, tensors, f"{name}.attention.output.dense")
    x = norm(x + y, tensors, f"{name}.attention.output.LayerNorm", epsilon)
    h = gelu(dense(x, tensors, f"{name}.intermediate.dense"))
    y = dense(h, tensors, f"{name}.output.dense")
    return norm(x + y, tensors, f"{name}.output.LayerNorm", epsilon)


def bert(ids, real, tensors, config, extra=None):
    """All states of one row, what enters the first layer among them: (layers + 1, T, D).

    extra: (layer, vector), among the inputs of a layer for keys and values only.
    """
    kind, H = config["model_type"], config["num_attention_heads"]
    table = tensors[f"{kind}.embeddings.word_embeddings.weight"]
    positions = tensors[f"{kind}.embeddings.position_embeddings.weight"]
    types = tensors[f"{kind}.embeddings.token_type_embeddings.weight"]
    x = []
    for t, token in enumerate(ids):
        position = t
        if kind == "roberta":
            pad = config["pad_token_id"]
            position = pad + sum(real[: t + 1]) if real[t] else pad
        whole = table[token] + positions[position] + types[0]
        x.append(norm(whole, tensors, f"{kind}.embeddings.LayerNorm", config["layer_norm_eps"]))
    states = [np.array(x)]
    for i in range(config["num_hidden_layers"]):
        name = f"{kind}.encoder.layer.{i}"
        inputs = [x[t] for t in range(len(x)) if real[t]]
        if extra and extra[0] == i:
            inputs = [extra[1], *inputs]
        keys = [heads(dense(v, tensors, f"{name}.attention.self.key"), H) for v in inputs]
        values = [heads(dense(v, tensors, f"{name}.attention.self.value"), H) for v in inputs]
        new = []
        for v in x:
            q = heads(dense(v, tensors, f"{name}.attention.self.query"), H)
            read = []
            for h in range(H):
                scores = np.array([q[h] @ k[h] for k in keys]) / math.sqrt(len(q[h]))
                read.append(sum(w * value[h] for w, value in zip(softmax(scores), values)))
            new.append(post_norm_layer(v, tensors, name, config, np.concatenate(read)))
        x = new
        states.append(np.array(x))
    return np.array(states)


def distance_row(distance, config):
    """The row of the table of distances that a query minus a key of that distance has."""
    span = config.get("position_buckets", -1)
    longest = config.get("max_relative_positions", -1)
    longest = config["max_position_embeddings"] if longest < 1 else longest
    if span < 1:
        return min(max(longest + distance, 0), 2 * longest - 1)
    half = span // 2
    if abs(distance) > half:
        steps = math.log(abs(distance) / half) / math.log((longest - 1) / half) * (half - 1)
        distance = math.copysign(math.ceil(steps) + half, distance)
    return min(max(span + int(distance), 0), 2 * span - 1)


def deberta(ids, real, tensors, config):
    """As `bert`, of DeBERTa."""
    H, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    kinds = config["pos_att_type"]
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    x = []
    for t, token in enumerate(ids):
        whole = tensors["deberta.embeddings.word_embeddings.weight"][token]
        if config.get("position_biased_input", True):
            whole = whole + tensors["deberta.embeddings.position_embeddings.weight"][t]
        if config["type_vocab_size"]:
            whole = whole + tensors["deberta.embeddings.token_type_embeddings.weight"][0]
        x.append(norm(whole, tensors, "deberta.embeddings.LayerNorm", epsilon) * real[t])
    entered = np.array(x)
    states = [entered]
    distances = tensors["deberta.encoder.rel_embeddings.weight"]
    if config.get("norm_rel_ebd") == "layer_norm":
        distances = [norm(v, tensors, "deberta.encoder.LayerNorm", epsilon) for v in distances]
    for i in range(config["num_hidden_layers"]):
        name = f"deberta.encoder.layer.{i}"
        self = f"{name}.attention.self"
        own = not config.get("share_att_key")
        key_name, query_name = (
            (f"{self}.pos_key_proj", f"{self}.pos_query_proj")
            if own
            else (f"{self}.key_proj", f"{self}.query_proj")
        )
        q = [heads(dense(v, tensors, f"{self}.query_proj"), H) for v in x]
        k = [heads(dense(v, tensors, f"{self}.key_proj"), H) for v in x]
        values = [heads(dense(v, tensors, f"{self}.value_proj"), H) for v in x]
        new = []
        for a, v in enumerate(x):
            read = []
            seen = [b for b in range(len(x)) if real[b]]
            for h in range(H):
                scores = []
                for b in seen:
                    row = distances[distance_row(a - b, config)]
                    score = q[a][h] @ k[b][h]
                    if "c2p" in kinds:
                        score += q[a][h] @ heads(dense(row, tensors, key_name), H)[h]
                    if "p2c" in kinds:
                        score += k[b][h] @ heads(dense(row, tensors, query_name), H)[h]
                    scores.append(score / math.sqrt(len(q[a][h]) * (1 + len(kinds))))
                weights = softmax(np.array(scores))
                read.append(sum(w * values[b][h] for w, b in zip(weights, seen)))
            new.append(post_norm_layer(v, tensors, name, config, np.concatenate(read)))
        x = new
        if i == 0 and config.get("conv_kernel_size"):
            x = convolved(x, entered, real, tensors, config)
        states.append(np.array(x))
    return np.array(states)


def convolved(x, entered, real, tensors, config):
    kernel = config["conv_kernel_size"]
    weight = tensors["deberta.encoder.conv.conv.weight"]
    found = []
    for t in range(len(x)):
        y = tensors["deberta.encoder.conv.conv.bias"].astype(float)
        for j in range(kernel):
            at = t + j - (kernel - 1) // 2
            if 0 <= at < len(x):
                y = y + weight[:, :, j] @ entered[at]
        y = np.tanh(y * real[t])
        y = norm(x[t] + y, tensors, "deberta.encoder.conv.LayerNorm", config["layer_norm_eps"])
        found.append(y * real[t])
    return found


def classes(first, tensors, config):
    """The scores of classes from the first position's last state."""
    kind = config["model_type"]
    if kind == "roberta":
        return dense(
            np.tanh(dense(first, tensors, "classifier.dense")), tensors, "classifier.out_proj"
        )
    if kind == "bert":
        return dense(np.tanh(dense(first, tensors, "bert.pooler.dense")), tensors, "classifier")
    return dense(gelu(dense(first, tensors, "pooler.dense")), tensors, "classifier")


# T5.


def scale_norm(x, weight, config):
    return x / np.sqrt((x * x).mean() + config["layer_norm_epsilon"]) * weight


def bucket(key_minus_query, config, both_sides):
    count, longest = (
        config["relative_attention_num_buckets"],
        config["relative_attention_max_distance"],
    )
    first = 0
    distance = -key_minus_query
    if both_sides:
        count //= 2
        first = count if key_minus_query > 0 else 0
        distance = abs(key_minus_query)
    distance = max(distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    steps = math.log(distance / exact) / math.log(longest / exact) * (count - exact)
    return first + min(exact + int(steps), count - 1)


def t5_attention(x, others, seen, tensors, name, config, bias):
    """Returns the addition to each position, which reads `seen(a)` of the others; bias(h, a, b)."""
    H = config["num_heads"]
    q = [heads(tensors[f"{name}.q.weight"] @ v, H) for v in x]
    k = [heads(tensors[f"{name}.k.weight"] @ v, H) for v in others]
    values = [heads(tensors[f"{name}.v.weight"] @ v, H) for v in others]
    found = []
    for a in range(len(x)):
        read = []
        for h in range(H):
            scores = np.array([q[a][h] @ k[b][h] + bias(h, a, b) for b in seen(a)])
            read.append(sum(w * values[b][h] for w, b in zip(softmax(scores), seen(a))))
        found.append(tensors[f"{name}.o.weight"] @ np.concatenate(read))
    return found


def t5_network(v, tensors, name, config):
    if "gated" in config.get("feed_forward_proj", "relu"):
        h = tanh_gelu(tensors[f"{name}.wi_0.weight"] @ v) * (tensors[f"{name}.wi_1.weight"] @ v)
    else:
        h = np.maximum(tensors[f"{name}.wi.weight"] @ v, 0)
    return tensors[f"{name}.wo.weight"] @ h


def t5_encoder(ids, real, tensors, config):
    """All states of one row, the last after the final norm."""
    x = [tensors["shared.weight"][token].astype(float) for token in ids]
    states = [np.array(x)]
    table = tensors["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    seen = [b for b in range(len(x)) if real[b]]
    for i in range(config["num_layers"]):
        name = f"encoder.block.{i}.layer"
        normed = [scale_norm(v, tensors[f"{name}.0.layer_norm.weight"], config) for v in x]
        added = t5_attention(
            *(normed, normed, lambda a: seen, tensors, f"{name}.0.SelfAttention", config),
            lambda h, a, b: table[bucket(b - a, config, True), h],
        )
        x = [v + y for v, y in zip(x, added)]
        for t, v in enumerate(x):
            w = scale_norm(v, tensors[f"{name}.1.layer_norm.weight"], config)
            x[t] = v + t5_network(w, tensors, f"{name}.1.DenseReluDense", config)
        states.append(np.array(x))
    last = [scale_norm(v, tensors["encoder.final_layer_norm.weight"], config) for v in x]
    states[-1] = np.array(last)
    return np.array(states)


def t5_logits(words, read, real, tensors, config):
    """Logits of the words that follow `words`, the start word among them: (W, V)."""
    x = [tensors["shared.weight"][token].astype(float) for token in words]
    table = tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    seen = [b for b in range(len(read)) if real[b]]
    for i in range(config.get("num_decoder_layers", config["num_layers"])):
        name = f"decoder.block.{i}.layer"
        normed = [scale_norm(v, tensors[f"{name}.0.layer_norm.weight"], config) for v in x]
        added = t5_attention(
            *(normed, normed, lambda a: range(a + 1), tensors, f"{name}.0.SelfAttention", config),
            lambda h, a, b: table[bucket(b - a, config, False), h],
        )
        x = [v + y for v, y in zip(x, added)]
        normed = [scale_norm(v, tensors[f"{name}.1.layer_norm.weight"], config) for v in x]
        added = t5_attention(
            *(normed, read, lambda a: seen, tensors, f"{name}.1.EncDecAttention", config),
            lambda h, a, b: 0.0,
        )
        x = [v + y for v, y in zip(x, added)]
        for t, v in enumerate(x):
            w = scale_norm(v, tensors[f"{name}.2.layer_norm.weight"], config)
            x[t] = v + t5_network(w, tensors, f"{name}.2.DenseReluDense", config)
    x = [scale_norm(v, tensors["decoder.final_layer_norm.weight"], config) for v in x]
    if "lm_head.weight" in tensors:
        return np.array([tensors["lm_head.weight"] @ v for v in x])
    return np.array([tensors["shared.weight"] @ v for v in x]) / math.sqrt(config["d_model"])
