"""Configs of tiny encoders and of T5, and the names and shapes of their tensors on disk."""

import dataclasses
import functools
import types

from flax import nnx
from tiny_folders import SHAPES, make_folder
from tiny_models import OneKey

from brt.pretrained.encoders.bert import BERT, RoBERTa
from brt.pretrained.encoders.deberta import DeBERTa
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.names import leaf
from brt.pretrained.reader import PretrainedReader

BERT_CONFIG = dict(
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
ROBERTA = BERT_CONFIG | dict(model_type="roberta", type_vocab_size=1, pad_token_id=1)
DEBERTA_3 = BERT_CONFIG | dict(
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
DEBERTA_2 = BERT_CONFIG | dict(
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
FAMILIES = {"bert": BERT, "roberta": RoBERTa, "deberta-v2": DeBERTa, "t5": T5}


def shapes(config):
    """By name on disk, of all tensors that brt reads with this config.json and its head.

    The names are compared with the published ones by `encoders_numpy`, which reads by those.
    """
    kind = FAMILIES[config["model_type"]]
    folder = types.SimpleNamespace(config=config, tensors=["decoder."] * 9, file=str)
    settings = dataclasses.asdict(kind.settings_type.of_folder(folder))
    body = functools.partial(kind, **settings)
    targets = "words" if kind is T5 else "classes"
    reader = functools.partial(PretrainedReader, body=body, targets=targets, classes=CLASSES)
    model = nnx.eval_shape(lambda: reader(OneKey()))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return {
        tensor.name: tensor.shape([leaf(params, path).shape for path in tensor.parameters])
        for tensor in model.names().tensors
    }


SHAPES |= dict.fromkeys(FAMILIES, shapes)
CONFIGS = {
    "bert": BERT_CONFIG,
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
