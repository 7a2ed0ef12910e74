"""Stores of many token files: read as those of one, and guarded as well."""

import hashlib
import json
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
from stores import RAGGED, SAMPLES, W

from brt.data.corpus import Corpus
from brt.data.sources.base import Document
from brt.data.sources.files import TextFiles
from brt.data.stores import store_cache
from brt.data.stores.inspection import describe, document_ends
from brt.data.stores.sharded import JoinedArray, document_files, rows_of
from brt.data.stores.token_store import TokenStore, write_store
from brt.data.stores.verification import verify, verify_once
from brt.data.streams.ids import check_store
from brt.data.streams.ledger import ledger_of
from brt.data.streams.select import evaluation_pass, training_stream
from brt.data.vocabularies.base import ByteVocabulary
from brt.storage.paths import RemotePath

BUCKET = "memory://test-sharded"


class Short(ByteVocabulary):
    """Bytes, of which every document brings its own."""

    cuts_after = None


def documents(lengths, weighted=()):
    first = 0
    for number, length in enumerate(lengths):
        tokens = np.arange(first, first + length) % 251
        weights = np.arange(length, dtype=np.float32) / 8 if number in weighted else None
        yield Document(f"d{number}", str(number).encode(), tokens, weights)
        first += length


def made(folder, lengths=RAGGED, weighted=(2, 5), shard_bytes=100, **options):
    """A store of these documents, of which a shard takes `shard_bytes`; None for one file."""
    write_store(
        folder,
        documents(lengths, weighted),
        Short(),
        {"source": "test"},
        quiet=True,
        shard_bytes=shard_bytes,
        **options,
    )
    return TokenStore(folder)


@pytest.fixture
def store(tmp_path):
    return made(tmp_path / "sharded")


@pytest.fixture
def plain(tmp_path):
    return made(tmp_path / "plain", shard_bytes=None)


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_sharded_store_has_the_documents_of_a_plain_one(store, plain):
    assert len(store.manifest["shards"]) > 3 and "shards" not in plain.manifest
    assert (store.num_documents, store.num_tokens) == (plain.num_documents, plain.num_tokens)
    for d in range(plain.num_documents):
        assert store.tokens(d).tolist() == plain.tokens(d).tolist()
        assert store.weights(d).tolist() == plain.weights(d).tolist()
        assert store.tokens(d).dtype == plain.tokens(d).dtype
        assert store.weights(d).dtype == np.float32
    assert list(store.entries()) == list(plain.entries())
    for name in ("source_hash", "documents", "tokens", "bytes", "words", "unknown", "weighted"):
        assert store.manifest[name] == plain.manifest[name]
    offsets = [(s.folder / "offsets.npy").read_bytes() for s in (store, plain)]
    assert offsets[0] == offsets[1]


def test_its_shards_are_those_of_preparation_and_nothing_else_is_there(store, plain):
    hashes = store.manifest["hashes"]
    assert files_of(store.folder).keys() == {"manifest.json", "offsets.npy", *hashes}
    for name, found in hashes.items():
        assert hashlib.sha256((store.folder / name).read_bytes()).hexdigest() == found
    tokens = b"".join(
        (store.folder / f"shard-{n:05}" / "tokens.bin").read_bytes()
        for n in range(len(store.manifest["shards"]))
    )
    assert tokens == (plain.folder / "tokens.bin").read_bytes()
    weighted = [shard["weighted"] for shard in store.manifest["shards"]]
    assert any(weighted) and not all(weighted)  # of some the weights are nowhere
    assert os.listdir(store.folder.parent).count("sharded.partial") == 0


def test_any_part_of_all_tokens_is_that_of_a_plain_store(store, plain):
    rng = np.random.default_rng(0)
    cuts = rng.integers(0, store.num_tokens + 3, (200, 2)).tolist()
    for start, stop in [*cuts, (0, store.num_tokens), (5, 5)]:
        for ours, theirs in [
            (store.all_tokens, plain.all_tokens),
            (store.all_weights, plain.all_weights),
        ]:
            assert ours[start:stop].tolist() == theirs[start:stop].tolist()
            assert ours[start:stop].dtype == theirs.dtype
    assert [store.all_tokens[i] for i in range(30)] == plain.all_tokens[:30].tolist()
    with pytest.raises(IndexError):
        store.all_tokens[store.num_tokens]
    with pytest.raises(IndexError, match="not in steps of 2"):
        store.all_tokens[::2]


