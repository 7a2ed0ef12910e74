"""The page on corpora is true: its files exist, its parts are read, its example runs."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from paths import ROOT

from brt import config
from brt.data.sources import published as published_corpora
from brt.data.sources.selections import GutenbergText
from brt.training.settings import Trainer

README = (ROOT / "brt" / "data" / "README.md").read_text(encoding="utf-8")
CORPORA = sorted(path.name for path in (ROOT / "configs" / "corpora").glob("*.gin"))
LABELLED = sorted(path.name for path in (ROOT / "configs" / "labelled").glob("*.gin"))
CORPUS_OF_FILES = ROOT / "configs" / "corpora" / "text.gin"
SYSTEM = ROOT / "configs" / "small" / "rec_fixed_skip.gin"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_part_of_a_corpus_is_on_the_page_and_every_named_file_exists():
    named = set(re.findall(r"\b\w+\.gin\b", README)) - {"letters.gin", SYSTEM.name}
    assert named - set(LABELLED) == set(CORPORA)
    for name in re.findall(r"`([A-Z]\w+)(?:\.(\w+))?", README):
        if name[0] in config.known_names() and name[1]:
            assert name[1] in config.known_names()[name[0]], name
    assert {"Enwik8", "OneBillionWord"} <= config.known_names().keys()


@pytest.mark.parametrize("name", CORPORA)
def test_a_part_is_read_to_its_last_binding(name):
    path = ROOT / "configs" / "corpora" / name
    config.parse([str(SYSTEM), str(path)])
    Trainer()
    left = set(re.findall(r"^([\w.]+) =", path.read_text(), re.M)) - config.read_bindings().keys()
    assert left == {"vocabulary_size"}  # the model is not built here
    for command in re.findall(r"^#   python -m brt\.prepare (.*)", path.read_text(), re.M):
        files = re.findall(r"--gin_file=(\S+)", command)
        # The pieces are made before the corpus that reads them is whole: from the files alone.
        read = CORPUS_OF_FILES if name in ("books_pieces.gin", "code_pieces.gin") else path
        assert files == [str(file.relative_to(ROOT)) for file in (SYSTEM, read)]


def test_the_books_without_gutenbergs_marks_are_one_override_away():
    command = next(block for block in blocks("bash") if "GutenbergText" in block)
    bindings = [word[6:].split("=", 1) for word in shlex.split(command) if word[:6] == "--gin."]
    assert len(bindings) == 3
    lines = [f"{name} = {value}" for name, value in bindings]
    config.parse([str(SYSTEM), str(ROOT / "configs" / "corpora" / "text.gin")], lines)
    source = Trainer().corpus.source
    assert isinstance(source, GutenbergText) and source.source.path == "books/{split}"


def test_the_counts_of_the_page_are_those_the_readers_check():
    for make, name in [
        (published_corpora.WikiText103, "WikiText-103"),
        (published_corpora.WikiText2, "WikiText-2"),
        (published_corpora.PennTreebank, "Penn Treebank"),
    ]:
        counts = [f"{count:,}" for count in make.tokens.values()]
        assert f"| {name}, tokens | {' | '.join(counts)} |" in README
        if name != "Penn Treebank":
            counts = [f"{count:,}" for count in make.lines.values()]
            assert f"| {name}, lines | {' | '.join(counts)} |" in README
    assert f"{published_corpora.OneBillionWord.held_out_lines:,} | the same" in README
    assert f"{len(published_corpora.OneBillionWord.shards)} shards" in README


def test_a_corpus_of_ones_own_is_eight_lines(tmp_path):
    (code,), (bindings,) = blocks("python"), blocks("gin")
    assert len([line for line in code[code.index("@gin") :].splitlines() if line]) == 8
    (tmp_path / "my_corpus.py").write_text(code)
    (tmp_path / "letters.gin").write_text(bindings)
    (tmp_path / "letters").mkdir()
    letters = [{"title": f"letter {n}", "text": f"Dear {n}th caf\u00e9,\n"} for n in range(9)]
    for split in ["train", "validation", "test"]:
        lines = "".join(json.dumps(letter) + "\n" for letter in letters)
        (tmp_path / "letters" / f"{split}.jsonl").write_text(lines)
    command = blocks("bash")[-1].replace("\\\n", " ").split()[1:]
    files = [word.replace("configs/small", f"{ROOT}/configs/small") for word in command]
    done = subprocess.run(
        [sys.executable, *files], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "stores" / "letters" / "test" / "documents.jsonl").read_text().splitlines()
    assert [json.loads(line)["title"] for line in lines] == [x["title"] for x in letters]
    assert json.loads(lines[3])["bytes"] == len(letters[3]["text"].encode())
