"""Writes the shards of a store in several processes, and none of them again after a kill.

A shard is a run of consecutive documents, `SHARD_BYTES` of them or a little more. Where a run ends
follows from the documents alone, so the store has the same bytes for any number of workers. A shard
has its name, `shard-<key>`, once it is complete. The key identifies what went in (source and
vocabulary, which documents, the size and time of their files), so a later preparation can tell
which shards it may use and which it has to write.

Workers are processes of their own that know nothing of this one's: they import neither JAX nor the
program that asks for the store. What a source or a vocabulary needs is sent to them once.
"""

import hashlib
import json
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice, zip_longest
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from brt.data.sources.base import Document, Source
from brt.data.stores.own_folders import remove
from brt.data.stores.writer import (
    FORMAT,
    SHARD,
    SHARD_FILES,
    ShardWriter,
    document_digest,
    vocabulary_entry,
)
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import read_json

SHARD_BYTES = 2**23
"""A shard takes documents until they have as many bytes: a second's work, or a few."""

SHARD_DOCUMENTS = 2**12
"""A shard has no more documents than this."""

SENT_BYTES = 2**26
"""More than this is not sent to a worker, but encoded where it was read."""


class Run(NamedTuple):
    """The documents of one shard.

    first: number of the first one in the store, from 0.
    documents: `Document`s, or parts which the source can read.
    size: bytes of the documents, about.
    key: identifies what the shard is made from.
    names: of the first and the last document, for messages: their files or titles.
    """

    first: int
    documents: list[Any]
    size: int
    key: str
    names: tuple[str, str]

    def __str__(self) -> str:
        last = self.first + len(self.documents) - 1
        return f"documents {self.first} ({self.names[0]}) to {last} ({self.names[1]})"


class Documents(Protocol):
    """The documents of a new store.

    source: the source that reads the parts of `runs`; None where these hold documents.
    total: number of documents, None where it is not known.
    """

    source: Source | None
    total: int | None

    def runs(self, made_with: dict) -> Iterator[Run]:
        """Yields the runs in order; `made_with` is JSON that becomes part of every key."""

    def check_unchanged(self) -> None:
        """Refuses documents that are not what they were when `runs` began.

        Raises:
            ValueError: naming the first file that has changed, gone or come.
        """


class ListedDocuments:
    """The documents of a source that lists them: workers read them.

    Raises:
        OSError, ValueError: the source cannot be listed.
    """

    def __init__(self, source: Source, split: str):
        self.source = source
        self.split = split
        self.parts = source.parts(split)
        self.total: int | None = len(self.parts)
        self._stamps: dict[str, tuple[int, int]] = {}  # of every file when it was listed

    def runs(self, made_with: dict) -> Iterator[Run]:
        """Yields the runs in order; `made_with` is JSON that becomes part of every key."""
        first = size = 0
        parts: list[Any] = []
        stamps: dict[str, tuple[int, int]] = {}
        for number, part in enumerate(self.parts, 1):
            parts.append(part)
            size += self._note_files(part, stamps)
            if size >= SHARD_BYTES or len(parts) == SHARD_DOCUMENTS or number == len(self.parts):
                content = [made_with, [repr(part) for part in parts], stamps]
                names = self._name(parts[0]), self._name(part)
                yield Run(first, parts, size, _hexadecimal(content), names)
                first = number
                size = 0
                parts = []
                stamps = {}

    def check_unchanged(self) -> None:
        """Refuses the source if it is not what it was when it was listed.

        Raises:
            ValueError: naming the first file that has changed, gone or come.
        """
        for file, stamp in self._stamps.items():
            if _stamp(file) != stamp:
                raise _changed(f"{file} changed")
        again = self.source.parts(self.split)
        for old, new in zip_longest(self.parts, again):
            if old != new:
                raise _changed(f"{new or old} came or went")

    def _name(self, part: Any) -> str:
        """The first file of a part, for messages."""
        return next(iter(self.source.files(part)), str(part))

    def _note_files(self, part: Any, stamps: dict[str, tuple[int, int]]) -> int:
        """Notes the files of a part; returns the bytes it adds to its shard."""
        added = 0
        for file in self.source.files(part):
            if file not in self._stamps:
                self._stamps[file] = _stamp(file)
                added += self._stamps[file][0]
            stamps[file] = self._stamps[file]
        size = self.source.part_bytes(part)
        return added if size is None else size


