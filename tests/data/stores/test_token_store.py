"""Token stores: reading returns the written tokens; damage is refused."""

import hashlib
import json
import os
import random
import re

import numpy as np
import pytest
from stores import RAGGED, SAMPLES, Ids, W, make_store

from brt.data.sources.base import Document
from brt.data.stores import shards, writer
from brt.data.stores.inspection import verify
from brt.data.stores.joined_array import JoinedArray
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.checksum import checksum_of
from brt.data.streams.select import evaluation_pass, training_stream
from brt.data.vocabularies.base import ByteVocabulary
from brt.data.vocabularies.characters import CharacterVocabulary
from brt.data.vocabularies.words import WordVocabulary

SOURCE = {"source": "test"}
TEXTS = ["one two", " three\n\nfour\tfive ", "é€𝄞", "x"]


class IdsOfSize(Ids):
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


# Writing and reading


def test_every_document_and_every_part_of_it_comes_back(store):
    for d, text in enumerate(TEXTS):
        data = text.encode()
        assert bytes(store.tokens(d).tolist()) == data
        for start in range(len(data) + 2):
            for stop in [*range(start, len(data) + 3), None]:
                assert bytes(store.tokens(d, start, stop).tolist()) == data[start:stop]
                assert store.weights(d, start, stop).tolist() == [1] * len(data[start:stop])
    assert store.lengths_D.tolist() == [len(text.encode()) for text in TEXTS]
    assert store.titles() == ["book 0", "book 1", "book 2", "book 3"]
    for absent in [-1, 4]:
        with pytest.raises(IndexError):
            store.tokens(absent)
    with pytest.raises(ValueError, match="read-only"):
        store.tokens(0)[0] = 1


def test_the_manifest_counts_and_identifies(store):
    data = b"".join(text.encode() for text in TEXTS)
    tokens = hashlib.sha256(np.frombuffer(data, np.uint8).astype("<u2")).hexdigest()
    lines = (store.folder / "shard-00000" / "documents.jsonl").read_bytes()
    digests = b"".join(hashlib.sha256(text.encode()).digest() for text in TEXTS)
    source = hashlib.sha256(digests).hexdigest()
    assert store.manifest == {
        "format": 3,
        "source": SOURCE,
        "source_hash": hashlib.sha256(source.encode()).hexdigest(),
        "vocabulary": {"name": "bytes", "size": 256, "fingerprint": ByteVocabulary().fingerprint},
        "dtype": "uint16",
        "weighted": False,
        "documents": 4,
        "tokens": len(data),
        "bytes": len(data),
        "words": 2 + 3 + 1 + 1,
        "characters": sum(len(text) for text in TEXTS),
        "unknown": None,
        "content": hashlib.sha256(tokens.encode()).hexdigest(),
        "hashes": {
            "offsets.npy": hashlib.sha256((store.folder / "offsets.npy").read_bytes()).hexdigest(),
            "shard-00000/tokens.bin": tokens,
            "shard-00000/documents.jsonl": hashlib.sha256(lines).hexdigest(),
        },
        "shards": [{"documents": 4, "tokens": len(data), "weighted": False}],
    }
    expected = {"title": "book 2", "tokens": 9, "bytes": 9, "words": 1, "characters": 3}
    assert json.loads(lines.splitlines()[2]) == expected
    np.testing.assert_array_equal(
        np.load(store.folder / "offsets.npy"), np.cumsum([0, *store.lengths_D])
    )


