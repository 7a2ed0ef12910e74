"""Corpora: prepared once, opened anywhere, and refused when they do not fit the config."""

import errno
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from paths import ROOT
from stores import Texts, Upper

from brt.data.corpus import Corpus, StoreMissing
from brt.data.sources.by_position import SplitByPosition
from brt.data.sources.files import SourceTree, TextFiles
from brt.data.sources.rows import JsonLines, Parquet
from brt.data.sources.selections import GutenbergText
from brt.data.sources.text import Text
from brt.data.stores import store_cache
from brt.data.tasks.recall import RecallTask
from brt.data.vocabularies.base import ByteVocabulary


def a_text(**settings):
    """A source of one text, with these settings."""
    source = Texts(train=[b"text"])
    source.settings = lambda: settings
    return source


def books(folder, count=3):
    """A folder of so many texts."""
    folder.mkdir()
    for n in range(count):
        (folder / f"{n:03}.txt").write_text(f"book {n}" * 50)
    return str(folder)


@pytest.mark.parametrize("has_affinity", [True, False])
def test_a_split_is_prepared_then_opened(has_affinity, tmp_path, monkeypatch):
    if not has_affinity:  # as on macOS
        monkeypatch.delattr(os, "sched_getaffinity")
    corpus = Corpus(str(tmp_path / "stores"), a_text(), ByteVocabulary())
    assert corpus.path("train") == tmp_path / "stores" / "train"
    assert not corpus.exists("train")
    corpus.prepare("train", quiet=True)
    assert corpus.exists("train") and not corpus.exists("test")
    store = corpus.open("train")
    assert bytes(store.tokens(0).tolist()) == b"text"
    assert store.manifest["source"] == {"source": "Texts", "split": "train"}
    assert corpus.vocabulary.size == 256


def test_a_store_is_prepared_on_a_disk_without_locks(tmp_path, monkeypatch, caplog):
    def flock(file, flags):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(store_cache.fcntl, "flock", flock)
    corpus = Corpus(str(tmp_path), a_text(), ByteVocabulary())
    corpus.prepare("train", quiet=True)
    assert corpus.exists("train") and f"{tmp_path} has no locks" in caplog.text


def test_a_missing_store_gives_the_command(tmp_path):
    with pytest.raises(StoreMissing, match=r"python -m brt\.prepare") as caught:
        Corpus(str(tmp_path), a_text(), ByteVocabulary()).open("train")
    assert str(tmp_path / "train") in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("method", ["open", "prepare"])
def test_a_store_of_another_tokenizer_is_refused_naming_both(tmp_path, method):
    Corpus(str(tmp_path), a_text(), ByteVocabulary()).prepare("train", quiet=True)
    other = Corpus(str(tmp_path), a_text(), Upper())
    with pytest.raises(ValueError, match=r"bytes of size 256 .* upper of size"):
        getattr(other, method)("train")


@pytest.mark.parametrize("method", ["open", "prepare"])
def test_another_sources_store_is_refused_by_the_difference(tmp_path, method):
    Corpus(str(tmp_path), a_text(a=(1,), b=2, c=3), Upper()).prepare("train", quiet=True)
    Corpus(str(tmp_path), a_text(a=(1,), b=2, c=3), Upper()).open("train")
    other = Corpus(str(tmp_path), a_text(a=(1,), b=4, d=5), Upper())
    with pytest.raises(ValueError, match="another source") as caught:
        getattr(other, method)("train")
    sentence = str(caught.value)
    assert "b is 2 in" in sentence
    assert "c is 3 in" in sentence
    assert "d is None in" in sentence
    assert "a is" not in sentence


