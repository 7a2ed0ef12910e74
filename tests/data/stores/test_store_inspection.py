"""Inspection: the figures of a store are right, and damage is found."""

import json

import gin
import pytest
from stores import rehash
from tiny_run import command

from brt import prepare
from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.stores.inspection import LISTED, describe, document_ends
from brt.data.stores.token_store import TokenStore
from brt.data.tasks.mqar import MultiQueryRecall


@pytest.fixture
def store(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"b{number:02}.txt").write_text(f"book {number} é " * (number + 1))
    corpus = Corpus(str(tmp_path / "stores"), TextFiles(str(tmp_path / "text")), "bytes")
    corpus.prepare("train", quiet=True)
    return corpus.open("train")


def test_the_table_names_counts_and_the_first_documents(store):
    text = describe(store)
    rows = dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())
    rows = {name.strip(): value.strip() for name, value in rows.items()}
    assert rows["documents"] == "12"
    assert rows["tokens"] == rows["bytes"] == f"{store.num_tokens:,}"
    assert rows["words"] == str(3 * sum(range(1, 13)))
    assert rows["bytes per token"] == "1.0000"
    assert rows["sha256: offsets.npy"] == store.manifest["hashes"]["offsets.npy"]
    table = text.split("\n\n")[1].splitlines()
    assert len(table) == 1 + LISTED + 1
    assert len({line.rindex(" b0") for line in table[1 : 1 + LISTED]}) == 1  # aligned
    assert table[-1].startswith("and 2 more; the shortest has 10 tokens")


def test_both_ends_of_a_document_are_shown_as_text(store):
    vocabulary = Corpus("unused", TextFiles("unused"), "bytes").vocabulary
    text = document_ends(store, "b11", vocabulary)
    assert "document 11, 'b11': 132 tokens" in text
    assert text == document_ends(store, "11", vocabulary)
    whole = ("book 11 é " * 12).encode()
    assert repr(whole[:64].decode("utf-8", "replace")) in text
    assert repr(whole[-64:].decode("utf-8", "replace")) in text
    assert "all 10" in document_ends(store, "0", vocabulary)
    assert "'" not in document_ends(store, "b01", None).split("\n", 1)[1]
    with pytest.raises(ValueError, match=r"no document 'b12': .* from 0 to 11"):
        document_ends(store, "b12", vocabulary)


@pytest.mark.parametrize("given", [(), ('--gin.Corpus.vocabulary="bytes"',)])
def test_bytes_or_a_vocabulary_alone_show_text(store, given, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(store.folder.parent))
    flags = f"--inspect=~/{store.folder.name}", "--document=b11", *given
    assert command(monkeypatch, prepare, *flags) == 0
    assert "'book 11 é book" in capsys.readouterr().out
    gin.clear_config()


def test_titles_of_others_change_nothing_on_a_terminal(store):
    path = store.folder / "shard-00000" / "documents.jsonl"
    lines = path.read_text().splitlines()
    titles = ["\x1b[2Jx", "a\nverified: b", "\ud800x", "é", "\x9b31m", "a\u202eb"]
    for number, title in enumerate(titles):
        lines[number] = json.dumps(json.loads(lines[number]) | {"title": title})
    path.write_text("\n".join(lines) + "\n")
    rehash(store.folder)
    store = TokenStore(store.folder)
    store.manifest["vocabulary"]["name"] = "\x1b[2Jx"
    shown = describe(store)
    assert all(c.isprintable() or c == "\n" for c in shown) and "é" in shown
    assert "\\x1b[2Jx" in shown and "\\ud800x" in shown and "a\\nverified: b" in shown
    assert all(c.isprintable() or c == "\n" for c in document_ends(store, "0", None))


def test_a_tasks_documents_are_symbols_only_with_its_config(tmp_path, monkeypatch, capsys):
    settings = {"lengths": (8,), "num_pairs": (2,), "vocabulary_size": 16}
    task = MultiQueryRecall(num_documents=1, num_held_out=1, **settings)
    corpus = Corpus(str(tmp_path / "stores"), task)
    corpus.prepare("train", quiet=True)
    store = corpus.open("train")
    decoded = repr(task.vocabulary.decode(store.tokens(0)))
    config = tmp_path / "task.gin"
    bound = [f"MultiQueryRecall.{name} = {value}" for name, value in settings.items()]
    binding = f"Corpus.store = {str(tmp_path / 'stores')!r}"
    config.write_text("\n".join(["Corpus.source = @MultiQueryRecall()", binding, *bound]))
    shown = []
    for given in ((), (f"--gin_file={config}",)):
        flags = f"--inspect={store.folder}", "--document=0", *given
        assert command(monkeypatch, prepare, *flags) == 0
        shown.append(decoded in capsys.readouterr().out)
    assert shown == [False, True]
