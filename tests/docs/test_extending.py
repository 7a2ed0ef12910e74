"""The examples of docs/extending.md train, are evaluated and write, and keep the laws."""

import functools
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import jax
import numpy as np
import paper_numpy
import pytest
import test_axis_rules
import test_cache_laws
import test_laws
import test_references
import test_sharding_laws
from architectures import (
    ARCHITECTURES,
    SIZES,
    VOCABULARY,
    WINDOW,
    Architecture,
    block_recurrent,
    paper_settings,
)
from gin_settings import bound
from paths import ROOT
from test_sharding_laws import store  # noqa: F401  (a fixture)
from tiny_run import command, quick_environment, write_corpus

from brt import evaluate, generate, prepare, train
from brt.training.records.run_folder import read_metrics

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
LAYER, NUM_BLOCKS = 1, 3
PROMPT = "the tea then the"


def blocks(language):
    """Returns the texts of a language's blocks by their titles; those without have numbers."""
    found = re.findall(rf'^```{language}(?: title="(.*?)")?\n(.*?)^```', PAGE, re.S | re.M)
    return {title or number: text for number, (title, text) in enumerate(found)}


def write_examples(folder):
    """Writes the Python and gin blocks of the page to the files that their titles name."""
    for title, block in (blocks("python") | blocks("gin")).items():
        (folder / title).write_text(block, encoding="utf-8")


# The examples keep the laws, as the architectures of brt do.


class SummariesReader(paper_numpy.Reader):
    """Plain loops: the mean keys and values of the last blocks are the states of one layer."""

    def begin(self):
        memory = super().begin()
        zeros_SHK = np.zeros((NUM_BLOCKS, SIZES["num_heads"], SIZES["head_size"]))
        memory[LAYER]["summaries"] = zeros_SHK, zeros_SHK
        return memory

    def own_memory(self, layer, Q_WHK, K_WHK, V_WHK, self_WHK, memory, x_WD):
        if "summaries" not in memory:
            return self_WHK, None, {}
        means = sum(K_WHK) / len(K_WHK), sum(V_WHK) / len(V_WHK)
        pairs = zip(memory["summaries"], means)
        after = tuple(np.stack([*old_SHK[1:], mean_HK]) for old_SHK, mean_HK in pairs)
        return self_WHK, memory["summaries"], {"summaries": after}


class MeanReader:
    """Plain loops: a mean of embeddings, of which every dimension decays at its own rate."""

    def __init__(self, params):
        self.params = params

    def begin(self):
        return np.zeros(len(self.params["begin_D"]))

    def read(self, tokens_T, mean_D):
        keep_D = 1 / (1 + np.exp(-self.params["decay_D"]))
        logits = []
        for t in tokens_T:
            x_D = self.params["begin_D"] if t < 0 else self.params["embedding_VD"][t]
            mean_D = keep_D * mean_D + (1 - keep_D) * x_D
            logits.append(self.params["embedding_VD"] @ mean_D)
        return np.stack(logits), mean_D


@pytest.fixture(scope="module")
def entries(folder):
    """An entry of `ARCHITECTURES` for each example, from the text of the page."""
    write_examples(folder)
    sys.path.insert(0, str(folder))
    try:
        summaries = importlib.import_module("my_memories").BlockSummaries
        mean = importlib.import_module("my_model").DecayingMean
    finally:
        sys.path.remove(str(folder))
    memory = functools.partial(summaries, num_blocks=NUM_BLOCKS)
    return {
        "my_memories": block_recurrent(
            memories=((memory, (LAYER,)),),
            reference=lambda params: SummariesReader(params, paper_settings()),
            cleared=(LAYER,),
            within=True,
            reach=WINDOW * (2 + NUM_BLOCKS) + WINDOW - 1,
        ),
        "my_model": Architecture(
            build=lambda rngs, **overrides: mean(
                rngs, **dict(vocabulary_size=VOCABULARY, width=12) | overrides
            ),
            reference=MeanReader,
            cut_invariant=True,
            cleared=(0,),
            within=True,
            divisible=dict(vocabulary_size=256, width=16),
        ),
    }


def laws():
    """Every law that is checked of an architecture by its name."""
    modules = test_axis_rules, test_cache_laws, test_references, test_laws, test_sharding_laws
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            arguments = inspect.signature(function).parameters.keys()
            # Not of the model: shapes of two architectures.
            if "shape" in arguments:
                continue
            if name.startswith("test_") and "name" in arguments:
                yield pytest.param(module, function, id=name)


@pytest.mark.parametrize("example", ["my_memories", "my_model"])
@pytest.mark.parametrize(("module", "law"), list(laws()))
def test_an_example_keeps_the_law(module, law, example, entries, request, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, example, entries[example])
    arguments = {"name": example, "mesh_shape": (2, 4), "dtype": "float64", "tolerance": 1e-9}
    wanted = inspect.signature(law).parameters.keys()
    arguments |= {
        name: request.getfixturevalue(name) for name in wanted if name in ("store", "tmp_path")
    }
    with jax.enable_x64(module is test_laws):
        law(**{name: arguments[name] for name in wanted})


def test_the_laws_are_all_here():
    names = {case.id for case in laws()}
    assert len(names) >= 20
    assert {
        "test_decoding_token_by_token_is_the_segment_pass",
        "test_cutting_at_block_boundaries_changes_nothing",
        "test_rows_are_strangers",
        "test_every_cache_says_its_shape_in_its_name",
        "test_every_logit_follows_from_the_equations",
        "test_the_mesh_changes_no_batch_and_no_loss",
    } <= names