class StreamedDocuments:
    """Documents that come one after another: they are read here, and workers encode them."""

    def __init__(self, documents: Iterable[Document], total: int | None = None):
        self.source: Source | None = None
        self.documents = documents
        self.total = total

    def runs(self, made_with: dict) -> Iterator[Run]:
        """Yields the runs in order; `made_with` is JSON that becomes part of every key."""
        first = size = 0
        documents: list[Document] = []
        digests: list[Any] = [made_with]
        for document in self.documents:
            documents.append(document)
            digests += [document.title, document_digest(document).hex()]
            size += len(document.data)
            size += 8 * np.size(document.tokens) if document.tokens is not None else 0
            del document  # or it would stay while the source makes the next one
            if size >= SHARD_BYTES or len(documents) == SHARD_DOCUMENTS:
                yield _run_of(first, documents, size, digests)
                first += len(documents)
                documents = []
                digests = [made_with]
                size = 0
        if documents:
            yield _run_of(first, documents, size, digests)

    def check_unchanged(self) -> None:
        """Refuses nothing: a stream cannot be read again to compare."""


class ShardMaker:
    """Makes the shards of one store.

    Args:
        folder: where they are written, an existing folder.
        vocabulary: the vocabulary of the ids.
        source: the source whose parts runs hold; None when they hold documents.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary, source: Source | None):
        self.folder = folder
        self.vocabulary = vocabulary
        self.source = source

    def path(self, run: Run) -> Path:
        """Returns the folder of a run's shard, whether it is there or not."""
        return self.folder / f"shard-{run.key}"

    def finished(self, run: Run) -> dict | None:
        """Returns what shard.json of a complete shard says; None if it has to be made."""
        path = self.path(run)
        try:
            summary = read_json(path / "shard.json", SHARD, "delete the folder")
            sizes = summary["sizes"]
            whole = sizes.keys() <= set(SHARD_FILES) and all(
                os.path.getsize(path / name) == size for name, size in sizes.items()
            )
        except (OSError, ValueError):
            whole = False
        if whole:
            return summary
        if path.is_dir():
            remove(path, SHARD_FILES)
        return None

    def make(self, run: Run) -> dict:
        """Makes a run's shard and returns what its shard.json says."""
        growing = self.folder / f"{run.key}.{os.getpid()}.growing"
        if growing.is_dir():
            remove(growing, SHARD_FILES)
        growing.mkdir()
        try:
            with ShardWriter(growing, self.vocabulary) as writer:
                for document in run.documents:
                    self._add(writer, document)
                summary = writer.finish()
            os.replace(growing, self.path(run))
        except BaseException:
            with suppress(OSError, ValueError):
                remove(growing, SHARD_FILES)
            raise
        return summary

    def _add(self, writer: ShardWriter, document: Any) -> None:
        if self.source is None:
            writer.add(document)
            return
        files = ", ".join(list(self.source.files(document))[:3])
        try:
            writer.add(self.source.read(document))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{files} was there when the source was listed, and is gone: put it back, or run "
                "the same command again to do without it."
            ) from None
        except ValueError as error:
            raise ValueError(f"{error} It was read from {files}.") from error