def test_files_are_mapped_when_they_are_read_and_not_all_at_once(monkeypatch):
    opened = []

    def array(number):
        opened.append(number)
        return np.full(10, number)

    monkeypatch.setattr("brt.data.stores.sharded.OPEN_FILES", 2)
    joined = JoinedArray([10] * 5, np.dtype(int), array)
    assert opened == [] and len(joined) == 50
    assert joined[5:12].tolist() == [0] * 5 + [1] * 2 and opened == [0, 1]
    assert joined[19] == 1 and opened == [0, 1]
    assert joined[40:50].tolist() == [4] * 10 and opened == [0, 1, 4]
    assert joined[0] == 0 and opened == [0, 1, 4, 0]


@pytest.mark.parametrize("kind", ["documents", "contiguous", "shuffled", "samples"])
def test_training_and_evaluation_read_the_same_from_it(tmp_path, kind):
    lengths = SAMPLES if kind == "samples" else RAGGED * 2
    plain = made(tmp_path / "plain", lengths, shard_bytes=None)
    store = made(tmp_path / "sharded", lengths)
    assert len(store.manifest["shards"]) > 4
    check_store(store)
    K = 2 if kind == "samples" else 1
    ours, theirs = (training_stream(kind, s, 3, W, K, seed=1) for s in (store, plain))
    for step in range(40):
        assert ledger_of(ours.batch(step), step) == ledger_of(theirs.batch(step), step)
    if kind != "shuffled":
        ours, theirs = (evaluation_pass(kind, s, 3, W) for s in (store, plain))
        assert ours.num_steps == theirs.num_steps
        for step in range(ours.num_steps):
            batches = ours.batch(step), theirs.batch(step)
            assert all(np.array_equal(x, y) for x, y in zip(*batches))


def test_rows_of_many_files_are_those_of_one():
    flat = np.arange(60)
    parts = np.split(flat, [12, 18])
    joined = JoinedArray([len(part) for part in parts], flat.dtype, parts.__getitem__)
    for rows_B in (np.array([3, 0, 9]), np.array([], int)):
        assert np.array_equal(rows_of(joined, 6, rows_B), rows_of(flat, 6, rows_B))


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_makes_the_same_files(tmp_path, workers):
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"text {number} " * 20)
    for name, count in [("one", 1), ("other", workers)]:
        corpus = Corpus(str(tmp_path / name), TextFiles(str(tmp_path)), "bytes")
        corpus.prepare("train", quiet=True, workers=count, shard_bytes=300)
    one, other = (files_of(tmp_path / name / "train") for name in ("one", "other"))
    assert one == other and len(corpus.open("train").manifest["shards"]) == 3


def test_where_there_are_no_links_files_are_copied(tmp_path, store, monkeypatch):
    def refused(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    assert files_of(made(tmp_path / "copied").folder) == files_of(store.folder)


def test_what_is_killed_on_the_way_is_no_store_and_goes_on(tmp_path, store, monkeypatch):
    given = []

    def killed(source, target):
        given.append(target)
        if len(given) == 5:
            raise KeyboardInterrupt
        Path(target).write_bytes(Path(source).read_bytes())

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "killed")
    assert not (tmp_path / "killed").exists()
    shards = list((tmp_path / "killed.partial").glob("shard-*/shard.json"))
    assert len(shards) == len(store.manifest["shards"])
    monkeypatch.setattr("brt.data.stores.shards.ShardMaker.make", None)  # none is made again
    assert files_of(made(tmp_path / "killed").folder) == files_of(store.folder)
    assert not (tmp_path / "killed.partial").exists()


# Damage


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def refused(folder):
    with pytest.raises((OSError, ValueError)) as caught:
        verify(TokenStore(folder), quiet=True)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_flipped_bit_of_any_file_is_found(tmp_path, store):
    verify(store, quiet=True)
    for name in store.manifest["hashes"]:
        flip(store.folder / name)
        assert f"{name} is damaged, as its sha256" in refused(store.folder)
        flip(store.folder / name)
    verify(store, quiet=True)


