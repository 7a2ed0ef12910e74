"""Shards: the same store for any number of workers, and nothing is written twice."""

import errno
import os
import subprocess
import sys

import pytest
from jobs import corpus, files_of, finished, seen, ten_files, write
from paths import ROOT
from preparation_reference import Observed, Touching

from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.stores import shards, store_writer, writer
from brt.data.stores.store_writer import write_store
from brt.data.vocabularies.base import ByteVocabulary


@pytest.fixture
def place(tmp_path, monkeypatch):
    with ten_files(tmp_path, monkeypatch) as folder:
        yield folder


def made(place, name="store", source=TextFiles, workers=1, vocabulary=None):
    """A prepared corpus of the ten files."""
    text = source(str(place / "text"))
    made = Corpus(str(place / name), text, vocabulary or Observed(place / "seen"))
    made.prepare("train", quiet=True, workers=workers)
    return made


# One store, whoever writes it


def test_workers_write_the_store_of_one_process(place):
    one = made(place, "one")
    assert one.open("train").num_documents == one.open("train").manifest["unknown"] == 10
    assert seen(place) == list("0123456789")
    two = made(place, "two", workers=2)  # the observed complains where it finds JAX
    assert files_of(one) == files_of(two)
    encoders = {path.name.split(".")[1] for path in (place / "seen").glob("?.*")}
    assert encoders and str(os.getpid()) not in encoders
    assert seen(place) == list("0123456789")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_gives_the_same_store_as_the_list(place, workers):
    source = TextFiles(str(place / "text"))
    store = made(place, vocabulary=ByteVocabulary())
    files = store.open("train").manifest["source"]["files"]
    write_store(
        place / "streamed" / "train",
        source.documents("train"),
        ByteVocabulary(),
        {**source.description("train"), "files": files},
        quiet=True,
        workers=workers,
    )
    assert files_of(store) == files_of(corpus(place, "streamed"))


