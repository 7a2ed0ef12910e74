"""Folders in the format of the Hub: reading, refusals by name, and writing."""

import json
import os
import re

import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from paths import ROOT
from safetensors.numpy import load_file, save_file
from tiny_folders import GPT2 as CONFIG
from tiny_folders import make_folder, random_tensors
from tiny_models import parameters

from brt.bindings.errors import message
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.folder import HubFolder, write_folder
from brt.training.checkpoints.parameters import merged


def body_of(path):
    return nnx.eval_shape(lambda: GPT2(nnx.Rngs(0), folder=str(path)))


def read(path):
    body = body_of(path)
    return body, body.names().read(body.folder)


def test_every_parameter_is_given_by_the_folder(tmp_path):
    make_folder(tmp_path)
    _, found = read(tmp_path)
    drawn = parameters(GPT2(nnx.Rngs(0), folder=str(tmp_path)))
    filled = merged(drawn, found)
    assert {id(x) for x in leaves(filled)} == {id(x) for x in leaves(found)}
    queries = found["layers"][1]["queries_DA"]
    c_attn = random_tensors(CONFIG)["transformer.h.1.attn.c_attn.weight"]
    np.testing.assert_array_equal(queries, c_attn[:, :8])
    np.testing.assert_array_equal(found["layers"][1]["values_DA"], c_attn[:, 16:])


def leaves(tree):
    return [x for v in tree.values() for x in (leaves(v) if isinstance(v, dict) else [v])]


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_are_one_file_in_parts(tmp_path, shards):
    make_folder(tmp_path / "whole")
    make_folder(tmp_path / "parts", shards=shards)
    np.testing.assert_equal(read(tmp_path / "parts")[1], read(tmp_path / "whole")[1])


def test_a_body_without_its_head_has_shorter_names(tmp_path):
    tensors = make_folder(tmp_path / "whole")
    short = {name.removeprefix("transformer."): array for name, array in tensors.items()}
    short["h.0.attn.bias"] = np.tri(12, dtype=np.float32)[None, None]  # a buffer
    short["h.1.attn.masked_bias"] = np.full((), -1e4, np.float32)
    make_folder(tmp_path / "body", tensors=short)
    np.testing.assert_equal(read(tmp_path / "body")[1], read(tmp_path / "whole")[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats_are_read_as_float32(tmp_path, dtype):
    tensors = {name: array.astype(dtype) for name, array in random_tensors(CONFIG).items()}
    make_folder(tmp_path, tensors=tensors)
    found = read(tmp_path)[1]["positions_RD"]
    assert found.dtype == np.float32
    expected = tensors["transformer.wpe.weight"].astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("changes", "head", "own"),
    [
        (dict(tie_word_embeddings=False), "other", True),
        ({}, None, False),
        ({}, "same", False),  # stored twice
        ({}, "other", True),
    ],
)
def test_a_head_of_its_own_is_read_where_there_is_one(tmp_path, changes, head, own):
    tensors = random_tensors({**CONFIG, "tie_word_embeddings": True})
    words = tensors["transformer.wte.weight"]
    if head:
        tensors["lm_head.weight"] = words + (head == "other")
    make_folder(tmp_path, tensors=tensors, **changes)
    body, found = read(tmp_path)
    assert ("head_VD" in found) is own
    if own:
        np.testing.assert_array_equal(found["head_VD"], words + 1)
        assert body.config()["tie_word_embeddings"] is False


def with_tensor(name, value):
    def change(path):
        tensors = load_file(path / "model.safetensors")
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    return change


def with_text(name, text):
    return lambda path: (path / name).write_text(text)


def with_config(**changes):
    def change(path):
        config = {**json.loads((path / "config.json").read_text()), **changes}
        (path / "config.json").write_text(json.dumps(config))

    return change


def truncated(path):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:-7])


def renamed(name):
    return lambda path: os.rename(path / "model.safetensors", path / name)


def link_outside(path):
    os.rename(path / "model.safetensors", path.parent / "outside.safetensors")
    os.symlink(path.parent / "outside.safetensors", path / "model.safetensors")


def in_shards(change):
    def changed(path):
        os.remove(path / "model.safetensors")
        make_folder(path, shards=3)
        change(path)

    return changed


def tensor_twice(path):
    first, last = (path / f"model-0000{number}-of-00003.safetensors" for number in (1, 3))
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(last), name: tensor}, last)


