"""A store whose shards are made by a job: the same bytes, wherever and however often they are made.

What Apache Beam adds is in test_beam.py; nothing here needs it.
"""

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from jobs import (
    Threads,
    corpus,
    files_of,
    finished,
    is_left,
    prepare,
    seen,
    ten_files,
    write,
)
from paths import ROOT

from brt import prepare as prepare_command
from brt.data.corpus import Corpus, StoreMissing
from brt.data.sources.base import Document, Source
from brt.data.sources.files import TextFiles
from brt.data.stores.distributed import make_shard, packed
from brt.data.stores.layout import NOTE
from brt.data.stores.own_folders import claim
from brt.data.stores.shards import ListedDocuments, ShardMaker
from brt.data.stores.verification import verify
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
    verify(store, quiet=True)
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


def test_the_pool_of_this_machine_continues_from_a_job(place):
    job = corpus(place, "job")
    with pytest.raises(KeyboardInterrupt):
        prepare(job, Threads(1, spoil=lambda data: finished(job)[2:] and interrupt()), 150)
    assert len(finished(job)) == 3
    seen(place)
    store = prepare(job, shard_bytes=150)
    assert len(seen(place)) == 4 and len(store.manifest["shards"]) == 5


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["offsets.npy", "manifest.json"])
def test_a_driver_that_is_cut_off_while_it_completes_the_store_leaves_none(
    place, monkeypatch, name
):
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


def test_what_another_source_has_left_in_the_bucket_is_no_part_of_the_store(place):
    job = corpus(place, "job", remote=True)
    stale = [job.path("train") / f"shard-{n:05}" / "tokens.bin" for n in (0, 7)]
    mine = job.path("train") / "notes.txt"
    for path in (*stale, mine):
        path.write_bytes(b"stale")
    prepare(job, Threads(), 150)
    assert not stale[1].exists() and mine.read_bytes() == b"stale"
    mine.unlink()
    prepare(one := corpus(place, "one"), shard_bytes=150)
    assert files_of(one) == files_of(job)


@PLACES
def test_a_document_that_cannot_be_is_named_and_all_other_shards_are_made(place, remote):
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


@PLACES
def test_an_error_that_may_pass_fails_the_job_and_is_told(place, remote, monkeypatch):
    def full(self, run):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ShardMaker, "make", full)
    with pytest.raises(OSError, match="No space left on device"):
        prepare(corpus(place, "job", remote), Threads(1))
    monkeypatch.setattr(ShardMaker, "make", lambda *_: {}["tokens"])
    with pytest.raises(OSError, match="KeyError"):
        prepare(corpus(place, "job", remote), Threads(1))


def test_a_job_whose_shards_arrive_nowhere_says_so(place, monkeypatch):
    monkeypatch.setattr(Threads, "run_job", lambda *_: None)
    with pytest.raises(OSError, match=r"ended, and the shard of documents 0 .* not in .*train"):
        prepare(corpus(place), Threads())


def test_a_worker_that_does_not_see_the_folder_makes_none_there(place):
    source = TextFiles(str(place / "text"))
    run = next(ListedDocuments(source, "train").runs({}))
    folder = place / "not_shared"
    assert make_shard(ShardMaker(folder, ByteVocabulary(), source), packed(run)) is None
    folder.mkdir()  # somebody else's of the same name
    assert make_shard(ShardMaker(folder, ByteVocabulary(), source), packed(run)) is None
    assert [path.name for path in folder.iterdir()] == [f"{run.key}{NOTE}"]
    assert "does not see" in json.loads(next(folder.iterdir()).read_text())["message"]
    claim(folder, is_own=True)
    assert make_shard(ShardMaker(folder, ByteVocabulary(), source), packed(run))["documents"] == 2


def test_a_shard_of_which_a_file_was_taken_away_is_not_finished(place, monkeypatch):
    """As when another driver clears up after a job that still runs."""
    source = TextFiles(str(place / "text"))
    run = next(ListedDocuments(source, "train").runs({}))
    claim(place / "shards")
    maker = ShardMaker(place / "shards", ByteVocabulary(), source)
    finish = ShardWriter.finish

    def cleared(self, *arguments):
        (self.folder / "tokens.bin").unlink()
        return finish(self, *arguments)

    monkeypatch.setattr(ShardWriter, "finish", cleared)
    with pytest.raises(FileNotFoundError):
        maker.make(run)
    assert maker.finished(run) is None and len(list((place / "shards").iterdir())) == 1


# What cannot be asked for


class Stream(Source):
    def documents(self, split):
        yield Document("a", b"text")

    def description(self, split):
        return {"source": "Stream"}


def test_a_source_of_the_main_module_is_refused(place, monkeypatch):
    class Local(TextFiles):  # cannot be pickled either
        pass

    mine = Corpus(str(place / "stores"), Local(str(place / "text")), "bytes")
    with pytest.raises(ValueError, match="Local or ByteVocabulary cannot be sent to workers"):
        mine.prepare("train", quiet=True, runner=Threads())


@pytest.mark.parametrize(
    ("runner", "workers", "words", "sentence"),
    [
        (None, None, ["x"], r"'x' is no flag; bindings are written --gin\.NAME=VALUE"),
        (None, 2, ["--project=p"], "options of Apache Beam need --runner=NAME"),
        ("DirectRunner", None, ["project=p"], "'project=p' is no option of Apache Beam"),
        ("DirectRunner", 3, [], r"--workers=3 is for .* such as -- --direct_num_workers=3\."),
        ("DirectRunner", None, ["--project", "p"], None),
        (None, 2, [], None),
    ],
)
def test_options_of_a_runner_need_one_and_exclude_workers(
    monkeypatch, runner, workers, words, sentence
):
    given = SimpleNamespace(runner=runner, workers=workers, document=None, inspect=None)
    monkeypatch.setattr(prepare_command, "FLAGS", given)
    monkeypatch.setattr(prepare_command, "EXCLUDED", {})
    if sentence is None:
        prepare_command.check_arguments(words)
        return
    with pytest.raises(ValueError, match=sentence):
        prepare_command.check_arguments(words)


def test_workers_import_nothing_that_trains_and_commands_no_beam():
    found = "print({'jax', 'apache_beam'} & {*sys.modules})"
    code = f"import sys, brt.data.stores.beam_pipeline; {found}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
