"""Models as folders: exported, read on another day, and the same text comes out."""

import hashlib
import json
import os
import shlex
import shutil
import sys
import types
from pathlib import Path

import fsspec
import numpy as np
import pytest
from paths import CONFIGS
from safetensors.numpy import load_file, save
from tiny_run import command, differing, leaves, write_config

from brt import evaluate, export, generate, train
from brt.generation.generator import Generator
from brt.generation.sampling import Sampling
from brt.model_folder import load_run, run_config, write_model


@pytest.fixture(scope="module")
def run(folder):
    """A run of the tiny model whose vocabulary is a file, and the folder exported from it."""
    (folder / "words.txt").write_text("a\ne\nt\n<eos>\n<unk>\n")
    line = f'Corpus.vocabulary = "words:{folder}/words.txt"'
    path = write_config(folder, "Trainer.eval_every = 0", line)
    with pytest.MonkeyPatch.context() as patch:
        assert not command(patch, train, f"--gin_file={path}", f"--workdir={folder}/run")
        assert not command(patch, export, f"--workdir={folder}/run", f"--output={folder}/out")
    return folder


@pytest.fixture
def model(run, tmp_path):
    """A copy of the exported folder."""
    return shutil.copytree(run / "out", tmp_path / "model")


@pytest.fixture
def card(run, tmp_path):
    """Exports a copy of the run with other records; the lines of the model's card."""

    def written(**records):
        copy = shutil.copytree(run / "run", tmp_path / "run")
        for name, content in records.items():
            (copy / name).write_text(content)
        experiment, params, step = load_run(str(copy))
        write_model(experiment, params, step, str(copy), str(tmp_path / "out"))
        return (tmp_path / "out" / "README.md").read_text().splitlines()

    return written


def test_a_folder_gives_the_parameters_of_its_run(run):
    _, params, step = load_run(str(run / "run"))
    _, read, read_step = load_run(str(run / "out"))
    assert read_step == step
    (run / "words.txt").rename(run / "gone.txt")  # the folder has its own
    assert not differing(read, params)
    (run / "gone.txt").rename(run / "words.txt")


def test_another_programs_config_beside_checkpoints_is_left_out(run, tmp_path):
    shutil.copytree(run / "run", tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"wandb": 1}')
    assert load_run(str(tmp_path / "run"))[2] == load_run(str(run / "run"))[2]


def test_generate_reads_a_folder(run, monkeypatch, capfd):
    flags = ["--prompt=the", "--max_tokens=8", "--temperature=0"]
    outputs = []
    for source in (f"--workdir={run}/run", f"--model={run}/out", f"--model={run}/run"):
        assert command(monkeypatch, generate, source, *flags) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2] and outputs[0].strip()
    assert command(monkeypatch, generate, f"--workdir={run}/run", f"--model={run}/out") == 1


def test_evaluation_and_studies_read_a_folder(run, tmp_path, monkeypatch, capfd):
    figures = []
    for name in ("run", "out"):
        copy = f"--workdir={shutil.copytree(run / name, tmp_path / name)}"
        assert command(monkeypatch, evaluate, copy) == 0
        assert command(monkeypatch, evaluate, copy, "--study=positions", "--documents=2") == 0
        study = json.loads((tmp_path / name / "studies/positions.json").read_text())
        figures.append(json.loads((tmp_path / name / "evaluation_validation.json").read_text()))
        figures[-1] |= {"curves": [series["y"] for series in study["series"]]}
    assert figures[0] == figures[1] and figures[0]["curves"]
    assert command(monkeypatch, evaluate, copy, "--step=7") == 1
    assert "step 6 alone, not 7" in capfd.readouterr().err


@pytest.fixture
def moved(run, tmp_path, monkeypatch):
    """Moves the exported folder away from the vocabulary file that config.gin names."""
    shutil.copytree(run / "out", tmp_path / "shared")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").write_text("the tea\nthen the ant\n" * 40)
    monkeypatch.chdir(tmp_path / "elsewhere")
    (run / "words.txt").rename(run / "gone.txt")
    yield "../shared"
    (run / "gone.txt").rename(run / "words.txt")


