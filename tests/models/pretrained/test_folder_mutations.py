"""Two hundred damaged folders: each is read as it is, or refused in one sentence."""

import builtins
import functools
import json
import os
import random

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tiny_encoder_folders import CONFIGS as READERS
from tiny_folders import GPT2, GPT_NEOX, LLAMA, make_folder
from tiny_models import OneKey, parameters

from brt.config import message
from brt.pretrained import folder as folder_module
from brt.pretrained.decoders import gpt2, gpt_neox, llama
from brt.pretrained.encoders import bert, deberta, t5
from brt.pretrained.reader import PretrainedReader

BODIES = {"gpt2": gpt2.GPT2, "llama": llama.Llama, "gpt_neox": gpt_neox.GPTNeoX}
ENCODERS = {
    "bert": bert.BERT,
    "roberta": bert.RoBERTa,
    "deberta-v2": deberta.DeBERTa,
    "t5": t5.T5,
}
CONFIGS = {"decoders": (GPT2, LLAMA, GPT_NEOX), "readers": tuple(READERS.values())}
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 10**9, 10**40, 0.5, -2.5, float("nan"), float("inf")),
    *("", "8", "gelu", "../x", [], [1, 2], ["a"], {}, {"rope_type": "llama3"}, {"a": [None]}),
)
FURTHER = (
    *("tie_word_embeddings", "scale_attn_weights", "layer_norm_epsilon", "rope_scaling"),
    *("rope_parameters", "quantization_config", "auto_map", "attention_bias", "hidden_act"),
    *("activation_function", "sliding_window", "layer_types", "rms_norm_eps", "rotary_emb_base"),
    *("position_embedding_type", "is_decoder", "pos_att_type", "conv_kernel_size", "pruned_heads"),
    *("feed_forward_proj", "scale_decoder_outputs", "norm_rel_ebd", "embedding_size", "id2label"),
    *("problem_type", "num_labels", "relative_attention", "position_buckets", "conv_groups"),
)


def change_config(rng, path):
    file = path / "config.json"
    config = json.loads(file.read_text())
    key = rng.choice([*config, *FURTHER])
    if rng.random() < 0.2:
        config.pop(key, None)
    else:
        config[key] = rng.choice(VALUES)
    file.write_text(json.dumps(config))


def change_text(rng, path):
    file = rng.choice([f for f in sorted(path.iterdir()) if f.suffix == ".json"])
    text = file.read_text()
    at = rng.randrange(len(text))
    replaced = rng.choice(
        ["", "{", '"', ",", "\0", "[" * 3000, "\ud800".encode(errors="ignore").decode()]
    )
    file.write_text(rng.choice([text[:at], text[:at] + replaced + text[at + 1 :], replaced]))


def weights_of(rng, path):
    return rng.choice([f for f in sorted(path.iterdir()) if f.suffix == ".safetensors"])


def change_bytes(rng, path):
    file = weights_of(rng, path)
    content = bytearray(file.read_bytes())
    if rng.random() < 0.5:
        content = content[: rng.randrange(len(content))]
    else:
        for _ in range(rng.choice([1, 3, 30])):
            content[rng.randrange(min(len(content), 400))] = rng.randrange(256)
    file.write_bytes(content)


def change_tensor(rng, path):
    file = weights_of(rng, path)
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    array = tensors[name]
    kind = rng.randrange(8)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[rng.choice([name + "x", "x." + name, name.replace(".0.", ".9.")])] = tensors.pop(
            name
        )
    elif kind == 2:
        tensors[name.split(".", 1)[1]] = array
    elif kind == 3:
        tensors[name] = array.astype(rng.choice([np.float16, ml_dtypes.bfloat16, np.float64]))
    elif kind == 4:
        tensors[name] = array.astype(rng.choice([np.int8, np.int64, np.bool_]))
    elif kind == 5:
        array = array.copy()
        array.flat[rng.randrange(array.size)] = rng.choice([np.nan, np.inf])
        tensors[name] = array
    elif kind == 6:
        tensors[name] = rng.choice([array[:-1], array[None], array.reshape(-1), array[..., :0]])
    else:
        tensors[name] = np.ascontiguousarray(array.T)
    save_file(tensors, file)