@pytest.mark.parametrize("piece", [1, 7, 2**16])
def test_words_are_separated_by_any_white_space(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(writer, "PIECE", piece)
    random.seed(0)
    letters = " \t\n\r\v\f\x85\xa0\u2003\u3000abé€\x00"
    texts = ["".join(random.choices(letters, k=length)) for length in range(1, 200)]
    manifest = write(tmp_path / "train", [Document("a", text.encode()) for text in texts])
    assert manifest["words"] == sum(len(text.split()) for text in texts)
    assert manifest["characters"] == sum(len(text) for text in texts)
    broken = write(tmp_path / "test", [Document("a", b"not\xff utf8\xc3")])
    assert (broken["words"], broken["characters"]) == (2, 10)


@pytest.mark.parametrize("piece", [1, 3, 2**16])
def test_a_text_that_is_not_utf8_is_kept_with_a_warning(tmp_path, monkeypatch, caplog, piece):
    monkeypatch.setattr(writer, "PIECE", piece)
    monkeypatch.setattr(writer, "NOT_UTF8", 10**6)
    texts = {
        "right": "Grüße, 世界 😀".encode(),
        "latin": "Grüße".encode("latin-1"),
        "cut": "世界 😀".encode()[:-1],
        "lone": b"ab\x80",
    }
    documents = [Document(title, text) for title, text in texts.items()]
    with caplog.at_level("WARNING"):
        write(tmp_path / "train", documents)
    found = [re.match(r"(\w+) is not UTF-8 .its byte (\d+)", m).groups() for m in caplog.messages]
    offsets = {}
    for title, text in texts.items():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            offsets[title] = str(error.start)
    assert dict(found) == offsets and offsets.keys() == {"latin", "cut", "lone"}
    store = TokenStore(tmp_path / "train")
    assert [store.tokens(i).tolist() for i in range(4)] == [list(text) for text in texts.values()]


@pytest.mark.parametrize("kind", ["bytes", "words", "b", "c"])
@pytest.mark.parametrize("piece", [1, 7])
def test_encoding_in_pieces_equals_encoding_whole(tmp_path, monkeypatch, kind, piece):
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
        np.testing.assert_array_equal(store.tokens(number), vocabulary.encode(text, "whole"))


@pytest.mark.parametrize("size, dtype", [(65536, "uint16"), (65537, "uint32")])
def test_ids_have_two_bytes_if_the_vocabulary_allows(tmp_path, size, dtype):
    write(tmp_path / "train", [ids(0, size - 1)], IdsOfSize(size))
    store = TokenStore(tmp_path / "train")
    assert store.tokens(0).dtype == dtype and store.tokens(0).tolist() == [0, size - 1]
    size = os.path.getsize(tmp_path / "train" / "shard-00000" / "tokens.bin")
    assert size == 2 * np.dtype(dtype).itemsize


@pytest.mark.parametrize("documents_per_shard", [1, 2, 10])
def test_weights_are_one_and_files_exist_only_if_needed(tmp_path, monkeypatch, documents_per_shard):
    monkeypatch.setattr(shards, "SHARD_DOCUMENTS", documents_per_shard)
    weights = [[1, 1], [0, 0.5, 2], [1], [1, 1, 1]]
    documents = [
        ids(*range(len(w)), weights=np.array(w, np.float32) if 0 in w else None) for w in weights
    ]
    assert write(tmp_path / "train", documents, IdsOfSize(9))["weighted"]
    store = TokenStore(tmp_path / "train")
    assert [store.weights(d).tolist() for d in range(4)] == weights
    assert store.weights(1, 1, 9).tolist() == [0.5, 2]
    assert store.all_weights[1:5].tolist() == [1, 0, 0.5, 2]
    assert store.weights(0).dtype == np.float32
    assert len(list(store.folder.glob("*/weights.bin"))) == 1


def test_few_documents_of_a_stream_are_held_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 12)

    class Watched(bytes):
        alive = 0

        def __init__(self, _):
            Watched.alive += 1
            assert Watched.alive <= 3 * 3 + 1

        def __del__(self):
            Watched.alive -= 1

    write(tmp_path / "train", (Document("a", Watched(b"text")) for _ in range(20)))
    assert Watched.alive == 0


# Any number of shards


@pytest.fixture
def pair(tmp_path):
    """A store of one shard, and the same documents in many."""
    plain = make_store(tmp_path / "one", RAGGED, weighted=True, shard_bytes=10**6)
    other = make_store(tmp_path / "other", RAGGED, weighted=True, shard_bytes=100)
    assert len(other.manifest["shards"]) > 3
    return plain, other


def test_all_layouts_are_read_alike(pair):
    plain, other = pair
    verify(other)
    assert list(plain.entries()) == list(other.entries())
    rng = np.random.default_rng(0)
    cuts = rng.integers(0, plain.num_tokens + 3, (200, 2)).tolist()
    for start, stop in [*cuts, (0, plain.num_tokens), (5, 5)]:
        for name in ("all_tokens", "all_weights"):
            ours, theirs = (getattr(store, name)[start:stop] for store in pair)
            assert ours.tolist() == theirs.tolist() and ours.dtype == theirs.dtype
    for d in range(plain.num_documents):
        assert plain.tokens(d, 1).tolist() == other.tokens(d, 1).tolist()
        assert plain.weights(d).tolist() == other.weights(d).tolist()


