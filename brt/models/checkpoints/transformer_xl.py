"""Reads parameters of the PyTorch code of kimiyoung/transformer-xl, or booydar/LM-RMT around it.

Names and settings are that code's: a state dictionary, and the arguments of its model;
`reset_length` (target, extended, memory) represents a later call of that method. A loaded model
keeps the code's artefacts (`published_artefacts`); that of a memory token's relative position to a
later one, the relative shift's leftover, in segments and not while decoding.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from flax import nnx

from brt.models.checkpoints.meliad import Source, UnsupportedCheckpoint, filled
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.transformer_xl.model import TransformerXL

ENCODINGS = ("relative", "shaw", "absolute", "learned")  # attn_type 0, 1, 2, 3


def settings(config: dict, params: dict) -> dict:
    width, ext_len = config["d_model"], config.get("ext_len", 0)
    if config.get("d_embed", width) != width:
        raise UnsupportedCheckpoint(f"d_embed is {config['d_embed']}, d_model {width}.")
    memory_length = config["mem_len"]
    if "reset_length" in config:
        _, ext_len, memory_length = config["reset_length"]
    if ext_len:
        raise UnsupportedCheckpoint(f"ext_len is {ext_len}: brt extends the context of a segment.")
    if config["attn_type"] not in range(len(ENCODINGS)):
        raise UnsupportedCheckpoint(f"attn_type is {config['attn_type']}: brt has 0, 1, 2 and 3.")
    cutoffs, ties = tuple(config.get("cutoffs", ())), list(config.get("tie_projs", ()))
    clamp = config.get("clamp_len", -1)
    return dict(
        vocabulary_size=config["n_token"],
        num_layers=config["n_layer"],
        width=width,
        num_heads=config["n_head"],
        head_size=config["d_head"],
        feed_forward_size=config["d_inner"],
        memory_length=memory_length,
        encoding=ENCODINGS[config["attn_type"]],
        position_rows=params["r_emb"].shape[1] if "r_emb" in params else 0,
        same_length=config.get("same_length", False),
        clamp_length=clamp if clamp > 0 else None,
        norm="pre" if config.get("pre_lnorm") else "post",
        cutoffs=cutoffs,
        div_val=config.get("div_val", 1),
        tied=config.get("tie_weight", True),
        tied_projections=tuple((ties + [False] * len(cutoffs))[: len(cutoffs) + 1]) or True,
        activation_dtype="float32",
    )


def load(params: dict, config: dict) -> Any:
    """Returns a float32 model with the released code's parameters; its `begin_D` is zero."""
    params = {name: np.asarray(value, np.float32) for name, value in params.items()}
    try:
        keywords = settings(config, params)
        build: Any = functools.partial(TransformerXL, published_artefacts=True, **keywords)
        if "num_mem_tokens" in config or "mem_tokens" in params:
            build = functools.partial(
                RecurrentMemoryTransformer,
                num_memory=config["num_mem_tokens"],
                body=build,
                memory_at_end=config["mem_at_end"],
                read_memory_from_cache=config["read_mem_from_cache"],
                allow_long_memory=True,
            )
        model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    except (KeyError, IndexError) as error:
        raise UnsupportedCheckpoint(f"The checkpoint has no {error}.") from error
    except ValueError as error:
        raise UnsupportedCheckpoint(f"The checkpoint describes no model: {error}") from error
    model = filled(model, params, lambda path: source(path, model), _copies(params))
    return model.for_segments(config["tgt_len"])


def recorded(
    arrays: Mapping[str, np.ndarray],
    path: Iterable,
    model: TransformerXL | RecurrentMemoryTransformer,
) -> np.ndarray | None:
    """Returns a parameter of brt, from arrays with released names; None for `begin_D`."""
    origin = source(path, model)
    return None if origin is None else origin.read(arrays)


def _copies(params):
    copies = {"pos_emb.inv_freq"}
    for name, value in params.items():
        for there, here in (("out_layers", "emb_layers"), ("out_projs", "emb_projs")):
            other = name.replace(f"crit.{there}", f"word_emb.{here}")
            if other != name and other in params and np.array_equal(value, params[other]):
                copies.add(name)
    return copies