def card_command(folder, name):
    """Returns the arguments after the command that the model card shows for `name`."""
    lines = (Path(folder) / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"python -m brt.{name} "))
    line = line.replace("THIS_FOLDER", folder).replace("YOUR_TEXT", "mine.txt")
    return shlex.split(line)[3:]


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("further", [[], ["--study=positions", "--documents=1"]])
def test_a_moved_folder_evaluates_as_its_card_says(moved, monkeypatch, text, further):
    flags = [f for f in card_command(moved, "evaluate") if text or not f.startswith("--text")]
    if text and further:
        flags.append("--gin.Trainer.stream='documents'")
    assert command(monkeypatch, evaluate, *flags, *further) == 0
    assert command(monkeypatch, generate, *card_command(moved, "generate"), "--max_tokens=2") == 0
    assert load_run(moved)[0].trainer.corpus.vocabulary.size == 5


def test_a_moved_folder_of_a_mixture_has_its_vocabulary(moved):
    lines = [
        "Trainer.corpus = @Mixture()",
        "Mixture.corpora = [@Corpus(), @Corpus()]",
        "Mixture.weights = [1, 1]",
    ]
    experiment, _, _ = load_run(moved, lines)
    assert experiment.trainer.corpus.vocabulary.size == 5


def test_another_vocabulary_than_the_folder_s_is_refused(moved, capfd, monkeypatch):
    other = "--gin.Corpus.vocabulary='bytes'"
    for name, module in {"evaluate": evaluate, "generate": generate}.items():
        assert command(monkeypatch, module, *card_command(moved, name), other) == 1
        assert "Corpus.vocabulary" in capfd.readouterr().err


def test_bfloat16_parameters_are_the_nearest_of_the_run(run, tmp_path, monkeypatch):
    folder = tmp_path / "half"
    flags = f"--workdir={run}/run", f"--output={folder}", "--dtype=bfloat16"
    assert not command(monkeypatch, export, *flags)
    _, params, _ = load_run(str(run / "run"))
    for name, array in leaves(load_run(str(folder))[1]).items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, leaves(params)[name], rtol=2**-8)


def test_a_folder_without_a_parameter_is_refused(model):
    settings = (model / "config.gin").read_text()
    (model / "config.gin").write_text(settings + "\nRecurrentCell.num_states = 6\n")
    with pytest.raises(ValueError, match=r"parameter .*\(6, "):
        load_run(str(model))