# The commands of the page, in the reader's folder, on the reader's text.

SIZES_OF_BLOCKS = dict(num_layers=2, width=16, num_heads=2, head_size=4, feed_forward_size=24)
TINY = {
    "my_experiment": bound("BlockRecurrentTransformer", window=8, **SIZES_OF_BLOCKS),
    "my_model": bound("DecayingMean", width=8),
}
OF_ANY = (
    *bound("Trainer", segment_length=16, tokens_per_step=64, log_every=1, eval_every=0),
    "cosine.warmup_steps = 1",
)


@pytest.mark.usefixtures("entries")  # imports the modules of the page
@pytest.mark.parametrize("example", TINY)
def test_an_example_trains_resumes_is_evaluated_and_generates(
    example, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_examples(tmp_path)
    write_corpus(tmp_path / "books")
    (shown,) = (block for block in blocks("bash").values() if f"{example}.gin" in block)
    words = shlex.split(shown.replace("\\\n", " "))[3:]
    (allowed,) = (word for word in words if word.startswith("--allow_imports="))
    (workdir,) = (word for word in words if word.startswith("--workdir="))
    folder = tmp_path / workdir.removeprefix("--workdir=")

    def done(module, *arguments):
        assert not command(monkeypatch, module, *arguments), capsys.readouterr().err
        return capsys.readouterr().out

    tiny = [f"--gin_bindings={line}" for line in TINY[example] + OF_ANY]
    for steps in (2, 3):
        done(train, *words, *tiny, f"--gin.Trainer.steps={steps}", "--allow_changes")
    records = read_metrics(str(folder))
    losses = {record["step"]: record["train/loss"] for record in records if "train/loss" in record}
    assert losses.keys() == {1, 2, 3} and np.isfinite(list(losses.values())).all()

    done(evaluate, workdir, allowed, '--gin.Evaluation.split="test"')
    figures = json.loads((folder / "evaluation_test.json").read_text())
    assert figures["step"] == 3 and figures["loss"] != figures["cleared_loss"]

    given = (workdir, allowed, "--temperature=0")
    whole = done(generate, *given, f"--prompt={PROMPT}", "--max_tokens=24")
    saved = ("--max_tokens=12", "--save_memory=tea.memory")
    first = done(generate, *given, f"--prompt={PROMPT}", *saved)
    second = done(generate, *given, "--load_memory=tea.memory", "--max_tokens=12")
    assert first[:-1] + second == whole


# What gin knows.


def write_config(folder, imports=""):
    """The config of the example of a memory, with this for its line `import my_memories`."""
    config = blocks("gin")["my_experiment.gin"]
    assert config.count("import my_memories\n") == 1
    path = folder / "my_experiment.gin"
    path.write_text(config.replace("import my_memories\n", imports), encoding="utf-8")
    return path


def memory_code():
    return blocks("python")["my_memories.py"]


def dry_run(folder, environment):
    """Runs a command in a folder, as a reader would."""
    allowed = "--allow_imports=my_memories,of_mine.memories"
    line = [sys.executable, "-m", "brt.train", "--gin_file=my_experiment.gin", "--dry_run", allowed]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_class_among_the_memories_is_known_at_once(tmp_path):
    for name in ("brt", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    write_config(tmp_path)
    (tmp_path / "brt/models/block_recurrent/block_summaries.py").write_text(memory_code())
    after = dry_run(tmp_path, quick_environment() | {"PYTHONPATH": ""})
    assert "books/train" in after.stderr  # which is not there
    assert re.search(r"BlockSummaries\.num_blocks += 4", after.stdout)


def test_a_class_elsewhere_is_known_by_its_import(tmp_path):
    (tmp_path / "elsewhere" / "of_mine").mkdir(parents=True)
    (tmp_path / "elsewhere" / "of_mine" / "memories.py").write_text(memory_code())
    write_config(tmp_path, "import of_mine.memories\n")
    environment = quick_environment()
    path = os.pathsep.join([str(tmp_path / "elsewhere"), environment["PYTHONPATH"]])
    found = dry_run(tmp_path, environment | {"PYTHONPATH": path})
    assert re.search(r"BlockSummaries\.num_blocks += 4", found.stdout)


def test_the_data_source_of_the_page_is_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_examples(tmp_path)
    (tmp_path / "letters").mkdir()
    letters = [{"title": f"letter {n}", "text": f"Dear {n}th café,\n"} for n in range(9)]
    for split in ("train", "validation", "test"):
        lines = "".join(json.dumps(letter) + "\n" for letter in letters)
        (tmp_path / "letters" / f"{split}.jsonl").write_text(lines)
    (shown,) = (block for block in blocks("bash").values() if "letters.gin" in block)
    words = shlex.split(shown.replace("\\\n", " "))[3:]
    assert not command(monkeypatch, prepare, *words), capsys.readouterr().err
    (documents,) = (tmp_path / "stores" / "own_letters" / "test").rglob("documents.jsonl")
    lines = documents.read_text().splitlines()
    assert [json.loads(line)["title"] for line in lines] == [x["title"] for x in letters]
    assert json.loads(lines[3])["bytes"] == len(letters[3]["text"].encode())
