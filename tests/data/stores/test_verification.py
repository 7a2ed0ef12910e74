"""A damaged store is noticed before it is trained on, whatever of it is damaged."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from stores import make_store
from tiny_run import PLAIN, build, write_config

from brt.data.stores import token_store, verification
from brt.data.stores.layout import files_of
from brt.data.stores.token_store import TokenStore
from brt.data.stores.verification import VARIABLE, check_hashes, hashes_of, verify, verify_when_read
from brt.storage.json_files import DamagedFile

LENGTHS = (1, 7, 30, 12)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "train", LENGTHS, weighted=True, first=0)


def flip(path, offset=-1):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def refused(folder, **changes):
    """The sentence with which a store is refused, its manifest changed like this."""
    path = folder / "manifest.json"
    if changes:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises((OSError, ValueError)) as caught:
        verify(TokenStore(folder))
    sentence = str(caught.value)
    assert str(folder) in sentence and "\n" not in sentence
    return sentence


FIRST = "shard-00000"


def test_a_flipped_bit_of_any_file_is_found(tmp_path):
    store = make_store(tmp_path / "train", LENGTHS, weighted=True, first=0, shard_bytes=1)
    assert len(store.manifest["hashes"]) == 1 + 3 * len(LENGTHS)
    verify(store)
    for name in store.manifest["hashes"]:
        flip(store.folder / name)
        sentence = refused(store.folder)
        assert f"{name} is damaged" in sentence or f"{name} does not" in sentence
        flip(store.folder / name)
    verify(store)


def test_borders_of_documents_that_were_moved_are_found(store):
    path = store.folder / "offsets.npy"
    content = path.read_bytes()
    moved = np.frombuffer(content[-8 * (len(LENGTHS) + 1) :], "<i8").copy()
    moved[2] += 3
    path.write_bytes(content[: -8 * (len(LENGTHS) + 1)] + moved.tobytes())
    assert "offsets.npy is damaged" in refused(store.folder)
    hashes = store.manifest["hashes"] | hashes_of(store.folder, ["offsets.npy"])
    assert "document 1" in refused(store.folder, hashes=hashes)


def test_a_manifest_without_hashes_verifies_nothing(store):
    assert "shard-00000/documents.jsonl" in refused(store.folder, hashes={})
    hashes = dict(store.manifest["hashes"])
    hashes.pop(f"{FIRST}/weights.bin")
    assert "shard-00000/weights.bin" in refused(store.folder, hashes=hashes)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1e-30, 2e6])
def test_weights_without_a_meaning_are_found(store, weight):
    weights = np.fromfile(store.folder / FIRST / "weights.bin", "<f4")
    weights[3] = weight
    weights.tofile(store.folder / FIRST / "weights.bin")
    hashes = hashes_of(store.folder, store.manifest["hashes"])
    assert f"weights.bin is damaged, as one is {weight:g}" in refused(store.folder, hashes=hashes)


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


def bytes_read():
    """Bytes that this process has read from files so far, of the disk or of the memory."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


# Before training.


def test_training_and_evaluation_open_no_damaged_store(tmp_path):
    tiny = build(write_config(tmp_path, *PLAIN, without=("RecurrentCell",)))
    for split in ("train", "validation"):
        tiny.experiment.open_store(split)
        tokens = tmp_path / "stores" / split / FIRST / "tokens.bin"
        flip(tokens)  # the id is another one of the vocabulary: no other check could tell
        with pytest.raises(ValueError, match=rf"{tokens} is damaged"):
            tiny.experiment.open_store(split)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """The folder of what was verified, and a list that grows when something is hashed."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    calls = []

    def count(*arguments, **options):
        calls.append(arguments)
        return check_hashes(*arguments, **options)

    monkeypatch.setattr(verification, "check_hashes", count)
    return calls


def test_a_file_is_hashed_once_until_it_is_changed(store, counted):
    files = 1 + len(files_of(store.manifest))  # with offsets.npy
    for _ in range(3):
        verify_when_read(TokenStore(store.folder))
    assert len(counted) == files
    os.utime(store.folder / FIRST / "documents.jsonl")
    for _ in range(2):
        verify_when_read(TokenStore(store.folder))
    assert len(counted) == files + 1
    tokens = store.folder / FIRST / "tokens.bin"
    times = os.stat(tokens)
    flip(tokens)
    os.utime(tokens, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copy that keeps times
    for _ in range(2):  # nothing is kept of the first try
        with pytest.raises(DamagedFile, match=r"tokens\.bin is damaged"):
            verify_when_read(TokenStore(store.folder))


@pytest.fixture
def large(monkeypatch):
    """Every store counts as a large one."""
    monkeypatch.setattr(token_store, "SMALL", -1)


def test_a_large_stores_file_is_compared_when_first_read(tmp_path, counted, large):
    store = make_store(tmp_path / "train", LENGTHS, weighted=True, shard_bytes=1)
    flip(store.folder / "shard-00002" / "tokens.bin")
    flip(store.folder / "shard-00003" / "weights.bin")
    verify_when_read(store)
    assert [list(hashes) for _, hashes, _ in counted] == [["offsets.npy"]]
    assert len(store.tokens(1)) == LENGTHS[1] and len(store.tokens(3)) == LENGTHS[3]
    read = [f"shard-0000{number}/tokens.bin" for number in (1, 3)]
    assert [name for _, hashes, _ in counted for name in hashes] == ["offsets.npy", *read]
    for name, reads in (
        ("shard-00002/tokens", store.tokens),
        ("shard-00003/weights", store.weights),
    ):
        for _ in range(2):
            with pytest.raises(DamagedFile, match=rf"{name}\.bin is damaged"):
                reads(int(name[10]))


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
    verify_when_read(store)
    assert store.num_tokens == shards * tokens and bytes_read() - before < 10**7