def test_a_store_knows_its_texts_by_name_and_size_not_by_path(tmp_path, monkeypatch):
    for folder, text in (("a", "one text"), ("b/c", "same size"[:8]), ("d", "another size")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.txt").write_text(text)
    (tmp_path / "a" / "y.txt").write_text("one text")
    monkeypatch.chdir(tmp_path)

    def corpus(path):
        return Corpus("stores", TextFiles(path), "bytes")

    corpus("a/x.txt").prepare("train", quiet=True)
    for path in ("a/x.txt", "./a/x.txt", str(tmp_path / "a/x.txt"), "b/c/x.txt"):
        assert corpus(path).open("train").num_documents == 1
    for path in ("d/x.txt", "a/y.txt", "a", "gone/x.txt"):
        with pytest.raises(ValueError, match=path):
            corpus(path).open("train")


def test_a_store_opens_where_its_source_is_gone(tmp_path):
    folder = books(tmp_path / "books")

    def corpora(suffixes):
        for source in (TextFiles(folder), SourceTree(folder, suffixes)):
            yield Corpus(str(tmp_path / type(source).__name__), source, "bytes")

    for corpus in corpora((".txt",)):
        corpus.prepare("train", quiet=True)
    shutil.rmtree(folder)
    for corpus in corpora([".txt"]):
        corpus.open("train")


@pytest.fixture
def warnings(monkeypatch):
    """Which stores have been warned of since it was last asked."""
    logged = []
    monkeypatch.setattr(
        "brt.data.corpus.logging.warning", lambda form, *values: logged.append(form % values)
    )

    def take():
        taken = [warning for warning in logged if "may no longer be" in warning]
        logged.clear()
        return taken

    return take


@pytest.mark.parametrize("wrap", [lambda source: source, GutenbergText])
def test_texts_changed_since_preparation_are_warned_of(tmp_path, warnings, wrap):
    source = TextFiles(books(tmp_path / "books"))
    corpus = Corpus(str(tmp_path / "s"), wrap(source), "bytes")
    later = time.time_ns() + 10**12

    def said():
        corpus.prepare("train", quiet=True, workers=1)
        return warnings()

    assert said() == [] and said() == []
    os.utime(tmp_path / "books" / "001.txt", ns=(later, later))
    (warning,) = said()
    assert f"{tmp_path}/books/001.txt is newer" in warning and f"{tmp_path}/s/train may" in warning
    assert "Corpus.store" in warning
    (tmp_path / "books" / "001.txt").unlink()
    (warning,) = said()
    assert "2 documents" in warning and "3" in warning
    for path in (tmp_path / "books").iterdir():
        path.unlink()
    assert said() == []  # as on a machine that only trains


ROWS = {
    "rows": JsonLines,
    "a slice": lambda path: SplitByPosition(JsonLines(path)),
    "changed": lambda path: GutenbergText(JsonLines(path)),
    "--text": Text,
}


@pytest.mark.parametrize("form", ROWS)
def test_rows_of_a_prepared_store_are_not_read_again(form, tmp_path, warnings, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a line of text\\n"}\n' * 30)
    corpus = Corpus(str(tmp_path / "s"), ROWS[form](str(rows)), "bytes")
    corpus.prepare("train", quiet=True, workers=1)
    monkeypatch.setattr(JsonLines, "_lines", None)
    corpus.prepare("train", quiet=True)
    assert warnings() == []
    os.utime(rows, ns=(later := time.time_ns() + 10**12, later))
    corpus.prepare("train", quiet=True)
    (warning,) = warnings()
    assert f"{rows} is newer" in warning


def test_a_store_of_tables_needs_no_library_of_tables(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"text": ["a line of text\n"] * 30})
    parquet.write_table(table, tmp_path / "a.parquet")
    corpus = Corpus(str(tmp_path / "s"), Parquet(str(tmp_path / "a.parquet")), "bytes")
    corpus.prepare("train", quiet=True, workers=1)
    for module in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, module, None)
    corpus.prepare("train", quiet=True)
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    moved = Corpus(str(tmp_path / "s"), Parquet(str(tmp_path / "b.parquet")), "bytes")
    with pytest.raises(ValueError, match="another source"):
        moved.open("train")


def test_a_vocabulary_foreign_to_the_tokens_is_refused(tmp_path):
    corpus = Corpus(str(tmp_path / "s"), RecallTask(num_documents=3), ByteVocabulary())
    with pytest.raises(ValueError, match=r"RecallTask .*Corpus\.vocabulary is bytes"):
        corpus.prepare("train", quiet=True)
    assert not (tmp_path / "s").exists()


def test_a_source_may_bring_its_vocabulary(tmp_path):
    task = RecallTask(num_documents=3)
    corpus = Corpus(str(tmp_path), task)
    corpus.prepare("train", quiet=True)
    assert corpus.vocabulary.size == task.vocabulary.size
    store = corpus.open("train")
    for d, document in enumerate(task.documents("train")):
        assert np.array_equal(store.tokens(d), document.tokens)
        assert np.array_equal(store.weights(d), document.weights)
    with pytest.raises(ValueError, match=r"Texts .* Corpus\.vocabulary"):
        Corpus(str(tmp_path), a_text())


def test_processes_that_prepare_at_once_leave_one_good_store(tmp_path):
    folder = books(tmp_path / "books", 300)
    program = """if True:
        import sys
        from brt.data.corpus import Corpus
        from brt.data.sources.files import TextFiles
        from brt.data.vocabularies.base import ByteVocabulary
        print("ready", flush=True)
        sys.stdin.readline()
        Corpus(sys.argv[1], TextFiles(sys.argv[2]), ByteVocabulary()).prepare("train")
        assert not {"jax", "tensorflow", "sentencepiece"} & set(sys.modules)
    """
    command = [sys.executable, "-c", program, str(tmp_path / "stores"), folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(3)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0]
    store = Corpus(str(tmp_path / "stores"), TextFiles(folder), "bytes").open("train")
    assert store.titles() == [f"{n:03}" for n in range(300)]
    assert {path.name for path in (tmp_path / "stores").iterdir()} == {"train", ".train.lock"}
