"""Token stores: what is written is what is read, whole or not at all."""

import errno
import hashlib
import json
import os
import random

import numpy as np
import pytest
from stores import Ids as AnyIds

from brt import progress
from brt.data.sources.base import Document
from brt.data.stores import shards, writer
from brt.data.stores.own_folders import claim
from brt.data.stores.token_store import TokenStore, write_store
from brt.data.vocabularies.base import ByteVocabulary
from brt.data.vocabularies.characters import CharacterVocabulary
from brt.data.vocabularies.words import WordVocabulary

SOURCE = {"source": "test"}
TEXTS = ["one two", " three\n\nfour\tfive ", "é€𝄞", "x"]


class Ids(AnyIds):
    """A vocabulary of any size."""

    size = 0

    def __init__(self, size):
        self.size = size


def texts():
    return [Document(f"book {n}", text.encode()) for n, text in enumerate(TEXTS)]


def ids(*tokens, weights=None):
    return Document("ids", tokens=np.array(tokens), weights=weights)


def write(folder, documents, vocabulary=None, **options):
    vocabulary = vocabulary or ByteVocabulary()
    return write_store(folder, documents, vocabulary, SOURCE, quiet=True, **options)


@pytest.fixture
def store(tmp_path):
    write(tmp_path / "train", texts())
    return TokenStore(tmp_path / "train")


def test_every_document_comes_back(store):
    data = [text.encode() for text in TEXTS]
    assert [store.tokens(d).tobytes() for d in range(4)] != data  # two bytes a token
    assert [bytes(store.tokens(d).tolist()) for d in range(4)] == data
    assert store.lengths_D.tolist() == [len(d) for d in data]
    assert store.lengths_D.dtype == np.int64
    assert store.titles() == ["book 0", "book 1", "book 2", "book 3"]
    assert (store.num_documents, store.num_tokens) == (4, sum(len(d) for d in data))


def test_ranges_are_cut_at_the_document(store):
    data = TEXTS[1].encode()
    for start in range(len(data) + 2):
        assert bytes(store.tokens(1, start).tolist()) == data[start:]
        for stop in range(start, len(data) + 3):
            assert bytes(store.tokens(1, start, stop).tolist()) == data[start:stop]
            assert store.weights(1, start, stop).tolist() == [1] * len(data[start:stop])
    for absent in [-1, 4]:
        with pytest.raises(IndexError, match=f"no document {absent}: ask for one of its 4"):
            store.tokens(absent)


def test_the_manifest_counts_and_identifies(store):
    data = b"".join(text.encode() for text in TEXTS)
    lines = (store.folder / "documents.jsonl").read_bytes()
    content = hashlib.sha256(np.frombuffer(data, np.uint8).astype("<u2")).hexdigest()
    digests = b"".join(hashlib.sha256(text.encode()).digest() for text in TEXTS)
    assert store.manifest == {
        "format": 2,
        "source": SOURCE,
        "source_hash": hashlib.sha256(digests).hexdigest(),
        "vocabulary": {
            "name": "bytes",
            "size": 256,
            "fingerprint": ByteVocabulary().fingerprint,
        },
        "dtype": "uint16",
        "weighted": False,
        "documents": 4,
        "tokens": len(data),
        "bytes": len(data),
        "words": 2 + 3 + 1 + 1,
        "characters": sum(len(text) for text in TEXTS),
        "unknown": None,
        "content": content,
        "hashes": {
            "tokens.bin": content,
            "documents.jsonl": hashlib.sha256(lines).hexdigest(),
        },
    }
    expected = {"title": "book 2", "tokens": 9, "bytes": 9, "words": 1, "characters": 3}
    assert json.loads(lines.splitlines()[2]) == expected


