"""Configs of tiny encoders and of T5, and the names and shapes of their tensors on disk."""

from tiny_folders import SHAPES, make_folder

BERT = dict(
    model_type="bert",
    vocab_size=17,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=10,
    max_position_embeddings=14,
    type_vocab_size=2,
    pad_token_id=0,
    layer_norm_eps=1e-3,
)
ROBERTA = BERT | dict(model_type="roberta", type_vocab_size=1, pad_token_id=1)
DEBERTA_3 = BERT | dict(
    model_type="deberta-v2",
    type_vocab_size=0,
    position_biased_input=False,
    relative_attention=True,
    pos_att_type="p2c|c2p",
    position_buckets=4,
    max_relative_positions=-1,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
)
DEBERTA_2 = BERT | dict(
    model_type="deberta-v2",
    relative_attention=True,
    pos_att_type=["c2p"],
    max_relative_positions=3,
    conv_kernel_size=3,
)
T5_RELU = dict(
    model_type="t5",
    vocab_size=17,
    d_model=8,
    d_kv=3,
    d_ff=10,
    num_layers=2,
    num_heads=2,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=6,
    layer_norm_epsilon=1e-3,
    pad_token_id=0,
    decoder_start_token_id=0,
    is_encoder_decoder=True,
)
T5_GATED = T5_RELU | dict(
    feed_forward_proj="gated-gelu", num_decoder_layers=3, tie_word_embeddings=False
)
CLASSES = 3


def _linear(name, out, into):
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _layer(name, D, F, parts):
    shapes = {}
    for part in parts:
        shapes |= _linear(f"{name}.attention.self.{part}", D, D)
    return (
        shapes
        | _linear(f"{name}.attention.output.dense", D, D)
        | _norm(f"{name}.attention.output.LayerNorm", D)
        | _linear(f"{name}.intermediate.dense", F, D)
        | _linear(f"{name}.output.dense", D, F)
        | _norm(f"{name}.output.LayerNorm", D)
    )


def bert_shapes(config):
    kind, D, F = config["model_type"], config["hidden_size"], config["intermediate_size"]
    shapes = {
        f"{kind}.embeddings.word_embeddings.weight": (config["vocab_size"], D),
        f"{kind}.embeddings.position_embeddings.weight": (config["max_position_embeddings"], D),
        f"{kind}.embeddings.token_type_embeddings.weight": (config["type_vocab_size"], D),
        **_norm(f"{kind}.embeddings.LayerNorm", D),
    }
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer(f"{kind}.encoder.layer.{i}", D, F, ("query", "key", "value"))
    if kind == "bert":
        return shapes | _linear("bert.pooler.dense", D, D) | _linear("classifier", CLASSES, D)
    return shapes | _linear("classifier.dense", D, D) | _linear("classifier.out_proj", CLASSES, D)


def deberta_shapes(config):
    D, F = config["hidden_size"], config["intermediate_size"]
    kinds = config["pos_att_type"]
    shapes = {
        "deberta.embeddings.word_embeddings.weight": (config["vocab_size"], D),
        **_norm("deberta.embeddings.LayerNorm", D),
    }
    if config.get("position_biased_input", True):
        rows = config["max_position_embeddings"]
        shapes["deberta.embeddings.position_embeddings.weight"] = rows, D
    if config["type_vocab_size"]:
        shapes["deberta.embeddings.token_type_embeddings.weight"] = config["type_vocab_size"], D
    parts = ["query_proj", "key_proj", "value_proj"]
    if not config.get("share_att_key"):
        parts += ["pos_key_proj"] * ("c2p" in kinds) + ["pos_query_proj"] * ("p2c" in kinds)
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer(f"deberta.encoder.layer.{i}", D, F, parts)
    span = config.get("position_buckets", -1)
    if span < 1:
        span = config["max_relative_positions"]
    shapes["deberta.encoder.rel_embeddings.weight"] = 2 * span, D
    if config.get("norm_rel_ebd") == "layer_norm":
        shapes |= _norm("deberta.encoder.LayerNorm", D)
    if kernel := config.get("conv_kernel_size"):
        shapes["deberta.encoder.conv.conv.weight"] = D, D, kernel
        shapes["deberta.encoder.conv.conv.bias"] = (D,)
        shapes |= _norm("deberta.encoder.conv.LayerNorm", D)
    return shapes | _linear("pooler.dense", D, D) | _linear("classifier", CLASSES, D)


def t5_shapes(config):
    D, F = config["d_model"], config["d_ff"]
    A = config["num_heads"] * config["d_kv"]
    shapes = {"shared.weight": (config["vocab_size"], D)}
    wi = ("wi_0", "wi_1") if "gated" in config.get("feed_forward_proj", "relu") else ("wi",)
    decoders = config.get("num_decoder_layers", config["num_layers"])
    for stack, count in (("encoder", config["num_layers"]), ("decoder", decoders)):
        for i in range(count):
            name = f"{stack}.block.{i}.layer"
            attentions = ["0.SelfAttention"] + ["1.EncDecAttention"] * (stack == "decoder")
            for attention in attentions:
                for part in "qkv":
                    shapes[f"{name}.{attention}.{part}.weight"] = A, D
                shapes[f"{name}.{attention}.o.weight"] = D, A
            last = len(attentions)
            for norm in range(last + 1):
                shapes[f"{name}.{norm}.layer_norm.weight"] = (D,)
            for part in wi:
                shapes[f"{name}.{last}.DenseReluDense.{part}.weight"] = F, D
            shapes[f"{name}.{last}.DenseReluDense.wo.weight"] = D, F
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        shapes[bias] = config["relative_attention_num_buckets"], config["num_heads"]
        shapes[f"{stack}.final_layer_norm.weight"] = (D,)
    if config.get("tie_word_embeddings") is False:
        shapes["lm_head.weight"] = config["vocab_size"], D
    return shapes


SHAPES |= {
    "bert": bert_shapes,
    "roberta": bert_shapes,
    "deberta-v2": deberta_shapes,
    "t5": t5_shapes,
}
CONFIGS = {
    "bert": BERT,
    "roberta": ROBERTA,
    "deberta 3": DEBERTA_3,
    "deberta 2": DEBERTA_2,
    "t5 1.0": T5_RELU,
    "t5 1.1": T5_GATED,
}


def make(folder, name, **changes):
    """Writes a folder of this name of `CONFIGS`; returns its config and its tensors."""
    config = CONFIGS[name] | changes
    return config, make_folder(folder, config)