def make_shards(maker: ShardMaker, runs: Iterable[Run], workers: int) -> Iterator[dict]:
    """Makes the shards of `runs`; yields what their shard.json say as they are finished.

    With one worker, or one run, this process makes them.

    Raises:
        ChildProcessError: a worker was killed.
        OSError, ValueError: as making a shard.
    """
    runs = iter(runs)
    first = list(islice(runs, 2 if workers > 1 else 0))
    runs = chain(first, runs)
    setup = _pickled(maker) if len(first) == 2 else None
    if setup is None:
        for run in runs:
            yield maker.make(run)
        return
    crew: list[_Worker] = []
    idle: list[_Worker] = []
    busy: dict[Any, _Worker] = {}  # by their connections

    def finished() -> Iterator[dict]:
        for ready in connection.wait(list(busy)):
            worker = busy.pop(ready)
            summary = worker.answer()
            idle.append(worker)
            yield summary

    try:
        for run in runs:
            if maker.source is None and (run.size > SENT_BYTES or _has_tokens(run)):
                yield maker.make(run)
                continue
            if not idle and len(crew) < workers:
                crew.append(_Worker(setup))
                idle.append(crew[-1])
            while not idle:
                yield from finished()
            worker = idle.pop()
            worker.give(run)
            busy[worker.connection] = worker
        while busy:
            yield from finished()
    finally:
        for worker in crew:
            worker.end()


class _Worker:
    """A process that makes one shard at a time."""

    def __init__(self, setup: bytes):
        self.run: Run | None = None
        self.connection, theirs = connection.Pipe()
        self.process = get_context("spawn").Process(target=_work, args=(theirs, setup), daemon=True)
        with _main_module_hidden():
            self.process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        """Sends a run, whose shard is then made."""
        self.run = run
        try:
            self.connection.send(run)
        except OSError:
            raise self._lost() from None

    def answer(self) -> dict:
        """Returns what the shard.json of the run says, or raises what making it raised."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Ends the process; whatever it was making is made anew another time."""
        self.connection.close()
        self.process.terminate()
        self.process.join()

    def _lost(self) -> ChildProcessError:
        self.process.join(10)
        code = self.process.exitcode
        how = f"killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        return ChildProcessError(
            f"The worker that prepared {self.run} was {how}, perhaps for want of memory: run the "
            "same command again, with a smaller --workers if need be. What is finished is kept."
        )


def _work(requests: Any, setup: bytes) -> None:
    """Makes the shards of all runs that come through a connection: the main loop of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the process that ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    maker = pickle.loads(setup)
    while True:
        try:
            run = requests.recv()
        except EOFError:
            return
        try:
            answer = maker.make(run)
        except Exception as error:
            answer = _portable(error)
        requests.send(answer)


def _end_with_parent() -> None:
    """Ends this process with its parent, so that a killed preparation leaves no writer behind."""
    parent = parent_process()
    assert parent is not None  # workers have one
    connection.wait([parent.sentinel])
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """Returns an error that survives being sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _pickled(maker: ShardMaker) -> bytes | None:
    """Returns the maker as bytes; None when it cannot leave this process.

    What is defined in the main module cannot: workers do not import that.
    """
    try:
        with _main_module_hidden():
            return pickle.dumps(maker)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Replaces the main module by an empty one for a while.

    `spawn` would have every worker import the main module, JAX and all, and a script without
    `if __name__ == "__main__"` would run once more in each.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def key_of(vocabulary: Vocabulary, source_description: dict) -> dict:
    """Returns what the shards of a store have in common, as JSON."""
    return {
        "format": FORMAT,
        "vocabulary": vocabulary_entry(vocabulary),
        "source": source_description,
    }


def _run_of(first: int, documents: list[Document], size: int, digests: list) -> Run:
    """A run of documents that came one after another."""
    names = documents[0].title, documents[-1].title
    return Run(first, documents, size, _hexadecimal(digests), names)


def _has_tokens(run: Run) -> bool:
    return any(document.tokens is not None for document in run.documents)


def _hexadecimal(content: Any) -> str:
    """Hashes JSON, short enough for a folder's name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _stamp(file: str) -> tuple[int, int]:
    """Returns size and time (ns) of a file; of one that is gone, what no file has."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return 0, -1
    return status.st_size, status.st_mtime_ns


def _changed(what: str) -> ValueError:
    return ValueError(
        f"{what} while its corpus was being prepared, so no store was made: run the same command "
        "again when the source is at rest. Only what changed is read again."
    )
