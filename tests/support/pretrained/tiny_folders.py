"""Tiny folders in the Hub's format, written without transformers but with its names and shapes."""

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
            **{"ln_1": (D,), "attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D)},
            **{"ln_2": (D,), "mlp.c_fc": (D, F), "mlp.c_proj": (F, D)},
        }
        for name, shape in of_layer.items():
            shapes[f"transformer.h.{i}.{name}.weight"] = shape
            shapes[f"transformer.h.{i}.{name}.bias"] = shape[-1:]
    shapes |= {"transformer.ln_f.weight": (D,), "transformer.ln_f.bias": (D,)}
    if config.get("tie_word_embeddings") is False:
        shapes["lm_head.weight"] = config["vocab_size"], D
    return shapes


SIZES = dict(vocab_size=17, max_position_embeddings=12, num_hidden_layers=2)
SIZES |= dict(hidden_size=12, intermediate_size=10)
LLAMA = SIZES | dict(
    model_type="llama",
    architectures=["LlamaForCausalLM"],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rope_theta=10000.0,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)
GPT_NEOX = SIZES | dict(
    model_type="gpt_neox",
    architectures=["GPTNeoXForCausalLM"],
    num_attention_heads=2,
    rotary_pct=0.4,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=0,
)


def llama_shapes(config):
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    A = config["num_attention_heads"] * config["head_dim"]
    E = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
    for i in range(config["num_hidden_layers"]):
        of_layer = {
            "self_attn.q_proj.weight": (A, D),
            "self_attn.k_proj.weight": (E, D),
            "self_attn.v_proj.weight": (E, D),
            "self_attn.o_proj.weight": (D, A),
            "mlp.gate_proj.weight": (F, D),
            "mlp.up_proj.weight": (F, D),
            "mlp.down_proj.weight": (D, F),
            "input_layernorm.weight": (D,),
            "post_attention_layernorm.weight": (D,),
        }
        if config.get("attention_bias") or config["model_type"] == "qwen2":
            biases = dict(q_proj=(A,), k_proj=(E,), v_proj=(E,))
            biases |= dict(o_proj=(D,)) if config.get("attention_bias") else {}
            of_layer |= {f"self_attn.{name}.bias": shape for name, shape in biases.items()}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in of_layer.items()}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = V, D
    return shapes


def gpt_neox_shapes(config):
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"gpt_neox.embed_in.weight": (V, D), "embed_out.weight": (V, D)}
    for i in range(config["num_hidden_layers"]):
        of_layer = {
            "attention.query_key_value": (3 * D, D),
            "attention.dense": (D, D),
            "mlp.dense_h_to_4h": (F, D),
            "mlp.dense_4h_to_h": (D, F),
            "input_layernorm": (D,),
            "post_attention_layernorm": (D,),
        }
        for name, shape in of_layer.items():
            shapes[f"gpt_neox.layers.{i}.{name}.weight"] = shape
            shapes[f"gpt_neox.layers.{i}.{name}.bias"] = shape[:1]
    norm = "gpt_neox.final_layer_norm"
    return shapes | {f"{norm}.weight": (D,), f"{norm}.bias": (D,)}


SHAPES = {
    "gpt2": gpt2_shapes,
    "llama": llama_shapes,
    "qwen2": llama_shapes,
    "mistral": llama_shapes,
    "gpt_neox": gpt_neox_shapes,
}
"""By model_type: from a config to the shapes of all tensors."""


def random_tensors(config):
    rng = np.random.default_rng(0)
    shapes = SHAPES[config["model_type"]](config)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def make_folder(path, config=None, tensors=None, shards=1, **changes):
    """Writes the folder and returns its tensors.

    shards: number of files. changes: of config.json; None leaves a key out.
    """
    config = {**(config or GPT2), **changes}
    config = {key: value for key, value in config.items() if value is not None}
    tensors = random_tensors(config) if tensors is None else tensors
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return tensors
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, path / name, metadata={"format": "pt"})
    return tensors
