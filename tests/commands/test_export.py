"""A run on a pretrained folder from its first step to the folder that it is exported as."""

import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from gin_settings import bound
from safetensors.numpy import load_file
from tiny_folders import GPT2, make_folder
from tiny_run import build, command, differing, one_device, records, write_config

from brt import evaluate, export, generate, train
from brt.model_folder import load_run
from brt.pretrained.folder import HubFolder

CONFIG = dict(GPT2, vocab_size=260, n_positions=24, bos_token_id=259, eos_token_id=259)
LINES = (
    *bound("Trainer", model="@PretrainedLanguageModel", segments_per_step=2, eval_every=6),
    *("Trainer.remat_segments = True", "PretrainedLanguageModel.overlap = 3"),
    *("PretrainedLanguageModel.memories = (@PooledMemory,)", "PooledMemory.hidden = (5,)"),
)


@pytest.fixture(scope="module")
def places(folder):
    """A pretrained folder, a config that reads it, and a run of six steps."""
    make_folder(folder / "pretrained", CONFIG)
    (folder / "pretrained" / "merges.txt").write_text("#version: 0.2\n")
    lines = (*LINES, f'Pretrained.folder = "{folder}/pretrained"')
    path = write_config(folder, *lines)
    with pytest.MonkeyPatch.context() as patch:
        arguments = f"--gin_file={path}", f"--workdir={folder}/run"
        build(path)
        assert not command(patch, train, *arguments)
        assert not command(patch, export, f"--workdir={folder}/run", f"--output={folder}/out")
    yield folder
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()


def test_a_run_begins_with_the_parameters_of_the_folder(places):
    experiment, _, _ = load_run(str(places / "run"))
    begun = experiment.jit_init(one_device())()
    names = experiment.model.body.names()
    written = names.write(begun.params["body"])
    for name, array in load_file(places / "pretrained/model.safetensors").items():
        np.testing.assert_array_equal(written[name], array)
    drawn = experiment.init_params()["body"]
    given = experiment.jit_init(one_device())(begun.params | {"body": drawn})
    assert not differing(given.params["body"], drawn)


def test_what_was_trained_is_exported_bit_for_bit(places):
    experiment, params, step = load_run(str(places / "run"))
    assert step == 6
    written = load_file(places / "out/model.safetensors")
    before = load_file(places / "pretrained/model.safetensors")
    assert written.keys() == before.keys()
    for name, array in experiment.model.body.names().write(params["body"]).items():
        np.testing.assert_array_equal(written[name], array)
    moved = [name for name in written if not np.array_equal(written[name], before[name])]
    assert "transformer.h.1.attn.c_attn.weight" in moved
    beside = load_file(places / "out/brt_memory.safetensors")
    np.testing.assert_array_equal(
        beside["memories.0.mixture_L"], params["memories"][0]["mixture_L"]
    )
    assert len(beside) == 5
    assert (places / "out/brt_memory.gin").read_text() == (places / "run/config.gin").read_text()
    assert (places / "out/merges.txt").is_file()
    assert json.loads((places / "out/config.json").read_text()) == CONFIG
    assert HubFolder(str(places / "out")).tensors.keys() == written.keys()


@pytest.mark.slow
def test_the_run_is_evaluated_and_writes_text(places, monkeypatch, capfd):
    run = f"--workdir={places}/run"
    assert not command(monkeypatch, evaluate, run, "--gin.Evaluation.split='test'")
    assert "cleared" in capfd.readouterr().out
    # The same parameters at another overlap, in windows as long as before.
    other = "--gin.PretrainedLanguageModel.overlap=8", "--gin.Trainer.segment_length=11"
    tokens = "--gin.Trainer.tokens_per_step=22"
    assert not command(monkeypatch, evaluate, run, *other, tokens, "--gin.Evaluation.split='test'")
    capfd.readouterr()

    def written(count, *flags):
        greedy = f"--max_tokens={count}", "--temperature=0"
        assert not command(monkeypatch, generate, run, *flags, *greedy)
        return capfd.readouterr().out.removesuffix("\n")

    prompt, memory = "--prompt=tea then tea", places / "a.memory"
    first = written(9, prompt, f"--save_memory={memory}")
    then = written(9, f"--load_memory={memory}")
    assert first + then == written(18, prompt)
    norms = [record["train/pooled_norm"] for record in records(places / "run", "train/pooled_norm")]
    assert norms and all(norm > 0 for norm in norms)


def test_nothing_is_exported_over_something(places, monkeypatch, capfd):
    out = places / "out"
    before = {name: os.path.getmtime(out / name) for name in os.listdir(out)}
    status = command(monkeypatch, export, f"--workdir={places}/run", f"--output={out}")
    assert status == 1 and "holds something already" in capfd.readouterr().err
    assert {name: os.path.getmtime(out / name) for name in os.listdir(out)} == before
    assert command(monkeypatch, export, f"--workdir={places}/run") == 1
    assert "--output is missing" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_narrower_type_is_written_and_read(places, tmp_path, monkeypatch, dtype):
    arguments = f"--workdir={places}/run", f"--output={tmp_path}/out", f"--dtype={dtype}"
    assert not command(monkeypatch, export, *arguments)
    narrow, wide = (HubFolder(str(place / "out")) for place in (tmp_path, places))
    assert narrow.config["dtype"] == dtype and narrow.tensors.keys() == wide.tensors.keys()
    for name, info in narrow.tensors.items():
        assert info.dtype == {"bfloat16": "BF16", "float16": "F16"}[dtype]
        rounded = np.float32(jnp.asarray(wide.read(name), dtype))
        np.testing.assert_array_equal(narrow.read(name), rounded)


def test_a_model_without_a_pretrained_body_has_no_backbone(tmp_path):
    assert export.backbone_of(build(write_config(tmp_path)).experiment.model)[0] is None


def test_the_exported_folder_writes_the_text_of_its_run(places, monkeypatch, capfd):
    texts = []
    for source in (f"--workdir={places}/run", f"--model={places}/out"):
        flags = "--prompt=tea then tea", "--max_tokens=9", "--temperature=0"
        assert not command(monkeypatch, generate, source, *flags)
        texts.append(capfd.readouterr().out)
    assert texts[0] == texts[1] and texts[0].strip()
