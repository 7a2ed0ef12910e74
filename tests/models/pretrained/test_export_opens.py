"""What brt writes as a folder: plain transformers opens it, where it is installed; so does brt."""

import functools

import check_export
import jax
import numpy as np
import pytest
from flax import nnx
from marking import slow
from safetensors.numpy import load_file
from tiny_encoder_folders import CONFIGS as ENCODER_CONFIGS
from tiny_folders import make_folder
from tiny_models import parameters, randomised

from brt.export import export
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.decoders.gpt_neox import GPTNeoX
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.encoders.bert import BERT, RoBERTa
from brt.pretrained.encoders.deberta import DeBERTa
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.folder import HubFolder
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.pretrained.reader import PretrainedReader

SIZES = dict(vocabulary_size=23, num_layers=2, width=16, num_heads=2, num_positions=12)
BODIES = {
    "gpt2": lambda rngs: GPT2(rngs, **SIZES),
    "gpt2 untied": lambda rngs: GPT2(
        rngs,
        **SIZES,
        tied=False,
        scale_scores=False,
        inverse_layer_scale=True,
        activation="relu",
        epsilon=1e-2,
    ),
    "qwen2": lambda rngs: Llama(
        rngs, **SIZES, feed_forward_size=9, num_key_heads=1, biases="heads", tied=True
    ),
    "llama3": lambda rngs: Llama(
        rngs,
        **SIZES,
        feed_forward_size=9,
        head_size=6,
        biases="all",
        rotary_scaling=(8.0, 1.0, 4.0, 8),
        epsilon=1e-3,
    ),
    "neox": lambda rngs: GPTNeoX(rngs, **SIZES, rotary_share=0.5, parallel=False),
}


SMALL = dict(vocabulary_size=23, num_layers=2, width=16, num_heads=2, feed_forward_size=24)
KINDS = {
    "bert": functools.partial(BERT, **SMALL, num_positions=16),
    "roberta": functools.partial(RoBERTa, **SMALL, num_positions=18),
    "deberta": functools.partial(DeBERTa, **SMALL, num_positions=16, longest_distance=5),
    "t5": functools.partial(T5, **SMALL, head_size=5, buckets=8, longest_distance=6),
    "t5 gated": functools.partial(
        T5, **SMALL, head_size=5, buckets=8, longest_distance=6, network="gated-gelu", tied=False
    ),
}
READERS = {
    **{f"{name} classes": (name, "classes") for name in ("bert", "roberta", "deberta")},
    **{f"{name} spans": (name, "spans") for name in ("bert", "roberta", "deberta")},
    "bert labels": ("bert", "labels"),
    "t5 words": ("t5", "words"),
    "t5 gated words": ("t5 gated", "words"),
}


def reader(name, memory=2, kind=None):
    body, targets = READERS[name]
    body = kind or KINDS[body]
    return PretrainedReader(nnx.Rngs(0), body=body, targets=targets, classes=3, num_memory=memory)


def exported(model, tmp_path):
    """A folder with the model, its parameters random, and these."""
    folder, model = str(tmp_path / "exported"), randomised(model, 1)
    params = parameters(model)
    export(model, params, folder)
    return folder, params


def check(folder):
    python = check_export.python_with_transformers()
    if python is None:
        pytest.skip("no torch and transformers here; BRT_TRANSFORMERS_PYTHON names a Python with")
    with jax.default_matmul_precision("highest"):
        assert check_export.error(folder, python) < check_export.TOLERANCE


@pytest.mark.parametrize("name", BODIES)
def test_transformers_reads_the_same_logits_from_an_export(name, tmp_path):
    model = PretrainedLanguageModel(nnx.Rngs(0), body=BODIES[name])
    check(exported(model, tmp_path)[0])


@pytest.mark.parametrize("name", READERS)
def test_transformers_answers_the_same_with_an_exported_head(name, tmp_path):
    check(exported(reader(name), tmp_path)[0])


QUICK = "bert labels", "deberta spans", "t5 words"


@pytest.mark.parametrize("name", [slow(name, when=name not in QUICK) for name in READERS])
def test_an_exported_reader_is_read_again_bit_for_bit(name, tmp_path):
    folder, params = exported(reader(name), tmp_path)
    opened = HubFolder(folder)
    kind = {"t5 gated": T5}.get(READERS[name][0], KINDS[READERS[name][0]].func)
    again = reader(name, memory=0, kind=functools.partial(kind, folder=folder))
    given = again.given_parameters()
    of_memory = load_file(f"{folder}/brt_memory.safetensors")
    drawn = {"memory_SD"} | ({"head.kinds_DN", "head.kinds_bias_N"} & of_memory.keys())
    assert of_memory.keys() == drawn
    assert ("head.kinds_DN" in drawn) == ("spans" in name)
    found = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(given)}
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        keys = [key.key for key in path]
        if ".".join(map(str, keys)) not in drawn:
            np.testing.assert_array_equal(found[jax.tree_util.keystr(path)], array)
    problem = {"classes": "single_label_classification", "labels": "multi_label_classification"}
    targets = READERS[name][1]
    assert opened.config.get("problem_type") == problem.get(targets)
    assert len(opened.config.get("id2label", "")) == (3 if targets in problem else 0)


def test_a_folders_class_names_are_kept_if_as_many(tmp_path):
    names = {"0": "no", "1": "perhaps", "2": "yes"}
    given = dict(id2label=names, label2id={"no": 0, "perhaps": 1, "yes": 2}, num_labels=3)
    tensors = make_folder(tmp_path / "a", ENCODER_CONFIGS["bert"] | given)
    of_head = [name for name in tensors if name.startswith("classifier")]
    body = {name: tensors[name] for name in tensors if name not in of_head}
    make_folder(tmp_path / "b", ENCODER_CONFIGS["bert"] | given, body)

    def config(name, classes):
        body = functools.partial(BERT, folder=str(tmp_path / name))
        return PretrainedReader(nnx.Rngs(0), body=body, classes=classes, num_memory=1).config()

    assert of_head and config("a", 3)["id2label"] == names and "num_labels" not in config("a", 3)
    other = config("b", 2)
    assert other["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert other["label2id"] == {"LABEL_0": 0, "LABEL_1": 1} and "num_labels" not in other


def test_a_head_of_another_kind_or_size_is_refused(tmp_path):
    folder, _ = exported(reader("bert classes"), tmp_path)
    body = functools.partial(BERT, folder=folder)
    with pytest.raises(ValueError, match=r"head for 3 classes, and PretrainedReader\.classes = 2"):
        PretrainedReader(nnx.Rngs(0), body=body)
    with pytest.raises(ValueError, match="problem_type = 'single_label_classification'"):
        PretrainedReader(nnx.Rngs(0), body=body, classes=3, targets="labels")
