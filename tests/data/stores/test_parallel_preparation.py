"""Shards: the same store whoever makes them, and nothing is encoded twice, after a kill either."""

import errno
import itertools
import os
import sys
import threading

import pytest
from apart import python, run
from jobs import (
    Threads,
    corpus,
    encoders,
    files_of,
    finished,
    is_left,
    prepare,
    seen,
    ten_files,
    write,
)
from paths import SCRIPTS
from preparation_reference import Observed, Touching

from brt.data.corpus import Corpus, StoreMissing
from brt.data.sources.files import TextFiles
from brt.data.stores import shards, store_writer, writer
from brt.data.stores.distributed import make_shard, packed
from brt.data.stores.inspection import verify
from brt.data.stores.shards import ListedDocuments, ShardMaker
from brt.data.stores.store_writer import write_store
from brt.data.stores.writer import ShardWriter
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


JOB = "a job, each shard twice"
WAYS = {
    "one process": {},
    "two processes": dict(workers=2),
    JOB: dict(runner=Threads(1, times=2)),
    "a job of three workers": dict(runner=Threads(3)),
}
"""Arguments of `prepare`. What Apache Beam adds to a job is in test_beam.py."""


def ways(*in_a_bucket, names=WAYS):
    """The ways on the disk, and some of them in a bucket."""
    cases = [(False, name) for name in names] + [(True, name) for name in in_a_bucket]
    return pytest.mark.parametrize(("remote", "way"), cases)


@ways(JOB, "a job of three workers")
def test_all_ways_write_the_same_bytes_and_encode_once(place, remote, way):
    prepare(one := corpus(place, "one"))
    assert one.open("train").num_documents == one.open("train").manifest["unknown"] == 10
    assert seen(place) == list("0123456789")
    store = prepare(other := corpus(place, "other", remote), **WAYS[way])
    # Another process encodes without JAX: the vocabulary complains where it finds it.
    assert (os.getpid() in encoders(place)) == (way != "two processes")
    assert seen(place) == list("0123456789")
    assert files_of(one) == files_of(other)
    assert len(store.manifest["shards"]) == 5
    verify(store)
    assert not is_left(one) and not is_left(other)


@pytest.mark.parametrize("remote", [False, True])
def test_two_workers_may_make_the_same_shard_at_once(place, remote, monkeypatch, caplog):
    both = threading.Barrier(2)
    finish = ShardWriter.finish

    def together(self, *arguments):
        summary = finish(self, *arguments)
        both.wait(20)
        return summary

    write(place, 0, b"one document")
    for number in range(1, 10):
        (place / "text" / f"{number}.txt").unlink()
    prepare(one := corpus(place, "one"))
    monkeypatch.setattr(ShardWriter, "finish", together)
    job = corpus(place, "job", remote)
    prepare(job, runner=Threads(2, times=2))
    assert files_of(one) == files_of(job)
    assert len(seen(place)) == 3 and "failed" not in caplog.text


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
    assert run(sys.executable, script, place) == "once\n"
    own, ready = (files_of(corpus(place, name)) for name in ("own", "ready"))
    assert own.pop("manifest.json") != ready.pop("manifest.json")  # the name of the source
    assert own == ready


# Kills


def leave_three_shards(place, monkeypatch, made, way="one process"):
    """Interrupts a preparation that has finished three shards of five."""
    make, begun = ShardMaker.make, itertools.count()

    def make_three(self, run):
        if next(begun) == 3:
            raise KeyboardInterrupt
        return make(self, run)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ShardMaker, "make", make_three)
        prepare(made, **WAYS[way])
    assert len(finished(made)) == 3 and len(seen(place)) == 6


@ways(JOB, names=("one process", JOB))
def test_a_killed_preparation_leaves_no_store_and_continues(place, monkeypatch, remote, way):
    made = corpus(place, "made", remote)
    leave_three_shards(place, monkeypatch, made, way)
    assert not made.exists("train")
    with pytest.raises(StoreMissing):
        made.open("train")
    prepare(made, **WAYS[way])
    assert len(seen(place)) == 4 and not is_left(made)
    prepare(one := corpus(place, "one"))
    assert files_of(one) == files_of(made)