BAD = {
    "wide": (with_config(n_embd=2**30), "has shape"),
    "no config": (lambda path: os.remove(path / "config.json"), r"config\.json"),
    "config is no JSON": (with_text("config.json", "{"), r"config\.json"),
    "deep": (with_text("config.json", "[" * 10**5), r"config\.json"),
    "model type": (with_config(model_type="mamba"), r"model_type = 'mamba'.*\bgpt2\b"),
    "model type is a list": (with_config(model_type=["gpt2"]), "model_type"),
    "another model": (with_config(model_type="llama"), "by @Llama"),
    "code": (with_config(auto_map={}), "auto_map"),
    "quantized": (with_config(quantization_config={"bits": 4}), "quantization_config"),
    "torch": (renamed("pytorch_model.bin"), "pytorch_model.bin.*save_pretrained"),
    "packed": (renamed("model-q4.gguf"), "model-q4.gguf"),
    "no weights": (lambda path: os.remove(path / "model.safetensors"), "model.safetensors"),
    "truncated": (truncated, "model.safetensors"),
    "lacks": (with_tensor("transformer.h.1.ln_2.bias", None), r"h\.1\.ln_2\.bias"),
    "left over": (
        with_tensor("transformer.h.2.ln_1.bias", np.zeros(8, np.float32)),
        r"transformer\.h\.2\.ln_1\.bias",
    ),
    "twice": (
        with_tensor("wpe.weight", np.zeros((12, 8), np.float32)),
        r"transformer\.wpe\.weight",
    ),
    "shape": (
        with_tensor("transformer.wpe.weight", np.zeros((8, 12), np.float32)),
        r"transformer\.wpe\.weight.*\(8, 12\).*\(12, 8\)",
    ),
    "integers": (
        with_tensor("transformer.ln_f.bias", np.zeros(8, np.int32)),
        r"transformer\.ln_f\.bias.*I32",
    ),
    "not finite": (
        with_tensor("transformer.ln_f.bias", np.full(8, np.inf, np.float32)),
        r"transformer\.ln_f\.bias",
    ),
    "link outside": (link_outside, "model.safetensors is a link"),
    "shard missing": (
        in_shards(lambda path: os.remove(path / "model-00002-of-00003.safetensors")),
        "some of the files .* model-00001-of-00003",
    ),
    "tensor twice": (in_shards(tensor_twice), "00003-of-00003.safetensors holds"),
    "shard of another": (
        in_shards(lambda path: (path / "model-00001-of-00002.safetensors").touch()),
        "two models: model-00001-of-00002",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_folder_is_refused_by_name(tmp_path, kind):
    change, pattern = BAD[kind]
    folder = tmp_path / "folder"
    make_folder(folder)
    change(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=pattern) as refusal:
        read(folder)
    text = message(refusal.value)
    assert str(folder) in text and text.endswith((".", ").")) and "\n" not in text


def test_an_absent_key_means_what_it_means_to_transformers(tmp_path):
    make_folder(tmp_path, n_inner=None, bos_token_id=None, eos_token_id=None)
    body = body_of(tmp_path)
    assert body.sizes.feed_forward_size == 32
    assert body.settings.activation == "gelu_new"
    assert body.settings.begin_id == 16  # the last word, where the usual one is none


def test_a_binding_that_says_otherwise_is_refused(tmp_path):
    make_folder(tmp_path)
    with pytest.raises(ValueError, match=r"GPT2\.width = 768, and .*config\.json says 8"):
        nnx.eval_shape(lambda: GPT2(nnx.Rngs(0), width=768, folder=str(tmp_path)))


def test_a_number_stored_as_float32_is_the_one_bound(tmp_path):
    make_folder(tmp_path, layer_norm_epsilon=float(np.float32(1e-5)))
    body = nnx.eval_shape(lambda: GPT2(nnx.Rngs(0), epsilon=1e-5, folder=str(tmp_path)))
    assert body.settings.epsilon == float(np.float32(1e-5))
    with pytest.raises(ValueError, match=r"GPT2\.epsilon = 1\.1e-05, and .* says 9\.9"):
        nnx.eval_shape(lambda: GPT2(nnx.Rngs(0), epsilon=1.1e-5, folder=str(tmp_path)))


def test_a_missing_size_names_a_file_that_binds_it():
    with pytest.raises(ValueError, match=r"GPT2\.vocabulary_size is not bound") as caught:
        GPT2(nnx.Rngs(0))
    file = re.search(r"configs/\S+\.gin", str(caught.value))[0]
    assert "GPT2.vocabulary_size = " in (ROOT / file).read_text()


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_type_that_a_folder_says_is_the_one_that_is_written(tmp_path, key):
    make_folder(tmp_path, **{key: "bfloat16"})
    body = nnx.eval_shape(lambda: GPT2(nnx.Rngs(0), folder=str(tmp_path)))
    assert body.folder.config[key] == "bfloat16"
    assert body.config()[key] == "float32"


def test_nothing_is_written_over(tmp_path):
    make_folder(tmp_path / "a")
    with pytest.raises(FileExistsError, match="holds something already"):
        write_folder(tmp_path / "a", {}, {})
    assert HubFolder(str(tmp_path / "a")).tensors
