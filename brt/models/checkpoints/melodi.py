"""Reads parameters of MELODI, as released in google-research/meliad, into brt's model."""

import re
from collections.abc import Iterable, Mapping

import numpy as np
from flax import nnx

from brt.models.checkpoints.meliad import Source, UnsupportedCheckpoint, filled
from brt.models.melodi.model import Melodi

LAYER = "layer_stack/melodi_layers_{}/melodi_layer/"
GATE = "attn_gate"
TOP = {
    "embedding_VD": "embed/embedding",
    "begin_D": "begin",
    "summary_RD": "layer_stack/summary_embeddings",
    "final_norm/scale_D": "layer_stack/final_layernorm/scale",
}
NAMES = {
    "attention_norm/scale_D": "tbase/pre_attn_layernorm/scale",
    "queries_DA": "tbase/_kvq/queries_layer/kernel",
    "keys_DA": "tbase/_kvq/keys_layer/kernel",
    "values_DA": "tbase/_kvq/values_layer/kernel",
    "attention_scale_H": "tbase/_kvq/attention_scale",
    "relative_bias/table_HR": "relative_positions/rel_embedding",
    "output_AD": "tbase/post_attn_mlp/output_layer/kernel",
    "feed_forward_norm/scale_D": "tbase/pre_ffn_layernorm/scale",
    "feed_forward/hidden_DF": "tbase/ffn/mlp_layer/input_layer/kernel",
    "feed_forward/hidden_bias_F": "tbase/ffn/mlp_layer/input_layer/bias",
    "feed_forward/output_FD": "tbase/ffn/mlp_layer/output_layer/kernel",
    "feed_forward/output_bias_D": "tbase/ffn/mlp_layer/output_layer/bias",
    "gate_HK": GATE,
}
MIXINGS = {
    "summary_mixing": "token_mixing_summary",
    "short_mixing": "token_mixing_short",
    "long_mixing": "long_mem_token_mixing",
}
OF_MIXING = {
    "tokens_norm/scale_D": "layernorm1/scale",
    "summary_norm/scale_D": "layernorm2/scale",
    "matrix_XI": "lin_mix/kernel",
    "bias_I": "lin_mix/bias",
}


def from_brt_path(path: Iterable) -> str:
    name = "/".join(map(str, path))
    if name in TOP:
        return TOP[name]
    _, index, rest = name.split("/", 2)
    mixing, _, part = rest.partition("/")
    if mixing in MIXINGS:
        return f"{LAYER.format(index)}{MIXINGS[mixing]}/{OF_MIXING[part]}"
    return LAYER.format(index) + NAMES[rest]


def load(params: Mapping[str, np.ndarray], long_memory: int = 0) -> Melodi:
    """Returns a float32 model with released parameters; its `begin_D` is zero.

    params: from paths joined with "/" to arrays. long_memory: M, which the parameters do not
    determine.
    """
    params = {path: np.asarray(value, np.float32) for path, value in params.items()}
    layers = {match[1] for path in params if (match := re.search(r"melodi_layers_(\d+)/", path))}

    def of_layer(name, index=0):
        return params[LAYER.format(index) + name]

    try:
        V, D = params["embed/embedding"].shape
        U = params["layer_stack/summary_embeddings"].shape[0]
        H = of_layer(NAMES["attention_scale_H"]).shape[0]
        X, S = of_layer("token_mixing_short/lin_mix/kernel").shape
        long_layers = tuple(i for i in range(len(layers)) if LAYER.format(i) + GATE in params)
        increment = 1
        if long_layers:
            kernel = of_layer("long_mem_token_mixing/lin_mix/kernel", long_layers[0])
            increment = kernel.shape[1]
        model = nnx.eval_shape(
            lambda: Melodi(
                nnx.Rngs(0),
                vocabulary_size=V,
                num_layers=len(layers),
                width=D,
                num_heads=H,
                head_size=of_layer(NAMES["queries_DA"]).shape[1] // H,
                feed_forward_size=of_layer(NAMES["feed_forward/hidden_DF"]).shape[1],
                window=X - U,
                summary=U,
                short_memory=S,
                long_layers=long_layers,
                long_memory=long_memory,
                long_increment=increment,
            )
        )
    except (KeyError, ValueError) as error:
        raise UnsupportedCheckpoint(f"The checkpoint describes no MELODI: {error}") from error
    return filled(model, params, lambda path: Source(from_brt_path(path)))
