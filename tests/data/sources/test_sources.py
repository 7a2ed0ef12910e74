"""Sources: which documents, in which order, and the error when there are none."""

import glob
import gzip
import hashlib
import json
import os
import pickle
from pathlib import Path

import fsspec
import pytest

from brt.data.corpus import Corpus
from brt.data.sources.base import matching
from brt.data.sources.files import SourceTree, TextFiles
from brt.data.sources.plain_text import NotPlainText
from brt.data.stores.shards import ListedDocuments
from brt.storage.paths import RemotePath
from brt.storage.regular_files import NotRegular


def fill(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def read(source, split="train"):
    return {document.title: document.data for document in source.documents(split)}


# Text files


def test_a_document_is_a_file_and_comes_in_order_of_its_name(tmp_path):
    fill(tmp_path, {"b.txt": b"two", "a.c.txt": b"one", "c.txt": b"\xff\n\n", "d.md": b"no"})
    fill(tmp_path, {".hidden.txt": b"no", "inner/e.txt": b"no"})
    (tmp_path / "folder.txt").mkdir()
    source = TextFiles(str(tmp_path))
    assert list(read(source).items()) == [("a.c", b"one"), ("b", b"two"), ("c", b"\xff\n\n")]
    assert source.count("train") == 3
    assert read(TextFiles(str(tmp_path), suffix=".md")) == {"d": b"no"}


def test_the_split_chooses_the_folder(tmp_path):
    fill(tmp_path, {"train/a.txt": b"one", "test/b.txt": b"two"})
    source = TextFiles(str(tmp_path / "{split}"))
    assert read(source, "train") == {"a": b"one"}
    assert read(source, "test") == {"b": b"two"}
    assert source.description("train") != source.description("test")


def test_a_pattern_or_a_single_file_may_be_given(tmp_path):
    fill(tmp_path, {"x/a.md": b"1", "x/y/b.md": b"2", "c.md": b"3", "d.txt": b"4"})
    assert list(read(TextFiles(f"{tmp_path}/**/*.md"))) == ["c", "a", "b"]
    assert read(TextFiles(f"{tmp_path}/d.txt")) == {"d": b"4"}


def test_empty_files_are_refused_before_the_first_document(tmp_path):
    fill(tmp_path, {"a.txt": b"one"} | {f"z{n}.txt": b"" for n in range(7)})
    with pytest.raises(ValueError, match=r"TextFiles.skip_empty = True") as caught:
        next(TextFiles(str(tmp_path)).documents("train"))
    assert "z0.txt" in str(caught.value)
    assert read(TextFiles(str(tmp_path), skip_empty=True)) == {"a": b"one"}


@pytest.mark.parametrize("skip_empty", [False, True])
def test_a_fifo_is_named_and_not_called_empty(tmp_path, skip_empty):
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(NotRegular, match=r"a\.txt is a FIFO"):
        TextFiles(str(tmp_path), skip_empty=skip_empty).parts("train")


RECORD = json.dumps({"text": "Once upon a time"}).encode() + b"\n"
OTHER_FORMATS = {
    "gzip": gzip.compress(b"a book"),
    "Zstandard": b"\x28\xb5\x2f\xfd\x04\x58\x39\x01\x02a book",
    "PDF": b"%PDF-1.7\nabc",
    "Parquet": b"PAR1abc",
    "Arrow": b"ARROW1\0\0abc",
    "Arrow stream": b"\xff\xff\xff\xff\x10\0\0\0",
    "binary": b"a book\n" + bytes(2) + b"more",
    "UTF-16": "a book\n".encode("utf-16"),
    "UTF-16 text": "a book\n".encode("utf-16-le"),
    "iconv -f UTF-16BE": "a book\n".encode("utf-16-be"),
    "UTF-32": "a book\n".encode("utf-32"),
    "JSON lines": RECORD * 2,
    "JSON": json.dumps({"text": "word " * 20_000}).encode() + b"\n" + RECORD,
}


def texts_of(path):
    return TextFiles(str(path / "{split}"))


@pytest.mark.parametrize("form", OTHER_FORMATS)
def test_files_that_are_no_plain_text_are_refused(tmp_path, form):
    fill(tmp_path, {"train/a.txt": b"one\n", "train/b.txt": OTHER_FORMATS[form]})
    source = texts_of(tmp_path)
    corpus = Corpus(str(tmp_path / "stores"), source, "bytes")
    with pytest.raises(NotPlainText, match=rf"b\.txt is .*{form}"):
        corpus.prepare("train", quiet=True, workers=1)
    assert os.listdir(tmp_path / "stores") == [".train.lock"]


PLAIN_TEXTS = [
    json.dumps({"name": "a", "list": [{"b": 1}]}, indent=2).encode(),
    json.dumps({"one": "line"}).encode(),
    b'{"a": 1}\n\\begin{document}\n',
    b"{}\n{}\n\\relax",
    b"\xef\xbb\xbfA mark of byte order",
    "Ein Käse".encode("latin-1"),
    "\u4e00\u4e8c".encode(),
    b"\x1b[1mbold\x1b[0m\x0c\r\n",
    b"PK and %PDF- are names",
    b"a" * 2**14 + b"\0",
    b"\n",
]


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_texts_of_any_kind_are_read(tmp_path, text):
    fill(tmp_path, {"train/a.txt": text})
    assert read(texts_of(tmp_path)) == {"a": text}


def test_other_processes_read_documents_from_their_parts(tmp_path):
    fill(tmp_path, {f"{split}/{n}.txt": b"%d" % n for split in ("train", "test") for n in range(5)})
    fill(tmp_path, {"train/pack/a.txt": b"a", "train/pack/b.txt": b"b"})
    path = str(tmp_path / "{split}")
    for source in [TextFiles(path), SourceTree(path, suffixes=(".txt",))]:
        for split in ["train", "test"]:
            parts = pickle.loads(pickle.dumps(source.parts(split)))
            there = pickle.loads(pickle.dumps(source))
            assert [there.read(part) for part in parts] == list(source.documents(split))
            assert source.count(split) == len(parts)
            for part in parts:
                pieces = [Path(path).read_bytes() for path in source.files(part)]
                assert pieces and all(piece in source.read(part).data for piece in pieces)


# Trees of source code


def tree(root, entries=40):
    fill(root, {f"module_{n:02}.py": f"x = {n}\n".encode() for n in range(entries)})
    return root


def test_a_package_is_one_document_with_file_headers(tmp_path):
    tree(tmp_path)
    fill(
        tmp_path,
        {
            "pack/b.py": b"b = 1",
            "pack/a/z.py": b"z = 1\n",
            "pack/a.py": b"a = '\xff'\n",
            "pack/c.py": b"",
            "pack/data.txt": b"no",
            "pack/tests/no.py": b"no",
            "pack/.cache/no.py": b"no",
            "test/no.py": b"no",
            ".git/no.py": b"no",
            "hollow/__init__.py": b"",
        },
    )
    (tmp_path / "linked").symlink_to(tmp_path / "pack")
    (tmp_path / "pack" / "link.py").symlink_to(tmp_path / "module_00.py")
    source = SourceTree(str(tmp_path))
    documents = {}
    for split in ["train", "validation", "test"]:
        documents |= read(source, split)
    assert set(documents) == {"pack"} | {f"module_{n:02}.py" for n in range(40)}
    assert documents["module_07.py"] == b"# file: module_07.py\nx = 7\n"
    assert documents["pack"] == (
        b"# file: pack/a.py\na = '\xff'\n"
        b"# file: pack/a/z.py\nz = 1\n"
        b"# file: pack/b.py\nb = 1\n"
        b"# file: pack/c.py\n"
    )


def test_names_that_are_not_utf8_are_kept(tmp_path):
    (tree(tmp_path) / os.fsdecode(b"caf\xe9.py")).write_bytes(b"x = 1\n")
    source = SourceTree(str(tmp_path))
    splits = [read(source, split) for split in ("train", "validation", "test")]
    found = [split[name] for split in splits for name in split if name.startswith("caf")]
    assert found == [b"# file: caf\xe9.py\nx = 1\n"]


def test_an_article_is_one_file_or_its_folders_files(tmp_path):
    fill(tmp_path, {"train/1.tex": b"one", "train/2/main.tex": b"a", "train/2/appendix.tex": b"b"})
    fill(tmp_path, {"train/2/figure.pdf": b"no", "test/3.tex": b"three"})
    source = SourceTree(str(tmp_path / "{split}"), suffixes=(".tex",), exclude=(), header="")
    assert read(source, "train") == {"1.tex": b"one", "2": b"b\na"}
    assert read(source, "test") == {"3.tex": b"three"}
    assert source.count("train") == 2
    with pytest.raises(ValueError, match=r"SourceTree\.path"):
        next(SourceTree(str(tmp_path / "{split}")).documents("train"))
    headed = SourceTree(str(tmp_path / "{split}"), suffixes=(".tex",), header="%% {path}")
    assert read(headed, "test") == {"3.tex": b"%% 3.tex\nthree"}


@pytest.mark.parametrize("entries, held_out, share", [(3, 0.05, 1), (40, 0.05, 2), (41, 0.2, 8)])
def test_splits_share_the_entries_by_rank_of_their_hash(tmp_path, entries, held_out, share):
    source = SourceTree(str(tree(tmp_path, entries)), held_out=held_out)
    ranked = sorted(
        (hashlib.sha256(b"split:" + name.encode()).hexdigest(), name)
        for name in os.listdir(tmp_path)
    )
    names = [name for _, name in ranked]
    assert list(read(source, "test")) == sorted(names[:share])
    assert list(read(source, "validation")) == sorted(names[share : 2 * share])
    assert list(read(source, "train")) == sorted(names[2 * share :])
    assert source.count("train") == entries - 2 * share


def test_trees_that_cannot_be_split_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        next(SourceTree(str(tmp_path / "missing")).documents("train"))
    with pytest.raises(ValueError, match="2 entries"):
        next(SourceTree(str(tree(tmp_path, 2))).documents("train"))
    with pytest.raises(ValueError, match="no split 'dev'"):
        next(SourceTree(str(tree(tmp_path, 3))).documents("dev"))
    for held_out in [0, 0.5]:
        with pytest.raises(ValueError, match=f"SourceTree.held_out = {held_out}"):
            SourceTree(str(tmp_path), held_out=held_out)


# In a bucket


@pytest.fixture
def bucket(tmp_path):
    """A folder of files, and one of objects with the same content; `memory://test-texts/train`."""
    for number, text in enumerate(["b first", "a second", "c third"]):
        (tmp_path / f"{number}.txt").write_text(text)
        RemotePath(f"memory://test-texts/train/{number}.txt").write_text(text)
    for name in ("train/notes.md", "train/.hidden.txt", "train/deep/9.txt", "empty/0.txt"):
        RemotePath(f"memory://test-texts/{name}").write_text("" if "empty" in name else "not read")
    yield "memory://test-texts"
    fsspec.filesystem("memory").store.clear()


def test_objects_of_a_bucket_are_read_as_files_are(bucket, tmp_path):
    local = TextFiles(str(tmp_path))
    for path in (f"{bucket}/{{split}}", f"{bucket}/{{split}}/", f"{bucket}/tr*/?.txt"):
        remote = TextFiles(path)
        assert list(remote.documents("train")) == list(local.documents("train"))
        assert remote.count("train") == 3 and remote.description("train")["path"] == path
    one = TextFiles(f"{bucket}/{{split}}/1.txt")
    assert [document.data for document in one.documents("train")] == [b"a second"]


def test_a_bucket_without_texts_or_with_empty_ones_is_refused(bucket):
    for path in (f"{bucket}/none", f"{bucket}/none/*.txt"):
        with pytest.raises(FileNotFoundError, match=f"{bucket}/none"):
            TextFiles(path).parts("test")
    with pytest.raises(ValueError, match=r"memory://test-texts/empty/0\.txt"):
        TextFiles(f"{bucket}/empty").parts("test")
    assert TextFiles(f"{bucket}/empty", skip_empty=True).parts("test") == []


@pytest.mark.parametrize("change", ["write", "add", "remove"])
def test_an_object_that_changes_while_it_is_prepared_is_named(bucket, change):
    source = TextFiles(f"{bucket}/train")
    documents = ListedDocuments(source, "train")
    (run,) = documents.runs({})
    documents.check_unchanged()
    assert next(ListedDocuments(source, "train").runs({})).key == run.key
    path = RemotePath(f"{bucket}/train/{4 if change == 'add' else 1}.txt")
    if change == "remove":
        path.unlink()
    else:
        path.write_text("A second")  # as long as before
    with pytest.raises(ValueError, match=rf"{path} (changed|came or went)"):
        documents.check_unchanged()
    assert next(ListedDocuments(source, "train").runs({})).key != run.key


def test_folders_that_links_join_to_a_loop_are_entered_once(tmp_path):
    for name in "abcdefghijklmnopqrst":
        (tmp_path / name).mkdir()
        (tmp_path / name / "up").symlink_to(tmp_path)
        (tmp_path / name / f"{name}.txt").write_text(name)
    parts = TextFiles(f"{tmp_path}/**/*.txt").parts("train")
    assert parts == [f"{tmp_path}/{name}/{name}.txt" for name in "abcdefghijklmnopqrst"]


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/**/*.txt", "**", "**/b/*", "**/b/**", "*"])
def test_a_pattern_finds_what_glob_finds(tmp_path, pattern):
    for path in ("1.txt", "a/2.txt", "a/b/3.txt", "a/b/[*/4.txt", "b/5.md", ".hidden/6.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    found = glob.glob(f"{tmp_path}/{pattern}", recursive=True)
    files = [path for path in matching(f"{tmp_path}/{pattern}") if os.path.isfile(path)]
    assert files == sorted(path for path in found if os.path.isfile(path))