def test_a_file_that_is_missing_or_cut_short_is_found_when_the_store_is_opened(store):
    path = store.folder / "shard-00002" / "tokens.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"shard-00002/tokens\.bin should have"):
        TokenStore(store.folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard-00002 has no tokens\.bin"):
        TokenStore(store.folder)
    os.mkfifo(path)
    with pytest.raises(OSError, match="is a FIFO"):
        TokenStore(store.folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m["shards"].pop(), "its shards have another number of documents"),
        (lambda m: m["shards"][0].update(tokens=99), "another number of tokens"),
        (lambda m: m["shards"][0].update(tokens="1"), r"shards[0].tokens = '1' must be"),
        (lambda m: m["shards"][0].pop("weighted"), "shards[0] has no 'weighted'"),
        (lambda m: [s.update(weighted=False) for s in m["shards"]], "weighted is not that of its"),
        (lambda m: m.update(shards=[]), "its shards have another number"),
        (lambda m: m.pop("shards"), "it has no 'shards'"),
        (lambda m: m.update(format=2), "a store of format 2 has no shards"),
        (lambda m: m["hashes"].pop("shard-00001/tokens.bin"), "no hash of shard-00001/tokens.bin"),
        (lambda m: m["hashes"].update({"../a": "0"}), "'../a' is no file of this store"),
        (lambda m: m["hashes"].update({"shard-99999/tokens.bin": "0"}), "is no file of this store"),
        (lambda m: m.update(content="0"), "its content is not the hash"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(store, change, sentence):
    path = store.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    assert sentence in refused(store.folder)


def test_weights_that_are_not_finite_are_found_in_any_shard(store):
    number = max(n for n, s in enumerate(store.manifest["shards"]) if s["weighted"])
    name = f"shard-{number:05}/weights.bin"
    weights = np.fromfile(store.folder / name, "<f4")
    weights[-1] = np.nan
    weights.tofile(store.folder / name)
    path = store.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["hashes"][name] = hashlib.sha256(weights.tobytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    assert "weights.bin is damaged, as one is" in refused(store.folder)


def test_it_is_hashed_once_until_a_file_of_a_shard_changes(store, tmp_path, monkeypatch):
    monkeypatch.setenv("BRT_VERIFIED", str(tmp_path / "kept"))
    verify_once(store)
    monkeypatch.setattr("brt.data.stores.verification.verify", None)
    verify_once(store)
    flip(store.folder / "shard-00001" / "documents.jsonl")
    with pytest.raises(TypeError):
        verify_once(store)


def test_inspection_shows_its_counts_and_any_document(store, plain):
    found = [line.split() for line in describe(store).split("\n") if "token files" in line]
    assert found == [["token", "files", str(len(store.manifest["shards"]))]]
    assert "token files" not in describe(plain)
    for d in range(store.num_documents):
        assert document_ends(store, str(d), None) == document_ends(plain, str(d), None)


def test_of_very_many_files_some_hashes_are_shown(tmp_path):
    store = made(tmp_path / "many", [3] * 40, (), shard_bytes=1)
    lines = describe(store).split("\n")
    assert sum(line.startswith("sha256: shard-") for line in lines) == 30
    assert [line.split()[-1] for line in lines if line.startswith("and more files")] == ["50"]


def test_shards_beyond_the_hundred_thousandth_keep_their_order():
    names = [f"shard-{n:05}/documents.jsonl" for n in (0, 9, 99_999, 100_000, 1_000_000)]
    assert document_files([*reversed(names), "shard-00000/tokens.bin"]) == names


# In a bucket


@pytest.fixture
def cache(tmp_path):
    store_cache.use(str(tmp_path / "cache"))
    yield tmp_path / "cache"
    store_cache.use(None)
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def corpora(cache, tmp_path):
    """A corpus of text files with its store in a bucket, and one with it on the disk; sharded."""
    (tmp_path / "texts").mkdir()
    for number in range(9):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number} " * 20)
    made = []
    for place in (BUCKET, str(tmp_path / "stores")):
        made.append(Corpus(place, TextFiles(str(tmp_path / "texts")), "bytes"))
        made[-1].prepare("train", quiet=True, workers=1, shard_bytes=300)
    return made


def test_a_sharded_store_in_a_bucket_has_the_same_files_and_is_read_through_a_copy(
    corpora, cache, tmp_path
):
    remote, local = corpora
    folder = RemotePath(f"{BUCKET}/train")
    there = {file.relative_to(folder): file.read_bytes() for file in folder.files()}
    assert there == files_of(local.path("train"))
    store_cache.use(str(tmp_path / "another_host"))
    for _ in range(2):
        copy = remote.open("train")
        assert copy.files.parent == tmp_path / "another_host"
        assert files_of(copy.files) == there
    verify(copy, quiet=True)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.jsonl"])
def test_a_damaged_shard_is_never_copied(corpora, tmp_path, name):
    store_cache.use(str(tmp_path / "another_host"))
    path = RemotePath(f"{BUCKET}/train/shard-00001/{name}")
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(bytes(content))
    for _ in range(2):  # what the first try left, folders too, is no obstacle to the second
        with pytest.raises(ValueError, match=f"shard-00001/{name} is damaged"):
            corpora[0].open("train")


@pytest.mark.parametrize(
    "name", ["../tokens.bin", "shard-00000/../../tokens.bin", "shard-00000/x.bin", "shard-0/a/b"]
)
def test_a_manifest_cannot_name_files_of_other_folders(corpora, tmp_path, name):
    store_cache.use(str(tmp_path / "another_host"))
    path = RemotePath(f"{BUCKET}/train/manifest.json")
    manifest = json.loads(path.read_bytes())
    manifest["hashes"][name] = "0" * 64
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="not the manifest of a token store"):
        corpora[0].open("train")
