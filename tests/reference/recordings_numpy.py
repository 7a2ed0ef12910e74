"""Recorded meliad parameters under our names.

Source: the parameter paths in shared/golden/README.md section 1.
"""

import numpy as np
from paper_numpy import Settings


def from_recording(npz):
    """Parameters and settings of one recording without external memory.

    Args:
        npz: a loaded meliad_*.npz, or any mapping with the same keys. Everything is read from the
            parameter tree and, for the window, from the recorded cache.

    Returns:
        params: nested dict of float64 arrays, named as paper_numpy.py beside this file wants them.
            The recordings know no begin token: begin_D is zero, and their tokens never ask for it.
        settings: Settings of gate_form "meliad" and logits_divisor "width".

    Raises: ValueError where the recording holds a parameter that brt does not have.
    """
    tree = Tree({k.removeprefix("params/"): npz[k] for k in npz if k.startswith("params/")})
    layer_paths = sorted({path.split("/")[0] for path in tree.arrays if "transformer" in path})
    layer_paths.sort(key=lambda name: int(name.removeprefix("transformer")))
    recurrent_layers = tuple(
        index for index, path in enumerate(layer_paths) if f"{path}/recurrent_tbase" in tree
    )
    params = {
        "embedding_VD": tree["embed/embedding"],
        "final_norm": {"scale_D": tree["final_layernorm/scale"]},
        "layers": {index: read_layer(tree, path) for index, path in enumerate(layer_paths)},
    }
    params["begin_D"] = np.zeros(params["embedding_VD"].shape[1])
    if tree.unread:
        raise ValueError(f"recorded parameters without a place in ours: {sorted(tree.unread)}")

    layers = params["layers"]
    num_heads = layers[0]["attention_scale_H"].size
    gate, arrangement = "fixed", "dual"
    if recurrent_layers:
        cell = layers[recurrent_layers[0]]["cell"]
        gates = [cell[name] for name in ("attention_gate", "feed_forward_gate") if name in cell]
        gate = "fixed" if "keep_bias_D" in gates[0] else "lstm"
        if "feed_forward_gate" not in cell:
            arrangement = "skip"
        elif "attention_gate" not in cell:
            arrangement = "single"
    return params, Settings(
        num_heads=num_heads,
        head_size=layers[0]["keys_DA"].shape[1] // num_heads,
        window=npz[f"state/{layer_paths[0]}/previous_keys_test"].shape[1],
        recurrent_layers=recurrent_layers,
        gate=gate,
        arrangement=arrangement,
        gate_form="meliad",
        feedback=any("cross_queries_DA" in layers[i] and "cell" not in layers[i] for i in layers),
        logits_divisor="width",
    )


def read_layer(tree, path):
    base = f"{path}/tbase"
    layer = {
        **read_attention(tree, base),
        "attention_norm": {"scale_D": tree[f"{base}/_kvq/pre_attn_layernorm/scale"]},
        "relative_bias": {"table_HR": tree[f"{path}/relative_positions/rel_embedding"]},
        "feed_forward_norm": {"scale_D": tree[f"{base}/pre_ffn_layernorm/scale"]},
        "feed_forward": {
            "hidden_DF": tree[f"{base}/ffn/hidden0/kernel"],
            "output_FD": tree[f"{base}/ffn/output_layer/kernel"],
        },
    }
    output = "output_CD" if "cross_queries_DA" in layer else "output_AD"
    layer[output] = tree[f"{base}/post_attn_mlp/output_layer/kernel"]
    if f"{path}/recurrent_tbase" in tree:
        layer["cell"] = read_cell(tree, path)
    return layer


def read_cell(tree, path):
    base = f"{path}/recurrent_tbase"
    cell = {
        **read_attention(tree, base),
        "initial_states_SD": tree[f"{path}/recurrent_initial_state"],
        "state_ids_SD": tree[f"{base}/_kvq/position_embeddings"],
        "norm": {"scale_D": tree[f"{base}/_kvq/pre_attn_layernorm/scale"]},
    }
    projects, feeds_forward = f"{base}/post_attn_mlp" in tree, f"{base}/ffn" in tree
    if projects:
        cell["attention_gate"] = read_gate(tree, f"{base}/post_attn_mlp", "C")
    if feeds_forward:
        cell["feed_forward_gate"] = read_gate(tree, f"{base}/ffn", "F")
        hidden = "hidden_DF" if projects else "hidden_CF"
        cell[hidden] = tree[f"{base}/ffn/hidden0/kernel"]
    if projects and feeds_forward:
        cell["feed_forward_norm"] = {"scale_D": tree[f"{base}/pre_ffn_layernorm/scale"]}
    return cell


def read_attention(tree, base):
    attention = {
        "queries_DA": tree[f"{base}/_kvq/queries_layer/kernel"],
        "keys_DA": tree[f"{base}/_kvq/keys_layer/kernel"],
        "values_DA": tree[f"{base}/_kvq/values_layer/kernel"],
        "attention_scale_H": tree[f"{base}/_kvq/attention_scale"],
    }
    if f"{base}/_kvq/queries2_layer" in tree:
        attention["cross_queries_DA"] = tree[f"{base}/_kvq/queries2_layer/kernel"]
        attention["cross_scale_H"] = tree[f"{base}/attention_scale2"]
    return attention


def read_gate(tree, path, axis):
    gate = {f"candidate_{axis}D": tree[f"{path}/output_layer/kernel"]}
    if f"{path}/gate_bias" in tree:
        return {**gate, "keep_bias_D": tree[f"{path}/gate_bias"]}
    return {
        **gate,
        f"input_{axis}D": tree[f"{path}/input_gate/kernel"],
        "input_bias_D": tree[f"{path}/input_gate/bias"],
        f"forget_{axis}D": tree[f"{path}/forget_gate/kernel"],
        "forget_bias_D": tree[f"{path}/forget_gate/bias"],
    }


class Tree:
    """Recorded parameters by path, that remembers which of them nobody has read."""

    def __init__(self, arrays):
        self.arrays = arrays
        self.unread = set(arrays)

    def __contains__(self, path):
        return any(known == path or known.startswith(path + "/") for known in self.arrays)

    def __getitem__(self, path):
        self.unread.discard(path)
        return self.arrays[path].astype(np.float64)