@pytest.mark.parametrize("kind", ["documents", "contiguous", "shuffled", "samples"])
def test_batches_do_not_depend_on_the_layout(tmp_path, kind):
    lengths = SAMPLES if kind == "samples" else RAGGED * 2
    plain = make_store(tmp_path / "plain", lengths, shard_bytes=10**6)
    other = make_store(tmp_path / "other", lengths, shard_bytes=100)
    assert len(other.manifest["shards"]) > 4
    K = 2 if kind == "samples" else 1
    ours, theirs = (training_stream(kind, s, 3, W, K, seed=1) for s in (other, plain))
    for step in range(40):
        assert checksum_of(ours.batch(step), step) == checksum_of(theirs.batch(step), step)
    if kind != "shuffled":
        ours, theirs = (evaluation_pass(kind, s, 3, W) for s in (other, plain))
        for step in range(ours.num_steps):
            batches = ours.batch(step), theirs.batch(step)
            assert all(np.array_equal(x, y) for x, y in zip(*batches))


def test_files_are_opened_when_they_are_read_and_not_all_at_once(monkeypatch):
    opened = []

    def array(number):
        opened.append(number)
        return np.full(10, number)

    monkeypatch.setattr("brt.data.stores.joined_array.OPEN_FILES", 2)
    joined = JoinedArray([10] * 5, np.dtype(int), array)
    assert opened == [] and len(joined) == 50
    assert joined[5:12].tolist() == [0] * 5 + [1] * 2 and opened == [0, 1]
    assert joined[40:50].tolist() == [4] * 10 and opened == [0, 1, 4]
    assert joined[:1].tolist() == [0] and opened == [0, 1, 4, 0]
    with pytest.raises(IndexError):
        joined[::2]


# Writing that fails


@pytest.mark.parametrize(
    "document, sentence",
    [
        (Document("Blank"), "'Blank' has no tokens"),
        (ids(3, 9, 4), "token id 9, outside vocabulary 'ids' of size 9"),
        (ids(3, -1), "token id -1"),
        (ids(3, 4, weights=np.ones(3)), r"shape \(3,\)"),
        (ids(3, 4, weights=np.array([1, np.nan])), "weights"),
        (ids(3, 4, weights=np.array([1, -1])), "weights"),
    ],
)
def test_a_document_that_cannot_be_stored_leaves_nothing(tmp_path, document, sentence):
    vocabulary = IdsOfSize(9)
    vocabulary.encode = lambda data, title: np.frombuffer(data, np.uint8)
    with pytest.raises(ValueError, match=sentence):
        write(tmp_path / "train", [ids(1), document], vocabulary)
    with pytest.raises(ValueError, match="train"):
        write(tmp_path / "train", [])
    assert list(tmp_path.iterdir()) == []


def test_what_an_interrupted_run_left_is_replaced(tmp_path):
    for name in ("shard-00000", "shard-00007", "shard-00001.0123456789ab.growing"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "weights.bin").write_bytes(b"half")
    write(tmp_path / "train", texts())
    names = {path.relative_to(tmp_path / "train").as_posix() for path in tmp_path.glob("*/*/*")}
    assert names == {"shard-00000/tokens.bin", "shard-00000/documents.jsonl"}


# Damaged stores


@pytest.mark.parametrize("name", ["manifest.json", "offsets.npy", "tokens.bin"])
def test_a_store_without_one_of_its_files_names_it(store, name):
    next(store.folder.rglob(name)).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}.* prepare"):
        TokenStore(store.folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m["shards"].pop(), "hashes"),
        (lambda m: m["shards"][0].update(tokens="1"), "tokens"),
        (lambda m: m["shards"][0].update(weighted=False), "hashes"),
        (lambda m: m.update(dtype="uint8"), "dtype"),
        (lambda m: m.update(documents=4), "counts"),
        (lambda m: m.update(bytes=1), "counts"),
        (lambda m: m.pop("shards"), "shards"),
        (lambda m: m.update(format=2), "format 2"),
        (lambda m: m["hashes"].pop("shard-00001/tokens.bin"), "hashes"),
        (lambda m: m["hashes"].update({"../a": "0"}), "hashes"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path, change, sentence):
    store = make_store(tmp_path / "train", [3, 4, 5], weighted=True, shard_bytes=1)
    path = store.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError) as caught:
        verify(TokenStore(store.folder))
    assert str(path) in str(caught.value) and sentence in str(caught.value)
