"""Bad input: status 1, one sentence that names what to change, and nothing overwritten."""

import ast
import os
import re
import shutil
import sys

import jax
import pytest
from paths import ROOT
from pieces import train_pieces
from tiny_run import PLAIN, build, command, contents, start, write_config

from brt import command_line, evaluate, prepare, train
from brt.__main__ import COMMANDS
from brt.training.records.run_folder import read_metrics


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a config of the smallest model and its token stores."""
    folder = tmp_path_factory.mktemp("prepared")
    build(write_config(folder, *PLAIN))
    return folder


@pytest.fixture
def folder(prepared, tmp_path):
    """A copy of it to spoil; its config reads the copy."""
    shutil.copytree(prepared, tmp_path / "copy")
    path = tmp_path / "copy" / "tiny.gin"
    path.write_text(path.read_text() + f"Corpus.store = '{tmp_path}/copy/stores'\n")
    return tmp_path / "copy"


@pytest.fixture
def error(monkeypatch, capsys):
    """Runs a command that must fail cleanly; the sentence it ends with."""

    def run(module, *arguments, others_complain=False, **options):
        status = command(monkeypatch, module, *arguments, **options)
        err = capsys.readouterr().err
        assert status == 1 and (others_complain or "Traceback" not in err), err
        (sentence,) = re.findall(r"^Error: (.*)\Z", err, re.DOTALL | re.MULTILINE)
        assert "In call to configurable" not in sentence
        return sentence.strip()

    return run


def flags(folder, *bindings, run=True):
    own = [f"--workdir={folder / 'run'}"] if run else []
    return [f"--gin_file={folder / 'tiny.gin'}", *own, *(f"--gin.{b}" for b in bindings)]


# Code that is not brt's.


@pytest.mark.parametrize(
    ("name", "method"),
    [("Building", "__init__(self, rngs, sizes, window)"), ("Reading", "init_cache(self, *of)")],
)
def test_an_error_in_the_authors_code_shows_its_place(
    folder, monkeypatch, tmp_path, error, name, method
):
    module = tmp_path / f"own_{name.lower()}.py"  # gin knows a class of a module for good
    module.write_text(
        "import gin\nfrom brt.models.block_recurrent.memory import LayerMemory\n\n\n"
        "@gin.configurable(denylist=['rngs', 'sizes', 'window'])\n"
        f"class {name}(LayerMemory):\n    name = 'own'\n\n"
        "    def __init__(self, rngs, sizes, window):\n        pass\n\n"
        f"    def {method}:\n        first, second = range(3)\n"
    )
    config = folder / "tiny.gin"
    memories = f"BlockRecurrentTransformer.memories = ((@{name}, (0,)),)\n"
    config.write_text(f"import {module.stem}\n" + config.read_text() + memories)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        sentence = error(train, *flags(folder), f"--allow_imports={module.stem}")
    finally:
        sys.modules.pop(module.stem, None)
    assert f"line 13 of {module}" in sentence and "first, second = range(3)" in sentence
    assert "-v=1" in sentence


# Values that contradict one another.


MODEL = "BlockRecurrentTransformer"
UNFIT = {
    f"{MODEL}.window=7": f"{MODEL}.window = 7",
    f"{MODEL}.window=32": f"{MODEL}.window = 32",
    f"{MODEL}.recurrent_layers=(1,)": "recurrent_layers = (1,)",
    f"{MODEL}.feedback=True": f"{MODEL}.recurrent_layers",
    f"{MODEL}.vocabulary_size=200": "vocabulary_size = 256",
    "Trainer.tokens_per_step=72": "Trainer.tokens_per_step = 72",
    "Trainer.tokens_per_step=1600": "100 batch elements",
    "Trainer.eval_every=2; Evaluation.tokens_per_step=40": "Evaluation.tokens_per_step",
    "TextFiles.suffix='.md'": "suffix",
    "Trainer.model=@Evaluation": "Trainer.model = @Evaluation",
    "Trainer.model=@adamw": "Trainer.model = @adamw",
    f"Trainer.model=@{MODEL}()": f"write @{MODEL}",
    "RecurrentMemoryTransformer.num_memry=4": "RecurrentMemoryTransformer.num_memory",
    "RecurrentMemoryTransformer.width=4": "TransformerXL.width",
    f"evaluation/{MODEL}.dropout=0.0": "bind Evaluation.model",
    f"Evaluation.model=@evaluation/{MODEL}; evaluation/{MODEL}.width=8": "Evaluation.model",
}
"""Bindings, and a text in the error about them."""


@pytest.mark.parametrize("bindings", UNFIT)
def test_values_that_do_not_fit_together_are_named(folder, error, bindings):
    before = contents(folder)
    assert UNFIT[bindings] in error(train, *flags(folder, *bindings.split("; ")))
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("devices", "mesh", "named"),
    [
        ("8", "(-1, 1)", ["4 batch elements", "8 data-parallel"]),
        ("2x4", "(-1, 4)", ["BlockRecurrentTransformer.num_heads = 2", "4 model-parallel"]),
        ("2x4", "(1, 8)", ["Trainer.mesh = (1, 8)", "4 devices"]),
        ("16", "(3, -1)", ["Trainer.mesh = (3, -1)", "16 devices"]),
        ("8", "(-1, -1)", ["Trainer.mesh = (-1, -1)"]),
        ("2x", "(-1, 1)", ["--devices = 2x"]),
        ("0", "(-1, 1)", ["--devices = 0"]),
    ],
)
def test_a_dry_run_names_what_does_not_fit_devices_of_elsewhere(
    folder, error, devices, mesh, named
):
    given = f"--devices={devices}", "--dry_run", f"--gin.Trainer.mesh={mesh}"
    sentence = error(train, *flags(folder), *given)
    assert all(name in sentence for name in named), sentence


@pytest.mark.parametrize(
    ("devices", "mesh", "shape"), [("4", "(-1, 1)", "1 x 4 x 1"), ("2x4", "(-1, 2)", "2 x 2 x 2")]
)
def test_a_dry_run_shows_the_mesh_of_devices_of_elsewhere(
    folder, monkeypatch, capsys, devices, mesh, shape
):
    given = f"--devices={devices}", "--dry_run", f"--gin.Trainer.mesh={mesh}"
    assert command(monkeypatch, train, *flags(folder), *given) == 0
    assert re.search(f"devices, data x fsdp x model +{shape}\n", capsys.readouterr().out)
    assert not (folder / "run").exists()


def test_a_run_on_another_number_of_devices_is_refused(folder, error):
    sentence = error(train, *flags(folder), f"--devices={jax.device_count() + 1}")
    assert "--devices = " in sentence and not (folder / "run").exists()


# Splits.


@pytest.mark.parametrize("split", ["../escaped", ""])
def test_a_split_that_is_a_path_is_refused_before_any_work(folder, error, split):
    before = contents(folder.parent)
    for module, *given in (
        (train, "--dry_run", f"--gin.Evaluation.split='{split}'"),
        (train, f"--gin.Evaluation.split='{split}'"),
        (prepare, f"--splits=train,{split}"),
    ):
        sentence = error(module, *flags(folder, run=module is train), *given)
        assert repr(split) in sentence
        assert sentence.startswith("--splits" if module is prepare else "Evaluation.split")
    assert contents(folder.parent) == before


# Flags.


def test_a_missing_workdir_is_asked_for(folder, error):
    assert "--workdir is missing" in error(evaluate, *flags(folder, run=False))


def test_without_a_workdir_the_folder_is_named_after_the_config(
    folder, error, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, train, *flags(folder, run=False)) == 0
    said = os.path.join("runs", "tiny")
    assert said in capsys.readouterr().out
    assert (tmp_path / said / "config.gin").is_file()
    sentence = error(train, *flags(folder, "Trainer.seed=5", run=False))
    assert "Trainer.seed" in sentence and "--workdir" in sentence
    assert command_line.default_workdir(["configs/a.gin+b.gin", "c/d.gin"]) == "runs/a-b-d"


@pytest.mark.parametrize("workdir", ["file://x", "memory://x", ""])
def test_a_workdir_that_is_no_folder_is_refused(folder, monkeypatch, capsys, tmp_path, workdir):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    given = [*flags(folder, run=False), f"--workdir={workdir}"]
    assert command(monkeypatch, train, *given) in (1, 2)
    assert "--workdir" in (said := capsys.readouterr().err) and "Traceback" not in said
    assert contents(tmp_path) == before


def test_a_workdir_with_the_scheme_of_files_is_a_folder(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = [*flags(folder, run=False), f"--workdir=file://{tmp_path}/run"]
    assert command(monkeypatch, train, *given) == 0
    assert read_metrics(str(tmp_path / "run"))
    assert not (tmp_path / "file:").exists()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--inspect="], "--inspect"),
        (["--runner="], "--runner"),
        (["--document=0"], "--document"),
        (["--inspect=stores/train", "--splits=test"], "--splits"),
        (["--inspect=stores/train", "--shard_bytes=5"], "--shard_bytes"),
        (["--train_vocabulary", "--workers=2"], "--workers"),
        (["--inspect=stores/train", "--describe_vocabulary"], "--describe_vocabulary"),
        (["--describe_vocabulary", "--runner=DirectRunner"], "--runner"),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(folder, error, given, named):
    before = contents(folder)
    assert named in error(prepare, *flags(folder, run=False), *given)
    assert contents(folder) == before


def test_help_lists_the_flags_that_every_command_has():
    """In a process of its own: flags of all commands that are imported are shown together."""
    process = start("brt.prepare", "--help")
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    for name in ("gin_file", "workdir", "distributed"):
        assert f"--{name}:" in shown or f"--[no]{name}:" in shown
    assert "--topology:" not in shown


def test_help_ends_silently_if_nobody_reads_it():
    process = start("brt.prepare", "--help")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_joined_lines(command):
    text = ast.get_docstring(ast.parse((ROOT / "brt" / f"{command}.py").read_text()))
    assert max(map(len, text.split("\n"))) <= 100


def test_a_folder_that_is_no_run_is_named(folder, error):
    (folder / "empty").mkdir()
    assert f"{folder / 'empty'}" in error(evaluate, f"--workdir={folder / 'empty'}")
    sentence = error(train, *flags(folder), f"--load_dir={folder / 'empty'}")
    assert f"{folder / 'empty'}" in sentence


# Documents and vocabularies.

BEFORE_STORES = {"train": (train, ()), "dry run": (train, ("--dry_run",)), "prepare": (prepare, ())}


@pytest.mark.parametrize("mode", BEFORE_STORES)
def test_a_vocabulary_too_large_is_refused_before_stores(folder, error, mode):
    shutil.rmtree(folder / "stores")
    before = contents(folder)
    bindings = f"{MODEL}.vocabulary_size=%vocabulary_size", "vocabulary_size=200"
    module, further = BEFORE_STORES[mode]
    sentence = error(module, *flags(folder, *bindings, run=module is train), *further)
    assert "bytes has 256 ids" in sentence and "bind vocabulary_size = 256" in sentence
    assert contents(folder) == before


@pytest.mark.parametrize("further", [(), ("--dry_run",)])
def test_fewer_documents_than_rows_are_refused_before_stores(folder, error, further):
    shutil.rmtree(folder / "stores")
    before = contents(folder)
    sentence = error(train, *flags(folder, "Trainer.tokens_per_step=160"), *further)
    assert "9 documents" in sentence and "10 batch elements" in sentence
    assert "Trainer.tokens_per_step = 144" in sentence
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("bindings", "named"),
    [
        (["Corpus.vocabulary='none.model'"], "none.model"),
        (["TextFiles.path='/elsewhere'"], "/elsewhere"),
        (["Evaluation.split='test'", "Trainer.eval_every=1"], "texts/test"),
    ],
)
def test_a_dry_run_that_cannot_be_prepared_fails(folder, monkeypatch, capsys, bindings, named):
    shutil.rmtree(folder / "stores")
    shutil.rmtree(folder / "texts" / "test")
    given = flags(folder, f"TextFiles.path='{folder}/texts/{{split}}'", *bindings)
    assert command(monkeypatch, train, *given, "--dry_run") == 1
    printed = capsys.readouterr()
    assert "parameters, all" in printed.out and "Trainer.steps" in printed.out
    assert named in printed.err


def test_a_dry_run_without_a_published_file_fails(folder, error):
    shutil.rmtree(folder / "stores")
    path = folder / "tiny.gin"
    text = path.read_text().replace("TextFiles()", "Enwik8()")
    path.write_text(re.sub(r"TextFiles\..*", "Enwik8.path = '/elsewhere'", text))
    assert "Enwik8.path" in error(train, *flags(folder), "--dry_run")


@pytest.mark.parametrize("missing", ["texts", "stores"])
def test_a_dry_run_of_what_is_prepared_or_can_be_succeeds(folder, monkeypatch, missing):
    given = [f"TextFiles.path='{folder}/texts/{{split}}'"]
    shutil.rmtree(folder / "stores")
    if missing == "texts":
        assert command(monkeypatch, prepare, *flags(folder, *given, run=False)) == 0
        shutil.rmtree(folder / "texts")
    assert command(monkeypatch, train, *flags(folder, *given), "--dry_run") == 0


def test_a_document_that_is_not_utf8_is_named(folder, error):
    model = train_pieces(folder / "pieces.model").path
    pieces = [
        "Corpus.vocabulary=@SentencePieceVocabulary()",
        f"SentencePieceVocabulary.model_file='{model}'",
    ]
    shutil.rmtree(folder / "stores")
    (folder / "texts" / "train" / "00.txt").write_bytes(b"caf\xe9")
    path = f"TextFiles.path='{folder}/texts/{{split}}'"
    before = contents(folder)
    sentence = error(prepare, *flags(folder, *pieces, path, run=False))
    assert "'00' is not UTF-8" in sentence and "byte 3" in sentence
    assert {name for name in contents(folder) if "lock" not in name} == set(before)


def test_an_empty_folder_is_named_and_training_does_not_begin(folder, monkeypatch, capfd):
    shutil.rmtree(folder / "stores")
    (folder / "nothing").mkdir()
    given = flags(folder, f"TextFiles.path='{folder}/nothing'")
    assert command(monkeypatch, train, *given) == 1
    err = capfd.readouterr().err  # of the process that prepares, too
    assert f"{folder}/nothing" in err and "TextFiles.path" in err
    assert "Traceback" not in err
    assert not (folder / "run").exists() and not (folder / "stores" / "train").exists()