@pytest.mark.parametrize("step", ["_lengths", "replace_json", "_remove_others"])
@ways(JOB, names=["one process"])
def test_after_a_kill_at_the_end_nothing_is_encoded_again(place, monkeypatch, remote, way, step):
    def killed(*_):
        raise KeyboardInterrupt

    made = corpus(place, "made", remote)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store_writer, step, killed)
        prepare(made, **WAYS[way])
    assert len(finished(made)) == 5 and len(seen(place)) == 10
    assert made.exists("train") == (step == "_remove_others")
    prepare(made, **WAYS[way])
    assert seen(place) == []
    if step != "_remove_others":
        prepare(one := corpus(place, "one"))
        assert files_of(one) == files_of(made)


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


@pytest.mark.slow  # at moments that were chosen: above
def test_sigkill_at_random_moments_leaves_the_same_bytes():
    script = SCRIPTS / "kill_preparation.py"
    said = run(sys.executable, script, "--kills=2", "--megabytes=3", "--shard_bytes=65536")
    assert "files compared: equal byte for byte" in said


@pytest.mark.parametrize(("number", "read_again"), [(2, "236789"), (":", "6789:")])
def test_of_a_changed_file_only_the_shard_is_made_again(place, monkeypatch, number, read_again):
    leave_three_shards(place, monkeypatch, corpus(place))
    write(place, number, b"another text")
    store = made(place).open("train")
    assert seen(place) == list(read_again)
    document = store.titles().index(str(number))
    assert bytes(store.tokens(document).tolist()).startswith(b"another")


@pytest.mark.parametrize("name", ["tokens.bin", "documents.jsonl", "shard.json"])
def test_a_shard_that_was_cut_short_is_made_again(place, monkeypatch, name):
    leave_three_shards(place, monkeypatch, corpus(place))
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


@ways(JOB, "a job of three workers")
def test_an_id_beyond_the_vocabulary_is_named_with_its_file(place, remote, way):
    write(place, 4, b"big")
    made = corpus(place, "made", remote)
    with pytest.raises(ValueError, match=r"'4' has token id 300.*/4\.txt"):
        prepare(made, **WAYS[way])
    assert not made.exists("train")
    kept = finished(made)
    assert len(kept) == 4 or "runner" not in WAYS[way]  # a job makes the other shards
    seen(place)
    write(place, 4, b"small")
    prepare(made, **WAYS[way])
    assert len(seen(place)) == 10 - 2 * len(kept) and not is_left(made)


def test_a_worker_that_does_not_see_the_folder_makes_none_there(place):
    source = TextFiles(str(place / "text"))
    run = next(ListedDocuments(source, "train").runs({}))
    folder = place / "not_shared"
    assert make_shard(ShardMaker(folder, ByteVocabulary(), source), packed(run)) is None
    assert not folder.exists()
    folder.mkdir()
    assert make_shard(ShardMaker(folder, ByteVocabulary(), source), packed(run))["documents"] == 2


def test_a_shard_of_which_a_file_was_taken_away_is_not_finished(place, monkeypatch):
    """As when another driver clears up after a job that still runs."""
    source = TextFiles(str(place / "text"))
    run = next(ListedDocuments(source, "train").runs({}))
    (place / "shards").mkdir()
    maker = ShardMaker(place / "shards", ByteVocabulary(), source)
    finish = ShardWriter.finish

    def cleared(self, *arguments):
        (self.folder / "tokens.bin").unlink()
        return finish(self, *arguments)

    monkeypatch.setattr(ShardWriter, "finish", cleared)
    with pytest.raises(FileNotFoundError):
        maker.make(run)
    assert maker.finished(run) is None and not any((place / "shards").iterdir())


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


def test_workers_import_nothing_that_trains_and_commands_no_beam():
    found = "print({'jax', 'apache_beam'} & {*sys.modules})"
    assert python(f"import sys, brt.data.stores.distributed; {found}") == "set()\n"
