"""Stores in a bucket: the same bytes as on a disk, read through a copy that is compared."""

import fsspec
import numpy as np
import pytest
from jobs import files_of
from marking import slow
from stores import make_store, same
from tiny_run import write_config

from brt import config
from brt.data.corpus import Corpus
from brt.data.mixture import MixedStore
from brt.data.stores import store_cache, token_store
from brt.data.stores.inspection import verify
from brt.data.stores.layout import files_of as files_of_manifest
from brt.data.stores.token_store import TokenStore
from brt.data.streams import assignment
from brt.data.streams.documents import DocumentPass, DocumentStream
from brt.data.streams.mixture import MixtureStream
from brt.data.vocabularies.named import named_vocabulary
from brt.host import progress
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
    assert first.files.parent == tmp_path / "another_host" and len(first.all_tokens[:])
    for name in "offsets.npy", "shard-00000/tokens.bin":
        (RemotePath(BUCKET) / SPLIT / name).unlink()
    assert (corpus.open(SPLIT).all_tokens[:] == first.all_tokens[:]).all()


@pytest.mark.parametrize(
    "name", ["shard-00000/tokens.bin", "shard-00000/documents.jsonl", "offsets.npy"]
)
@pytest.mark.parametrize("at", [-1, -200])
def test_a_damaged_file_is_named_and_its_copy_removed(corpus, tmp_path, name, at):
    store_cache.use(str(tmp_path / "another_host"))
    path = RemotePath(BUCKET) / SPLIT / name
    content = bytearray(path.read_bytes())
    content[max(at, -len(content))] ^= 1
    path.write_bytes(bytes(content))
    for _ in range(2):  # files that the first try left do not let the second succeed
        with pytest.raises(ValueError, match=f"{name} is damaged.*{BUCKET}"):
            corpus.open(SPLIT).read_all()
    assert not any((copy / name).exists() for copy in copies(tmp_path / "another_host"))


@pytest.fixture
def large(cache, monkeypatch):
    """A store in a bucket that counts as a large one; a shard has several documents."""
    monkeypatch.setattr(token_store, "SMALL", -1)
    monkeypatch.setattr(assignment, "SHARDS_PER_ROW", 2)
    lengths = 1 + np.random.default_rng(0).integers(1, 60, 400)
    store = make_store(RemotePath(BUCKET) / "large", lengths, shard_bytes=700)
    assert 100 < len(store.manifest["shards"]) < 200
    return store


def tokens_in(folder):
    """The shards whose tokens lie below a folder."""
    return {path.parent.name for path in folder.rglob("tokens.bin")}


@pytest.mark.parametrize("copy", ["another_host", store_cache.NONE])
def test_a_large_store_in_a_bucket_is_verified_whole(large, tmp_path, monkeypatch, copy):
    monkeypatch.chdir(tmp_path)
    store_cache.use(copy)
    verify(TokenStore(large.folder))
    last = large.folder / f"shard-{len(large.manifest['shards']) - 1:05}" / "tokens.bin"
    last.write_bytes(b"\0" * last.size())
    store_cache.use(str(tmp_path / "a third host"))
    with pytest.raises(ValueError, match=r"tokens\.bin is damaged"):
        verify(TokenStore(large.folder))


def mixed(store):
    return MixedStore([store], [1.0], ["large"])


@pytest.mark.parametrize(
    "make",
    [
        slow(lambda store, *of: DocumentStream(store, *of, seed=3)),
        lambda store, *of: MixtureStream(mixed(store), *of, seed=3),
        slow(DocumentPass),
        lambda store, *of: DocumentPass(mixed(store), *of),
    ],
    ids=["documents", "mixture", "evaluation", "evaluation of a mixture"],
)
def test_each_of_16_hosts_copies_the_files_of_its_rows_alone(large, tmp_path, make):
    hosts, rows, read, copied = 16, 2, {}, []
    steps = DocumentStream(large, hosts * rows, 16, seed=3).row_segments_B.max()
    for host in range(hosts):
        store_cache.use(str(tmp_path / f"host {host}"))
        stream = make(TokenStore(large.folder), hosts * rows, 16)
        assert not tokens_in(tmp_path / f"host {host}")
        own = range(host * rows, (host + 1) * rows)
        for step in range(getattr(stream, "num_steps", steps)):
            read[host, step] = stream.batch(step, own.start, rows)
        copied.append(tokens_in(tmp_path / f"host {host}"))
    # Shards are divided between the hosts, evenly, and all are read.
    shards = len(large.manifest["shards"])
    assert sum(map(len, copied)) == len(set().union(*copied)) == shards
    assert max(map(len, copied)) <= 2 * shards / hosts
    stream = make(large, hosts * rows, 16)
    for (host, step), batch in read.items():
        assert same(batch, stream.batch(step, host * rows, rows))


def test_copying_a_small_store_shows_how_many_files_are_there(large, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", -1.0)  # a line for each file
    store = TokenStore(large.folder)
    store.read_all()
    files = len(files_of_manifest(store.manifest))
    lines = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    expected = [f"reading {large.folder}, files {n:,}/{files:,}" for n in range(1, files + 1)]
    assert lines == expected and tokens_in(store.files)


def test_tokens_of_a_bucket_are_read_without_a_copy(large, tmp_path, monkeypatch):
    monkeypatch.setattr(store_cache, "user_cache", lambda name: tmp_path / "home" / name)
    store_cache.use("none")
    damaged = large.folder / "shard-00002" / "tokens.bin"
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    store = TokenStore(large.folder)
    for number in (0, 1, 399):
        assert np.array_equal(store.tokens(number), large.tokens(number))
    with pytest.raises(ValueError, match=r"shard-00002/tokens\.bin is damaged"):
        store.tokens(int(large.shard_documents[2]))
    assert not tokens_in(tmp_path / "home") and store.titles() == large.titles()


def test_a_vocabulary_is_read_from_the_bucket_too(cache, tmp_path):
    words = "the\ntea\n<unk>\n<eos>\n"
    (tmp_path / "words.txt").write_text(words)
    there = f"{BUCKET}/words.txt"
    with pytest.raises(FileNotFoundError, match=there):
        _ = named_vocabulary(f"words:{there}").fingerprint
    RemotePath(there).write_text(words)
    ours = named_vocabulary(f"words:{there}")
    theirs = named_vocabulary(f"words:{tmp_path / 'words.txt'}")
    assert ours.fingerprint == theirs.fingerprint and ours.size == theirs.size
    assert list(ours.encode(b"the tea", "text")) == list(theirs.encode(b"the tea", "text"))