def _third(number, of=3):
    return lambda x: np.split(x, of)[number].T


_LAYER = {
    "output_AD": Source("dec_attn.o_net.weight", np.transpose),
    "positions_DA": Source("dec_attn.r_net.weight", np.transpose),
    "attention_norm/scale_D": Source("dec_attn.layer_norm.weight"),
    "attention_norm/bias_D": Source("dec_attn.layer_norm.bias"),
    "feed_forward/hidden_DF": Source("pos_ff.CoreNet.0.weight", np.transpose),
    "feed_forward/hidden_bias_F": Source("pos_ff.CoreNet.0.bias"),
    "feed_forward/output_FD": Source("pos_ff.CoreNet.3.weight", np.transpose),
    "feed_forward/output_bias_D": Source("pos_ff.CoreNet.3.bias"),
    "feed_forward_norm/scale_D": Source("pos_ff.layer_norm.weight"),
    "feed_forward_norm/bias_D": Source("pos_ff.layer_norm.bias"),
}
_FUSED = {  # queries, keys and values in one matrix, if keys know distances
    "queries_DA": Source("dec_attn.qkv_net.weight", _third(0)),
    "keys_DA": Source("dec_attn.qkv_net.weight", _third(1)),
    "values_DA": Source("dec_attn.qkv_net.weight", _third(2)),
}
_APART = {
    "queries_DA": Source("dec_attn.q_net.weight", np.transpose),
    "keys_DA": Source("dec_attn.kv_net.weight", _third(0, of=2)),
    "values_DA": Source("dec_attn.kv_net.weight", _third(1, of=2)),
}
_OF_ALL_LAYERS = {  # arrays whose first axis is the layer
    "content_bias_HK": "r_w_bias",
    "distance_keys_RHK": "r_emb",
    "distance_bias_RH": "r_bias",
    "places_RD": "r_emb",
}
_TOP = {
    "content_bias_HK": Source("r_w_bias"),
    "position_bias_HK": Source("r_r_bias"),
    # The released code numbers the rare bins' logits from the end.
    "embedding/clusters_ND": Source("crit.cluster_weight", lambda x: x[::-1]),
    "embedding/cluster_bias_N": Source("crit.cluster_bias", lambda x: x[::-1]),
    "embedding/begin_D": None,
    "memory_SD": Source("mem_tokens", lambda x_S1D: x_S1D[:, 0]),
}
_BIN = {
    "table_VE": "word_emb.emb_layers.{}.weight",
    "bias_V": "crit.out_layers.{}.bias",
    "output_VE": "crit.out_layers.{}.weight",
    "projection_ED": "word_emb.emb_projs.{}",
    "output_projection_ED": "crit.out_projs.{}",
}


def source(path: Iterable, model: TransformerXL | RecurrentMemoryTransformer) -> Source | None:
    own_name = "/".join(map(str, path)).removeprefix("body/")
    body = model.body if isinstance(model, RecurrentMemoryTransformer) else model
    body = cast(TransformerXL, body)
    if own_name in _TOP:
        return _TOP[own_name]
    if match := re.fullmatch(r"embedding/bins/(\d+)/(\w+)", own_name):
        return _of_bin(int(match[1]), match[2], body.embedding)
    if match := re.fullmatch(r"layers/(\d+)/(.+)", own_name):
        layer, rest = int(match[1]), match[2]
        if rest in _OF_ALL_LAYERS:
            shape = getattr(body.layers[layer], rest).shape
            return Source(_OF_ALL_LAYERS[rest], lambda x: x[layer].reshape(shape))
        fused = _FUSED if body.encoding in ("relative", "shaw") else _APART
        if rest in _LAYER | fused:
            name, arrange = (_LAYER | fused)[rest]
            return Source(f"layers.{layer}.{name}", arrange)
    raise UnsupportedCheckpoint(f"The released code has no counterpart for brt's {own_name!r}.")


def _of_bin(index, name, embedding) -> Source:
    if "projection" in name:
        return Source(_BIN[name].format(index), np.transpose)
    if embedding.bins[index].projects:
        return Source(_BIN[name].format(index))
    low, high = embedding.edges[index : index + 2]  # bins of one width share a table
    return Source(_BIN[name].format(0), lambda x: x[low:high])
