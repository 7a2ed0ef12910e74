"""Preparation by jobs: a corpus of ten files to try it on, and threads that do what workers do."""

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from preparation_reference import Observed

from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.stores import shards, store_cache
from brt.data.stores.distributed import JobRunner, make_shard
from brt.storage.paths import RemotePath

BUCKET = "memory://test-jobs"


class Threads(JobRunner):
    """Makes shards in threads, in no order, each of them as often as is asked for.

    Args:
        workers: number of threads.
        times: an element is given out so often, as runners do that try again.
    """

    def __init__(self, workers=3, times=1):
        super().__init__("DirectRunner")
        self.workers = workers
        self.times = times

    def run_job(self, setup, runs):
        makers = [pickle.loads(setup) for _ in range(self.workers)]
        elements = [run for run in reversed(runs) for _ in range(self.times)]
        ended = threading.Event()

        def work(number, data):
            if ended.is_set():
                return
            try:
                make_shard(makers[number % self.workers], data)
            except BaseException:
                ended.set()
                raise

        with ThreadPoolExecutor(self.workers) as threads:
            list(threads.map(work, range(len(elements)), elements))


@contextmanager
def ten_files(folder, monkeypatch):
    """Fills a folder with ten files of 100 bytes, of which two make a shard; an empty bucket."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 150)
    monkeypatch.setattr(MemoryFileSystem, "put_file", whole)
    for name in ("text", "seen"):
        (folder / name).mkdir()
    (folder / "seen" / f"home.{os.getpid()}").touch()
    for number in range(10):
        write(folder, number, f"text of {number}? ".encode())
    store_cache.use(str(folder / "cache"))
    yield folder
    store_cache.use(None)
    fsspec.filesystem("memory").store.clear()


def whole(storage, file, url, **_):
    """Puts a file as a bucket does, not at first an empty one."""
    storage.pipe_file(url, Path(file).read_bytes())


def write(place, number, start):
    (place / "text" / f"{number}.txt").write_bytes(start.ljust(100, b"x"))


def corpus(place, name="store", remote=False):
    store = f"{BUCKET}/{name}" if remote else str(place / name)
    return Corpus(store, TextFiles(str(place / "text")), Observed(place / "seen"))


def prepare(corpus, runner=None, workers=1, shard_bytes=None):
    corpus.prepare("train", quiet=True, workers=workers, shard_bytes=shard_bytes, runner=runner)
    return corpus.open("train")


def files_of(corpus):
    """The files of a store by their names, on the disk or in the bucket."""
    folder = corpus.path("train")
    if isinstance(folder, RemotePath):
        return {file.relative_to(folder): file.read_bytes() for file in folder.files()}
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def is_left(corpus):
    """Whether anything but the store is left of how it was made."""
    names = files_of(corpus).keys() - {"manifest.json"}
    return names != corpus.open("train").manifest["hashes"].keys()


def finished(corpus):
    """Names of the shards that are finished."""
    names = [name.partition("/") for name in files_of(corpus)]
    return sorted(folder for folder, _, name in names if name == "shard.json")


def encoders(place):
    """The processes that have encoded documents so far."""
    return {int(path.name.split(".")[1]) for path in (place / "seen").glob("?.*")}


def seen(place):
    """Titles of the documents that have been encoded, each as often as it was; forgets them."""
    titles = []
    for path in (place / "seen").glob("?.*"):
        titles += [path.name[0]] * len(path.read_text().splitlines())
        path.unlink()
    return sorted(titles)