HEADS = {
    "another model": ("model_type", "gpt2"),
    "another type of parameters": ("torch_dtype", "float16"),
    "a file elsewhere": ("vocabulary", {"kind": "words", "file": "../x", "fingerprint": ""}),
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_field_of_a_model_folder_is_named(model, kind, is_missing):
    name, value = HEADS[kind]
    head = json.loads((model / "config.json").read_text()) | {name: value}
    if is_missing:
        del head[name]
    (model / "config.json").write_text(json.dumps(head))
    with pytest.raises(ValueError, match=f"config.json.*{name}"):
        load_run(str(model))


SPOILT = {
    "a sparse one": lambda file: os.truncate(file, 40 * 2**30),
    "no file": lambda file: file.unlink(),
    "a FIFO": lambda file: [file.unlink(), os.mkfifo(file)],
}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", SPOILT)
def test_a_damaged_file_of_a_model_folder_is_named(model, kind, name):
    SPOILT[kind](model / name)
    with pytest.raises((ValueError, OSError), match=name):
        load_run(str(model))


def test_parameters_larger_than_memory_are_refused(model):
    size = 10**10
    entry = {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}
    header = json.dumps({"begin_D": entry}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(model / "model.safetensors", 8 + len(header) + 4 * size)
    with pytest.raises(ValueError, match=r"begin_D.*10000000000"):
        load_run(str(model))


def test_a_parameter_that_no_layer_has_is_refused(model):
    tensors = load_file(model / "model.safetensors") | {"layers.9.x": np.zeros(3, np.float32)}
    (model / "model.safetensors").write_bytes(save(tensors))
    with pytest.raises(ValueError, match=r"layers\.9\.x"):
        load_run(str(model))


RECORDS = {
    "evaluation_test.json": '{"split": "test", "step": 1, "bits_per_byte": "x"}',
    "evaluation_own.json": "[" * 100_000,
    "command.txt": "python 'x",
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_that_a_card_would_show_is_named(card, name):
    with pytest.raises(ValueError, match=name):
        card(**{name: RECORDS[name]})


def test_a_card_shows_a_command_on_one_line(card):
    lines = card(**{"command.txt": "python 'a\n## b\x1b[2J'"})
    assert "| command | `python 'a\\n## b\\x1b[2J'` |" in lines


def test_a_folder_has_the_vocabulary_of_a_bucket(run, tmp_path):
    words = "memory://of_model_folder/words.txt"
    with fsspec.open(words, "wb") as file:
        file.write((run / "words.txt").read_bytes())
    binding = f'Corpus.vocabulary = "words:{words}"'
    experiment, params, step = load_run(str(run / "run"), [binding])
    write_model(experiment, params, step, str(run / "run"), str(tmp_path / "out"))
    read, _, _ = load_run(str(tmp_path / "out"))
    fingerprint = experiment.trainer.corpus.vocabulary.fingerprint
    assert read.trainer.corpus.vocabulary.fingerprint == fingerprint


def test_a_card_tells_other_texts_from_the_run_s_split(card):
    records = {}
    for name, bits in {"validation": 1.25, "own_text_mine_txt_validation": 7.5}.items():
        figures = {"split": "validation", "step": 6, "bits_per_byte": bits}
        records[f"evaluation_{name}.json"] = json.dumps(figures)
    rows = [line for line in card(**records) if line.startswith("| evaluation, ")]
    assert sorted(rows) == [
        "| evaluation, own_text_mine_txt_validation | step 6: bits_per_byte 7.5000 |",
        "| evaluation, validation | step 6: bits_per_byte 1.2500 |",
    ]


def test_outside_code_of_a_model_is_allowed_by_name(model, tmp_path, monkeypatch):
    (tmp_path / "own_memories.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    settings = (model / "config.gin").read_text()
    (model / "config.gin").write_text("import own_memories\n" + settings)
    with pytest.raises(ValueError, match="own_memories"):
        Generator.from_folder(str(model))
    Generator.from_folder(str(model), allow_imports=["own_memories"])
    flags = f"--model={model}", "--prompt=the", "--max_tokens=1"
    assert command(monkeypatch, generate, *flags, "--allow_imports=own_memories") == 0


@pytest.mark.parametrize("line", ["import own_memory", "from own_memory import layers"])
def test_the_card_s_commands_allow_the_code_that_it_needs(run, tmp_path, monkeypatch, line):
    (tmp_path / "own_memory").mkdir()
    for name in ("__init__", "layers"):
        (tmp_path / "own_memory" / f"{name}.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(run / "run", "own_run")
    settings = Path("own_run/config.gin").read_text()
    Path("own_run/config.gin").write_text(f"{line}\n{settings}")
    allowed = "--allow_imports=own_memory"
    assert not command(monkeypatch, export, "--workdir=own_run", "--output=out", allowed)
    (tmp_path / "mine.txt").write_text("the tea\n" * 90)
    for name, module in {"evaluate": evaluate, "generate": generate}.items():
        assert command(monkeypatch, module, *card_command("out", name)) == 0


SHIPPED = sorted(path for path in (CONFIGS / "trained").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda path: path.name)
def test_shipped_models_are_what_their_cards_say(folder):
    card = (folder / "README.md").read_text()
    tensors = load_file(folder / "model.safetensors")
    assert hashlib.sha256(save(tensors)).hexdigest() in card
    assert f"{sum(array.size for array in tensors.values()):,}" in card
    experiment, _, step = load_run(f"trained/{folder.name}")
    assert f"{step * experiment.trainer.tokens_per_step:,} tokens" in card


def test_shipped_models_are_small():
    assert sum(file.stat().st_size for file in (CONFIGS / "trained").rglob("*")) < 4 * 2**20


def test_a_wrong_name_is_refused_with_the_known_models():
    with pytest.raises(FileNotFoundError, match=r"trained/recal is.*trained/recall, trained/text"):
        Generator.from_folder("trained/recal")


def test_a_model_of_the_hub_is_downloaded_and_read(run, monkeypatch, tmp_path):
    def snapshot_download(name, local_dir):
        assert name == "owner/name"
        return shutil.copytree(run / "out", local_dir, dirs_exist_ok=True)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_run("hf://owner/name")[2] == load_run(run / "out")[2] > 0


def test_evaluation_names_the_folder_of_a_shipped_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as refused:
        run_config("trained/recall")
    assert str(CONFIGS / "trained/recall") in str(refused.value)


def test_the_shipped_recall_model_remembers_beyond_its_window():
    generator = Generator.from_folder("trained/recall")
    values = [f"v{n}" for n in range(16)]
    filler = "." + " ." * 69  # more than the two windows that attention reaches
    texts = [f". . define k1 {value} {filler} ask k1" for value in values]
    writing = generator.write(generator.read(texts), 1, Sampling(0))
    for _ in writing:
        pass
    assert [text.strip() for text in writing.texts] == values