@pytest.mark.parametrize("piece", [1, 2, 7, 2**16])
def test_words_are_what_white_space_of_any_kind_separates(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(writer, "PIECE", piece)
    random.seed(0)
    letters = " \t\n\r\v\f\x85\xa0\u2003\u3000abé€\x00"
    texts = ["".join(random.choices(letters, k=length)) for length in range(1, 200)]
    manifest = write(tmp_path / "train", [Document("a", text.encode()) for text in texts])
    assert manifest["words"] == sum(len(text.split()) for text in texts)
    assert manifest["characters"] == sum(len(text) for text in texts)
    broken = write(tmp_path / "test", [Document("a", b"not\xff utf8\xc3")])
    assert (broken["words"], broken["characters"]) == (2, 10)


@pytest.mark.parametrize("kind", ["bytes", "words", "b", "c"])
@pytest.mark.parametrize("piece", [1, 2, 7, 2**16])
def test_a_document_encoded_in_pieces_is_the_document_encoded_whole(
    tmp_path, monkeypatch, kind, piece
):
    lines = ["", "two words", "words, two", "é\u2028 €", "  ", "two\rtwo\x0bé", "no end"]
    lists = {
        "words": "two\n<unk>\nwords\n<eos>\n",
        "b": "".join(f"0x{byte:02x}\n" for byte in range(256)),
        "c": "".join(f"U+{ord(c):04X}\n" for c in sorted(set("\n".join(lines)))),
    }
    if kind == "bytes":
        vocabulary = ByteVocabulary()
    else:
        (tmp_path / "list").write_text(lists[kind])
        words = kind == "words"
        vocabulary = (WordVocabulary if words else CharacterVocabulary)(str(tmp_path / "list"))
    random.seed(1)
    texts = ["\n".join(random.choices(lines, k=k)).encode() or b"two" for k in range(1, 20)]
    monkeypatch.setattr(writer, "PIECE", piece)
    write(tmp_path / "train", [Document("a", text) for text in texts], vocabulary)
    store = TokenStore(tmp_path / "train")
    for number, text in enumerate(texts):
        expected = vocabulary.encode(text, "whole")
        np.testing.assert_array_equal(store.tokens(number), expected)


@pytest.mark.parametrize("size, dtype", [(65536, "uint16"), (65537, "uint32")])
def test_ids_are_two_bytes_while_the_vocabulary_allows(tmp_path, size, dtype):
    write(tmp_path / "train", [ids(0, size - 1)], Ids(size))
    store = TokenStore(tmp_path / "train")
    assert store.tokens(0).dtype == dtype
    assert store.tokens(0).tolist() == [0, size - 1]
    assert os.path.getsize(tmp_path / "train" / "tokens.bin") == 2 * np.dtype(dtype).itemsize


def test_weights_are_kept_and_are_ones_where_a_document_has_none(tmp_path):
    some = np.array([0, 0.5, 2], np.float32)
    documents = [ids(1, 2), ids(1, 2, 3, weights=some), ids(4)]
    assert write(tmp_path / "train", documents, Ids(9))["weighted"]
    store = TokenStore(tmp_path / "train")
    assert store.has_weights
    assert [store.weights(d).tolist() for d in range(3)] == [[1, 1], [0, 0.5, 2], [1]]
    assert store.weights(1, 1, 9).tolist() == [0.5, 2]
    assert store.weights(1).dtype == np.float32


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, 1e38])
def test_a_weight_without_a_meaning_is_not_written(tmp_path, weight):
    documents = [ids(1, 2), ids(1, 2, weights=np.array([1.0, weight]))]
    with pytest.raises(ValueError, match="Document 'ids' has weights of which one is"):
        write(tmp_path / "train", documents, Ids(9))


def test_weights_take_no_room_when_no_document_has_any(store):
    assert not store.has_weights
    assert not (store.folder / "weights.bin").exists()


def test_of_a_stream_the_documents_of_three_shards_are_held_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 12)

    class Watched(bytes):
        alive = 0

        def __init__(self, _):
            Watched.alive += 1
            assert Watched.alive <= 3 * 3 + 1  # and the one that is taken next

        def __del__(self):
            Watched.alive -= 1

    write(tmp_path / "train", (Document("a", Watched(b"text")) for _ in range(20)))
    assert Watched.alive == 0


def test_the_tokens_cannot_be_written_to(store):
    with pytest.raises(ValueError, match="read-only"):
        store.tokens(0)[0] = 1


# Writing that fails


@pytest.mark.parametrize(
    "document, sentence",
    [
        (Document("Blank"), r"'Blank' has no tokens \(0 bytes\)"),
        (Document("Blank", tokens=np.zeros(0, int)), "'Blank' has no tokens"),
        (ids(3, 9, 4), "token id 9, outside vocabulary 'ids' of size 9"),
        (ids(3, -1), "token id -1, outside vocabulary 'ids' of size 9"),
        (ids(3, 4, weights=np.ones(3)), r"2 tokens but weights of shape \(3,\)"),
        (ids(3, 4, weights=np.ones((2, 1))), r"2 tokens but weights of shape \(2, 1\)"),
    ],
)
def test_a_document_that_cannot_be_stored_is_named_and_leaves_nothing(tmp_path, document, sentence):
    vocabulary = Ids(9)
    vocabulary.encode = lambda data, title: np.frombuffer(data, np.uint8)
    with pytest.raises(ValueError, match=sentence):
        write(tmp_path / "train", [ids(1), document], vocabulary)
    assert list(tmp_path.iterdir()) == []