def change_files(rng, path):
    file = rng.choice(sorted(path.iterdir()))
    kind = rng.randrange(5)
    content = file.read_bytes()
    os.remove(file)
    if kind == 1:
        file.mkdir()
    elif kind == 2:
        (path.parent / "outside").write_bytes(content)
        os.symlink(path.parent / "outside", file)
    elif kind == 3:
        os.mkfifo(file)
    elif kind == 4:
        file.with_name(file.name + ".bin").write_bytes(content)


def change_index(rng, path):
    file = path / "model.safetensors.index.json"
    if not file.exists():
        return change_files(rng, path)
    index = json.loads(file.read_text())
    found = index["weight_map"]
    name = rng.choice(sorted(found))
    (path.parent / "other.safetensors").write_bytes((path / found[name]).read_bytes())
    outside = ["../other.safetensors", f"{path.parent}/other.safetensors", "a/b.safetensors"]
    value = rng.choice([*outside, "", ".", "..", "model.bin", None, 3, [], "..safetensors"])
    kind = rng.randrange(4)
    if kind == 0:
        found[name] = value
    elif kind == 1:
        index["weight_map"] = dict.fromkeys(found, value)
    elif kind == 2:
        del found[name]
    else:
        index["weight_map"] = rng.choice([None, [], "x", {}])
    file.write_text(json.dumps(index))


CHANGES = (change_config, change_config, change_text, change_bytes, change_tensor, change_tensor)
CHANGES += (change_files, change_index)


@pytest.fixture
def only_inside(monkeypatch):
    """Fails where the reader opens a file that does not lie in the folder."""
    place = []

    def checked(opened):
        def call(path, *arguments, **options):
            real = os.path.realpath(path)
            assert os.path.dirname(real) == os.path.realpath(place[0]), f"{real} is outside"
            return opened(path, *arguments, **options)

        return call

    monkeypatch.setattr(folder_module, "open", checked(builtins.open), raising=False)
    monkeypatch.setattr(folder_module, "safe_open", checked(folder_module.safe_open))
    return place


def read_folder(config, path):
    """Builds the model of a folder, and returns it with all that it is given from there."""
    model_type = config["model_type"]
    if model_type in BODIES:
        kind = BODIES[model_type]
        body = nnx.eval_shape(lambda: kind(OneKey(), folder=str(path)))
        return body, body.names().read(body.folder)
    body = functools.partial(ENCODERS[model_type], folder=str(path))
    targets = "words" if model_type == "t5" else "classes"

    def build():
        return PretrainedReader(OneKey(), body=body, targets=targets, classes=3, num_memory=1)

    model = nnx.eval_shape(build)
    return model, model.given_parameters()


def assert_fits(model, given):
    """What was read is of the model's shapes, float32 and finite."""
    shapes = dict(jax.tree_util.tree_leaves_with_path(parameters(model)))
    for where, array in jax.tree_util.tree_leaves_with_path(given):
        assert array.shape == shapes[where].shape, where
        assert array.dtype == np.float32 and np.isfinite(array).all(), where


@pytest.mark.parametrize(
    "kind, seeds",
    [
        ("decoders", 40),
        ("readers", 20),
        pytest.param("decoders", 200, marks=pytest.mark.slow),
        pytest.param("readers", 200, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_folder_is_read_as_it_is_or_refused_in_a_sentence(
    kind, seeds, tmp_path, only_inside
):
    refused = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        config = rng.choice(CONFIGS[kind])
        path = tmp_path / str(seed) / "folder"
        make_folder(path, config, shards=rng.choice([1, 3]))
        change = rng.choice(CHANGES)
        change(rng, path)
        only_inside[:] = [path]
        try:
            model, given = read_folder(config, path)
            assert_fits(model, given)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            text = message(error)
            where = f"seed {seed}, {change.__name__}: {text}"
            assert str(path) in text and "\n" not in text and text.endswith((".", ").")), where
    assert seeds * 0.5 < refused < seeds