def test_a_script_without_a_guard_runs_once(place):
    script = place / "script.py"
    script.write_text(
        """if True:
        import sys
        from brt.data.stores import shards
        from brt.data.corpus import Corpus
        from brt.data.sources.files import TextFiles
        shards.SHARD_BYTES = 150
        print("once")
        class Mine(TextFiles):
            pass
        for name, source in [("own", Mine), ("ready", TextFiles)]:
            store = sys.argv[1] + "/" + name
            Corpus(store, source(sys.argv[1] + "/text"), "bytes").prepare("train", workers=2)
        """
    )
    done = subprocess.run(
        [sys.executable, str(script), str(place)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr
    own, ready = (files_of(corpus(place, name)) for name in ("own", "ready"))
    assert own.pop("manifest.json") != ready.pop("manifest.json")  # the name of the source
    assert own == ready


# Kills


def test_after_a_killed_worker_the_next_run_continues(place):
    write(place, 6, b"kill")
    (place / "seen" / "armed").touch()
    with pytest.raises(ChildProcessError, match="store/train was killed"):
        made(place, workers=2)
    before = finished(corpus(place))
    assert before and not corpus(place).exists("train")
    seen(place)
    (place / "seen" / "armed").unlink()
    store = made(place, workers=2)
    again = seen(place)
    assert set(again) >= {"6", "7"} and len(again) == 10 - 2 * len(before)
    assert files_of(store) == files_of(made(place, "whole"))


@pytest.mark.parametrize("step", ["_lengths", "replace_json", "_remove_others"])
def test_after_a_kill_at_the_end_nothing_is_encoded_again(place, monkeypatch, step):
    with monkeypatch.context() as patch:

        def killed(*_):
            raise KeyboardInterrupt

        patch.setattr(store_writer, step, killed)
        with pytest.raises(KeyboardInterrupt):
            made(place)
    assert len(finished(corpus(place))) == 5 and len(seen(place)) == 10
    store = made(place)
    assert seen(place) == []
    if step != "_remove_others":
        assert files_of(store) == files_of(made(place, "whole"))


@pytest.mark.slow  # at moments that were chosen: above
def test_sigkill_at_random_moments_leaves_the_same_bytes():
    script = ROOT / "scripts" / "kill_preparation.py"
    command = [sys.executable, str(script), "--kills=2", "--megabytes=3", "--shard_bytes=65536"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "files compared: equal byte for byte" in done.stdout


def half_done(place, monkeypatch):
    """Leaves the first three shards of a preparation that was interrupted."""
    make = shards.ShardMaker.make

    def make_three(self, run):
        if run.first == 6:
            raise KeyboardInterrupt
        return make(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardMaker, "make", make_three)
        with pytest.raises(KeyboardInterrupt):
            made(place)
    assert len(finished(corpus(place))) == 3 and seen(place) == list("012345")


@pytest.mark.parametrize(("number", "read_again"), [(2, "236789"), (":", "6789:")])
def test_of_a_changed_file_only_the_shard_is_made_again(place, monkeypatch, number, read_again):
    half_done(place, monkeypatch)
    write(place, number, b"another text")
    store = made(place).open("train")
    assert seen(place) == list(read_again)
    document = store.titles().index(str(number))
    assert bytes(store.tokens(document).tolist()).startswith(b"another")


@pytest.mark.parametrize("name", ["tokens.bin", "documents.jsonl", "shard.json"])
def test_a_shard_that_was_cut_short_is_made_again(place, monkeypatch, name):
    half_done(place, monkeypatch)
    path = place / "store" / "train" / "shard-00001" / name
    os.truncate(path, path.stat().st_size // 2)
    store = made(place)
    assert len(seen(place)) == 6
    assert files_of(store) == files_of(made(place, "whole"))


# Sources and documents that cannot be


def test_a_file_changed_during_preparation_makes_no_store(place):
    with pytest.raises(ValueError, match=r"/0\.txt changed"):
        made(place, source=Touching)
    assert not corpus(place).exists("train")
    (place / "text" / "5.txt").unlink()
    made(place, source=Touching)


@pytest.mark.parametrize("comes", [True, False])
def test_a_file_that_comes_or_goes_during_preparation_is_named(place, monkeypatch, comes):
    check = shards.ListedDocuments.check_unchanged

    def changed(self):
        if comes:
            write(place, 11, b"new")
        else:
            (place / "text" / "3.txt").unlink()
        check(self)

    monkeypatch.setattr(shards.ListedDocuments, "check_unchanged", changed)
    with pytest.raises(ValueError, match=r"11\.txt came or went" if comes else r"3\.txt changed"):
        made(place)
    assert not corpus(place).exists("train")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_id_beyond_the_vocabulary_is_named_with_its_file(place, workers):
    write(place, 8, b"big")
    with pytest.raises(ValueError, match=r"'8' has token id 300.*/8\.txt"):
        made(place, workers=workers)
    assert not corpus(place).exists("train")


def test_pieces_and_files_read_by_parts_give_the_same_store(place, monkeypatch):
    whole = made(place, "whole", vocabulary=ByteVocabulary())
    monkeypatch.setattr(writer, "PIECE", 7)
    monkeypatch.setattr("brt.data.sources.files.WHOLE", 50)
    assert not isinstance(TextFiles("unused").read(str(place / "text" / "1.txt")).data, bytes)
    assert files_of(whole) == files_of(made(place, "pieces", vocabulary=ByteVocabulary()))
    made(place, "observed")  # a vocabulary that needs the bytes


def test_a_disk_that_fills_keeps_the_finished_shards_and_says_so(place, monkeypatch):
    synced = [0]
    sync = os.fsync

    def full(descriptor):
        synced[0] += 1
        if synced[0] > 7:  # three files a shard
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(writer.os, "fsync", full)
        with pytest.raises(OSError, match=r"store/train.* 2 finished shards"):
            made(place)
    assert len(finished(corpus(place))) == 2
    seen(place)
    made(place)
    assert seen(place) == list("456789")
