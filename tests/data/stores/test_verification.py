"""A damaged store is noticed before it is trained on, whatever of it is damaged."""

import json
import os

import numpy as np
import pytest
from stores import make_store
from tiny_run import PLAIN, build, write_config

from brt.data.stores import verification
from brt.data.stores.token_store import TokenStore
from brt.data.stores.verification import VARIABLE, check_hashes, hashes_of, verify, verify_once
from brt.storage.json_files import DamagedFile

LENGTHS = (1, 7, 30, 12)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "train", LENGTHS, weighted=True, first=0)


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
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
    assert "offsets.npy is damaged, as document 1" in refused(store.folder, hashes=hashes)


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


def test_a_store_is_hashed_once_until_one_of_its_files_is_changed(store, counted, tmp_path):
    for _ in range(3):
        verify_once(TokenStore(store.folder))
    assert len(counted) == 1
    for name in ("manifest.json", f"{FIRST}/documents.jsonl"):
        os.utime(store.folder / name)
        verify_once(TokenStore(store.folder))
        verify_once(TokenStore(store.folder))
    assert len(counted) == 3
    tokens = store.folder / FIRST / "tokens.bin"
    times = os.stat(tokens)
    flip(tokens)
    os.utime(tokens, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copy that keeps times
    with pytest.raises(DamagedFile, match=r"tokens\.bin is damaged"):
        verify_once(TokenStore(store.folder))
    with pytest.raises(DamagedFile):  # and nothing is kept of it
        verify_once(TokenStore(store.folder))
