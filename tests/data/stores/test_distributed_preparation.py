"""A store whose shards are made by a job: the same bytes, wherever and however often they are made.

What Apache Beam adds is in test_beam.py; nothing here needs it.
"""

import subprocess
import sys
import threading

import pytest
from jobs import Threads, corpus, files_of, finished, is_left, prepare, seen, ten_files, write
from paths import ROOT

from brt.data.corpus import StoreMissing
from brt.data.sources.files import TextFiles
from brt.data.stores.distributed import make_shard, packed
from brt.data.stores.inspection import verify
from brt.data.stores.shards import ListedDocuments, ShardMaker
from brt.data.stores.writer import ShardWriter
from brt.data.vocabularies.base import ByteVocabulary
from brt.storage.paths import RemotePath, StorageError

PLACES = pytest.mark.parametrize("remote", [False, True])


@pytest.fixture
def place(tmp_path, monkeypatch):
    with ten_files(tmp_path, monkeypatch) as folder:
        yield folder


# One store, whoever writes it


@PLACES
@pytest.mark.parametrize("runner", [Threads(1, times=2), Threads(4, times=2)])
def test_a_job_writes_the_bytes_of_one_process(place, remote, runner):
    one, job = corpus(place, "one"), corpus(place, "job", remote)
    prepare(one)
    assert seen(place) == sorted("0123456789")
    store = prepare(job, runner)
    encoded = seen(place)
    assert set(encoded) == set("0123456789")
    assert len(encoded) == 10 or runner.workers > runner.times == 2  # nothing twice, but at once
    assert files_of(one) == files_of(job)
    assert len(store.manifest["shards"]) == 5
    verify(store)
    assert not is_left(job) and not is_left(one)


@PLACES
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
    prepare(job, Threads(2, times=2))
    assert files_of(one) == files_of(job)
    assert len(seen(place)) == 3 and "failed" not in caplog.text


# Jobs that are killed, or fail


@PLACES
def test_a_killed_job_leaves_no_store_and_goes_on(place, remote):
    made = []

    def kill(data):
        made.append(data)
        if len(made) == 4:
            raise KeyboardInterrupt

    job = corpus(place, "job", remote)
    with pytest.raises(KeyboardInterrupt):
        prepare(job, Threads(1, spoil=kill))
    assert not job.exists("train")
    with pytest.raises(StoreMissing):
        job.open("train")
    assert len(finished(job)) == 3 and len(seen(place)) == 6
    again = Threads(2)
    prepare(job, again)
    assert len(again.given) == 2 and len(seen(place)) == 4
    prepare(one := corpus(place, "one"))
    assert files_of(one) == files_of(job) and not is_left(job)


@pytest.mark.parametrize("name", ["offsets.npy", "manifest.json"])
def test_a_driver_killed_at_the_end_leaves_no_store(place, monkeypatch, name):
    job = corpus(place, "job", remote=True)
    usual = RemotePath.write_bytes

    def cut(self, content):
        if self.name == name:
            raise StorageError("The line is cut.")
        return usual(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "write_bytes", cut)
        with pytest.raises(StorageError, match="cut"):
            prepare(job, Threads())
    assert not job.exists("train") and len(seen(place)) == 10
    prepare(job, Threads())
    assert seen(place) == []  # no document is encoded again
    prepare(one := corpus(place, "one"))
    assert files_of(one) == files_of(job)


@PLACES
def test_a_bad_document_is_named_and_other_shards_are_made(place, remote):
    write(place, 4, b"big")
    job = corpus(place, "job", remote)
    with pytest.raises(ValueError, match=r"'4' has token id 300.*/4\.txt"):
        prepare(job, Threads())
    assert not job.exists("train") and len(finished(job)) == 4
    seen(place)
    write(place, 4, b"small")
    prepare(job, Threads())
    assert seen(place) == ["4", "5"]  # and the note of before is forgotten
    assert not is_left(job)


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


# What cannot be asked for


def test_workers_import_nothing_that_trains_and_commands_no_beam():
    found = "print({'jax', 'apache_beam'} & {*sys.modules})"
    code = f"import sys, brt.data.stores.distributed; {found}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