def test_no_documents_at_all_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no documents for train"):
        write(tmp_path / "train", [])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_store_is_left_alone(store):
    before = (store.folder / "tokens.bin").read_bytes()
    with pytest.raises(FileExistsError, match="exists: delete it"):
        write(store.folder, [Document("other", b"other")])
    assert (store.folder / "tokens.bin").read_bytes() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_the_store_and_leaves_nothing(tmp_path, monkeypatch, number):
    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"The disk was full before store .*/train was whole") as e:
        write(tmp_path / "train", texts())
    assert e.value.errno == number
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_source_passes_through_and_leaves_nothing(tmp_path):
    def documents():
        yield Document("a", b"text")
        raise FileNotFoundError("book 2 is gone")

    with pytest.raises(FileNotFoundError, match=r"^book 2 is gone$"):
        write(tmp_path / "train", documents())
    assert list(tmp_path.iterdir()) == []


def test_the_store_has_its_name_only_when_it_is_complete(tmp_path):
    def documents():
        for document in texts():
            assert [path.name for path in tmp_path.iterdir()] == ["train.partial"]
            assert not (tmp_path / "train.partial" / "manifest.json").exists()
            yield document

    write(tmp_path / "train", documents())
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_what_an_interrupted_run_left_is_replaced(tmp_path):
    left = tmp_path / "train.partial"
    claim(left)
    for name in ("store", f"{'0' * 32}.123.growing"):
        (left / name).mkdir()
        (left / name / "weights.bin").write_bytes(b"half")
    write(tmp_path / "train", texts())
    assert [path.name for path in tmp_path.iterdir()] == ["train"]
    assert not (tmp_path / "train" / "weights.bin").exists()


# Reading what is damaged


def test_a_missing_store_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"No token store is at {tmp_path}/absent"):
        TokenStore(tmp_path / "absent")


@pytest.mark.parametrize("name", ["manifest.json", "offsets.npy", "tokens.bin"])
def test_a_store_without_one_of_its_files_says_how_to_repeat_it(store, name):
    (store.folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}.* delete the folder and prepare"):
        TokenStore(store.folder)


@pytest.mark.parametrize("change", [-2, -1, 2])
def test_a_tokens_file_of_another_size_names_both_sizes(store, change):
    path, size = store.folder / "tokens.bin", 2 * store.num_tokens
    with open(path, "r+b") as file:
        file.truncate(size + change)
    with pytest.raises(ValueError, match=f"should have {size} bytes and has {size + change}"):
        TokenStore(store.folder)


def test_a_weights_file_cut_short_is_an_error(tmp_path):
    write(tmp_path / "train", [ids(1, 2, weights=np.ones(2))], Ids(9))
    os.truncate(tmp_path / "train" / "weights.bin", 7)
    with pytest.raises(ValueError, match=r"weights\.bin should have 8 bytes and has 7"):
        TokenStore(tmp_path / "train")


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("", "is damaged, as it is not JSON"),
        ('{"format": 1, ', "is damaged, as it is not JSON"),
        ("[]", "is damaged, as it is no object with fields"),
        ("{}", "store format None"),
        (
            '{"format": 1}',
            "store format 1, and this version of brt reads 2 and 3: delete the folder and prep",
        ),
        ('{"format": 4}', "store format 4, and this version of brt reads 2"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_an_error(store, content, sentence):
    (store.folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        TokenStore(store.folder)


@pytest.mark.parametrize(
    "offsets", [[0, 34], [0, 7, 25, 34, 36], [0, 7, 7, 34, 35], [1, 7, 25, 34, 35]]
)
def test_offsets_that_contradict_the_manifest_are_an_error(store, offsets):
    np.save(store.folder / "offsets.npy", np.array(offsets, np.int64))
    with pytest.raises(ValueError, match=r"offsets\.npy does not describe 4 documents"):
        TokenStore(store.folder)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"text"])
def test_offsets_that_are_no_array_are_an_error(store, content):
    (store.folder / "offsets.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"offsets\.npy cannot be read"):
        TokenStore(store.folder)


def test_pickled_offsets_are_not_unpickled(store):
    np.save(store.folder / "offsets.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"offsets\.npy does not describe"):
        TokenStore(store.folder)


# Progress


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_unless_quiet(tmp_path, monkeypatch, capsys, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress, "SECONDS", 0)
    vocabulary = ByteVocabulary()
    write_store(tmp_path / "loud", texts(), vocabulary, SOURCE, total=4)
    shown = capsys.readouterr().err
    assert str(tmp_path / "loud") in shown and "4/4" in shown
    write_store(tmp_path / "quiet", texts(), vocabulary, SOURCE, total=4, quiet=True)
    assert capsys.readouterr().err == ""
