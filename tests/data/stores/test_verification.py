"""A damaged store is noticed before it is trained on, whatever of it is damaged."""

import json
import os

import numpy as np
import pytest
from several_restores import bytes_read
from stores import hashes_of, make_store, rehash
from tiny_run import PLAIN, build, write_config

from brt.data.stores import token_store
from brt.data.stores.inspection import verify
from brt.data.stores.layout import files_of
from brt.data.stores.token_store import TokenStore
from brt.storage.json_files import DamagedFile
from brt.storage.regular_files import file_sha256

LENGTHS = (1, 7, 30, 12)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "train", LENGTHS, weighted=True, first=0)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def refused(folder):
    """The sentence with which a store is refused."""
    with pytest.raises((OSError, ValueError)) as caught:
        verify(TokenStore(folder))
    sentence = str(caught.value)
    assert str(folder) in sentence and "\n" not in sentence
    return sentence


FIRST = "shard-00000"


def test_a_flipped_bit_or_a_cut_end_of_any_file_is_found(tmp_path):
    store = make_store(tmp_path / "train", LENGTHS, weighted=True, first=0, shard_bytes=1)
    assert len(store.manifest["hashes"]) == 1 + 3 * len(LENGTHS)
    verify(store)
    for name in store.manifest["hashes"]:
        path = store.folder / name
        content = path.read_bytes()
        flip(path)
        assert f"{name} is damaged" in refused(store.folder)
        path.write_bytes(content[:-2])
        assert name in refused(store.folder)
        path.write_bytes(content)
    verify(store)


def test_a_store_with_a_cut_shard_does_not_open(store):
    os.truncate(store.folder / FIRST / "tokens.bin", 8)
    with pytest.raises(ValueError, match=r"tokens\.bin"):
        TokenStore(store.folder)


OFFSETS = {
    "scalar": np.int64(50),
    "empty": np.zeros(0, np.int64),
    "more": np.array([0, 1, 8, 38, 50, 51]),
    "fewer": np.array([0, 1, 50]),
    "decreasing": np.array([0, 8, 1, 38, 50]),
    "floats": np.array([0, 1, 8, 38, 50.0]),
    "pairs": np.zeros(5, [("a", "<i8"), ("b", "<i8")]),
}


@pytest.mark.parametrize("kind", [*OFFSETS, "text", "a header that asks for memory"])
def test_offsets_of_others_are_refused_in_a_sentence(store, kind):
    path = store.folder / "offsets.npy"
    if kind in OFFSETS:
        np.save(path, OFFSETS[kind])
    elif kind == "text":
        path.write_text("no array")
    else:
        header = {"shape": (10**12,), "fortran_order": False, "descr": "<i8"}
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
    rehash(store.folder)
    with pytest.raises(DamagedFile, match=r"manifest\.json is damaged"):
        TokenStore(store.folder)


def test_lengths_that_contradict_the_documents_are_found(store):
    path = store.folder / "offsets.npy"
    moved = np.load(path)
    moved[2] += 3
    np.save(path, moved)
    rehash(store.folder)
    assert "manifest.json is damaged" in refused(store.folder)


@pytest.mark.parametrize(
    "name", ["manifest.json", "offsets.npy", f"{FIRST}/tokens.bin", f"{FIRST}/documents.jsonl"]
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(store, name):
    (store.folder / name).unlink()
    os.mkfifo(store.folder / name)
    assert f"{name} is a FIFO, and a regular file is expected" in refused(store.folder)
    (store.folder / name).unlink()
    (store.folder / name).mkdir()
    assert f"{name} is a folder" in refused(store.folder)
    (store.folder / name).rmdir()
    (store.folder / name).symlink_to("/dev/zero")
    assert f"{name} is a link to a file outside" in refused(store.folder)


# Before training.


def test_training_and_evaluation_open_no_damaged_store(tmp_path):
    tiny = build(write_config(tmp_path, *PLAIN))
    for split in ("train", "validation"):
        tiny.experiment.open_store(split)
        tokens = tmp_path / "stores" / split / FIRST / "tokens.bin"
        flip(tokens)  # the id is another one of the vocabulary: no other check could tell
        with pytest.raises(ValueError, match=rf"{tokens} is damaged"):
            tiny.experiment.open_store(split)


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files that were hashed, in order."""
    names = []

    def record(path):
        names.append("/".join(path.parts[-2:]))
        return file_sha256(path)

    monkeypatch.setattr(token_store, "file_sha256", record)
    return names


def test_every_file_of_a_small_store_is_hashed_once(tmp_path, hashed):
    tiny = build(write_config(tmp_path, *PLAIN))
    store = tiny.experiment.open_store("train")
    for _ in range(2):
        assert len(store.tokens(0)) and store.titles()
    assert hashed == ["train/offsets.npy", *files_of(store.manifest)]


@pytest.fixture
def large(monkeypatch):
    """Every store counts as a large one."""
    monkeypatch.setattr(token_store, "SMALL", -1)


def test_a_large_stores_file_is_compared_when_first_read(tmp_path, hashed, large):
    store = make_store(tmp_path / "train", LENGTHS, weighted=True, shard_bytes=1)
    flip(store.folder / "shard-00002" / "tokens.bin")
    flip(store.folder / "shard-00003" / "weights.bin")
    for _ in range(2):
        assert len(store.tokens(1)) == LENGTHS[1] and len(store.tokens(3)) == LENGTHS[3]
    assert hashed == ["train/offsets.npy", "shard-00001/tokens.bin", "shard-00003/tokens.bin"]
    for name, read in (
        ("shard-00002/tokens", store.tokens),
        ("shard-00003/weights", store.weights),
    ):
        for _ in range(2):
            with pytest.raises(DamagedFile, match=rf"{name}\.bin is damaged"):
                read(int(name[10]))


def test_a_large_store_opens_without_reading_its_tokens(tmp_path, large):
    """100 GB that take no room on the disk."""
    shards, tokens = 100, 5 * 10**8
    small = make_store(tmp_path / "small", [8] * shards, shard_bytes=1)
    manifest, folder = dict(small.manifest), tmp_path / "small"
    manifest["tokens"] = shards * tokens
    manifest["shards"] = [shard | {"tokens": tokens} for shard in manifest["shards"]]
    np.save(folder / "offsets.npy", np.arange(shards + 1, dtype="<i8") * tokens)
    for number in range(shards):
        os.truncate(folder / f"shard-{number:05}" / "tokens.bin", 4 * tokens)
    manifest["hashes"] |= hashes_of(folder, ["offsets.npy"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    before = bytes_read()
    store = TokenStore(folder)
    assert store.num_tokens == shards * tokens and bytes_read() - before < 10**7
