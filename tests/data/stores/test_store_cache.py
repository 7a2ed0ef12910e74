"""Stores in a bucket: the same bytes as on a disk, read through a copy that is compared."""

import json

import fsspec
import pytest
from jobs import files_of
from tiny_run import write_config

from brt import config
from brt.data.corpus import Corpus
from brt.data.stores import store_cache
from brt.data.vocabularies.named import named_vocabulary
from brt.storage.paths import RemotePath
from brt.training.settings import Trainer

BUCKET = "memory://test-stores"
SPLIT = "train"


@pytest.fixture
def cache(tmp_path):
    """A cache of this test's own, and an empty bucket."""
    store_cache.use(str(tmp_path / "cache"))
    yield tmp_path / "cache"
    store_cache.use(None)
    fsspec.filesystem("memory").store.clear()


def corpus_of(tmp_path, store) -> Corpus:
    config.parse([str(write_config(tmp_path))], [f'Corpus.store = "{store}"'])
    return Trainer().corpus


@pytest.fixture
def corpus(cache, tmp_path):
    """A corpus whose store is prepared in the bucket."""
    made = corpus_of(tmp_path, BUCKET)
    made.prepare(SPLIT, quiet=True, workers=1)
    return made


def copies(cache):
    """Folders of the cache that look like finished copies."""
    return [path for path in cache.iterdir() if path.is_dir() and len(path.name) == 32]


def test_a_store_in_a_bucket_has_the_bytes_of_one_on_a_disk(corpus, tmp_path):
    local = corpus_of(tmp_path, tmp_path / "stores")
    local.prepare(SPLIT, quiet=True, workers=1)
    assert files_of(corpus) == files_of(local) and len(files_of(local)) == 4
    assert corpus.exists(SPLIT) and not corpus.exists("test")
    store = corpus.open(SPLIT)
    assert str(store.folder) == f"{BUCKET}/{SPLIT}"
    assert (store.all_tokens[:] == local.open(SPLIT).all_tokens[:]).all()
    assert store.titles() == local.open(SPLIT).titles()


def test_a_copy_is_made_once_and_read_from_then_on(corpus, cache, tmp_path):
    store_cache.use(str(tmp_path / "another_host"))
    first = corpus.open(SPLIT)
    assert first.files.parent == tmp_path / "another_host"
    (RemotePath(BUCKET) / SPLIT / "offsets.npy").unlink()
    assert (corpus.open(SPLIT).all_tokens[:] == first.all_tokens[:]).all()


@pytest.mark.parametrize(
    "name", ["shard-00000/tokens.bin", "shard-00000/documents.jsonl", "offsets.npy"]
)
@pytest.mark.parametrize("at", [-1, -200])
def test_a_damaged_file_is_named_and_never_copied(corpus, tmp_path, name, at):
    store_cache.use(str(tmp_path / "another_host"))
    path = RemotePath(BUCKET) / SPLIT / name
    content = bytearray(path.read_bytes())
    content[max(at, -len(content))] ^= 1
    path.write_bytes(bytes(content))
    for _ in range(2):  # what the first try left does not help the second
        with pytest.raises(ValueError, match=name):
            corpus.open(SPLIT)
    assert not copies(tmp_path / "another_host")


@pytest.mark.parametrize(
    "name", ["../../outside", "shard-00000/../../x", "shard-00000/x", "shard-0/a"]
)
def test_a_manifest_cannot_name_files_of_other_folders(corpus, tmp_path, name):
    store_cache.use(str(tmp_path / "another_host"))
    path = RemotePath(BUCKET) / SPLIT / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["hashes"][name] = "0" * 64
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest\.json"):
        corpus.open(SPLIT)
    assert not (tmp_path / "outside").exists()


def test_a_vocabulary_is_read_from_the_bucket_too(cache, tmp_path):
    words = "the\ntea\n<unk>\n<eos>\n"
    (tmp_path / "words.txt").write_text(words)
    there = f"{BUCKET}/words.txt"
    with pytest.raises(FileNotFoundError, match=f"No word list is at {there}"):
        _ = named_vocabulary(f"words:{there}").fingerprint
    RemotePath(there).write_text(words)
    ours = named_vocabulary(f"words:{there}")
    theirs = named_vocabulary(f"words:{tmp_path / 'words.txt'}")
    assert ours.fingerprint == theirs.fingerprint and ours.size == theirs.size
    assert list(ours.encode(b"the tea", "text")) == list(theirs.encode(b"the tea", "text"))
