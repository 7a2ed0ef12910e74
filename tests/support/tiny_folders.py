"""Tiny folders in the Hub's format, written by hand: names and shapes as transformers has them."""

import json

import numpy as np
from safetensors.numpy import save_file

GPT2 = dict(
    model_type="gpt2",
    architectures=["GPT2LMHeadModel"],
    vocab_size=17,
    n_positions=12,
    n_embd=8,
    n_layer=2,
    n_head=2,
    n_inner=10,
    bos_token_id=16,
    eos_token_id=16,
)


def gpt2_shapes(config):
    D, F = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    shapes = {"transformer.wte.weight": (config["vocab_size"], D)}
    shapes["transformer.wpe.weight"] = config["n_positions"], D
    for i in range(config["n_layer"]):
        of_layer = {
            "ln_1.weight": (D,),
            "ln_1.bias": (D,),
            "attn.c_attn.weight": (D, 3 * D),
            "attn.c_attn.bias": (3 * D,),
            "attn.c_proj.weight": (D, D),
            "attn.c_proj.bias": (D,),
            "ln_2.weight": (D,),
            "ln_2.bias": (D,),
            "mlp.c_fc.weight": (D, F),
            "mlp.c_fc.bias": (F,),
            "mlp.c_proj.weight": (F, D),
            "mlp.c_proj.bias": (D,),
        }
        shapes |= {f"transformer.h.{i}.{name}": shape for name, shape in of_layer.items()}
    shapes |= {"transformer.ln_f.weight": (D,), "transformer.ln_f.bias": (D,)}
    if config.get("tie_word_embeddings") is False:
        shapes["lm_head.weight"] = config["vocab_size"], D
    return shapes


SHAPES = {"gpt2": gpt2_shapes}
"""By model_type: from a config to the shapes of all tensors."""


def random_tensors(config, seed=0):
    rng = np.random.default_rng(seed)
    shapes = SHAPES[config["model_type"]](config)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def make_folder(path, config=None, tensors=None, shards=1, **changes):
    """Writes the folder and returns its tensors.

    shards: files; above 1 with an index. changes: of config.json; None leaves a key out.
    """
    config = {**(config or GPT2), **changes}
    config = {key: value for key, value in config.items() if value is not None}
    tensors = random_tensors(config) if tensors is None else tensors
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return tensors
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, path / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors
