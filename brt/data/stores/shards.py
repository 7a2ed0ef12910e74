"""The shards of a store: what each of them holds, and who has made it; none is made twice.

A shard is a run of consecutive documents, `SHARD_BYTES` of them or a little more. Where a run ends
follows from the documents alone, so the store has the same bytes for any number of workers. A shard
has its name, `shard-<key>`, once it is complete. The key identifies what went in (source and
vocabulary, which documents, the size and time of their files), so a later preparation can tell
which shards it may use and which it has to write.

They are made by the processes of this machine (`worker_pool`), or on Apache Beam (`distributed`).
"""

import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest
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
from brt.storage.paths import AnyPath, RemotePath, is_remote, upload

SHARD_BYTES = 2**23
"""A shard takes documents until they have as many bytes: a second's work, or a few."""

SHARD_DOCUMENTS = 2**12
"""A shard has no more documents than this, unless its bytes are given."""


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

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        """Yields the runs in order.

        Args:
            made_with: JSON that becomes part of every key.
            shard_bytes: bytes after which a shard ends; None for `SHARD_BYTES`, or
                `SHARD_DOCUMENTS` documents.
        """

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
        self._stamp = _Stamps()

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        """Yields the runs in order, as `Documents`."""
        first = size = 0
        parts: list[Any] = []
        stamps: dict[str, tuple[int, int]] = {}
        for number, part in enumerate(self.parts, 1):
            parts.append(part)
            size += self._note_files(part, stamps)
            if number == len(self.parts) or _is_full(size, len(parts), shard_bytes):
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
        stamp_of = _Stamps()
        for file, stamp in self._stamps.items():
            if stamp_of(file) != stamp:
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
                self._stamps[file] = self._stamp(file)
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

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        """Yields the runs in order, as `Documents`."""
        first = size = 0
        documents: list[Document] = []
        digests: list[Any] = [made_with]
        for document in self.documents:
            documents.append(document)
            digests += [document.title, document_digest(document).hex()]
            size += len(document.data)
            size += 8 * np.size(document.tokens) if document.tokens is not None else 0
            del document  # or it would stay while the source makes the next one
            if _is_full(size, len(documents), shard_bytes):
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
    """Makes the shards of one store, in any number of processes at once.

    Args:
        folder: where they are written: an existing folder, which all processes see.
        vocabulary: the vocabulary of the ids.
        source: the source whose parts runs hold; None when they hold documents.
    """

    folder: AnyPath

    def __init__(self, folder: Path, vocabulary: Vocabulary, source: Source | None):
        self.folder = folder
        self.vocabulary = vocabulary
        self.source = source

    def path(self, run: Run) -> AnyPath:
        """Returns the folder of a run's shard, whether it is there or not."""
        return self.folder / f"shard-{run.key}"

    def finished(self, run: Run) -> dict | None:
        """Returns what shard.json of a complete shard says; None if it has to be made."""
        path = Path(self.path(run))
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
        growing = Path(self.folder) / f"{run.key}.{uuid.uuid4().hex[:12]}.growing"
        growing.mkdir()
        try:
            summary = self._write(growing, run)
            try:
                os.replace(growing, self.path(run))
            except OSError:  # another process has made it in the meantime
                if (other := self.finished(run)) is None:
                    raise
                remove(growing, SHARD_FILES)
                summary = other
        except BaseException:
            with suppress(OSError, ValueError):
                remove(growing, SHARD_FILES)
            raise
        return summary

    def _write(self, folder: Path, run: Run) -> dict:
        with ShardWriter(folder, self.vocabulary) as writer:
            for document in run.documents:
                self._add(writer, document)
            return writer.finish()

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


class ShardRunner(Protocol):
    """Has the shards of a store made, by processes of this machine or of others."""

    def make(self, maker: ShardMaker, runs: Iterable[Run]) -> Iterator[tuple[bool, dict]]:
        """Makes the shards of `runs` that are not there yet.

        Yields:
            For each run, as they are finished: whether its shard is new, and what its shard.json
            says.
        """


class RemoteShardMaker(ShardMaker):
    """Makes the shards of one store in a bucket.

    A shard is written to this machine's disk and copied, its shard.json last: until that is there,
    no shard is.
    """

    def __init__(self, folder: RemotePath, vocabulary: Vocabulary, source: Source | None):
        self.folder = folder
        self.vocabulary = vocabulary
        self.source = source

    def finished(self, run: Run) -> dict | None:
        """Returns what shard.json of a complete shard says; None if it has to be made."""
        path = self.path(run) / "shard.json"
        try:
            return read_json(path, SHARD, "remove the object")
        except (FileNotFoundError, ValueError):
            return None

    def make(self, run: Run) -> dict:
        """Makes a run's shard and returns what its shard.json says."""
        path = self.path(run)
        assert isinstance(path, RemotePath)
        with tempfile.TemporaryDirectory(prefix="brt-shard-") as name:
            growing = Path(name)
            summary = self._write(growing, run)
            upload(growing, path, last="shard.json")
        return summary


def key_of(vocabulary: Vocabulary, source_description: dict) -> dict:
    """Returns what the shards of a store have in common, as JSON."""
    return {
        "format": FORMAT,
        "vocabulary": vocabulary_entry(vocabulary),
        "source": source_description,
    }


def _is_full(size: int, documents: int, shard_bytes: int | None) -> bool:
    """Returns whether a shard of so many bytes and documents takes no more."""
    if shard_bytes is None:
        return size >= SHARD_BYTES or documents == SHARD_DOCUMENTS
    return size >= shard_bytes


def _run_of(first: int, documents: list[Document], size: int, digests: list) -> Run:
    """A run of documents that came one after another."""
    names = documents[0].title, documents[-1].title
    return Run(first, documents, size, _hexadecimal(digests), names)


def _hexadecimal(content: Any) -> str:
    """Hashes JSON, short enough for a folder's name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


class _Stamps:
    """Sizes and times (ns) of files; of one that is gone, what no file has.

    Of objects in a bucket the size and the version, as a listing of their folder says, which is
    asked for once.
    """

    def __init__(self) -> None:
        self._listings: dict[RemotePath, dict[str, tuple[int, int]]] = {}

    def __call__(self, file: str) -> tuple[int, int]:
        try:
            if not is_remote(file):
                status = os.stat(file)
                return status.st_size, status.st_mtime_ns
            path = RemotePath(file)
            if path.parent not in self._listings:
                self._listings[path.parent] = path.parent.stamps()
            return self._listings[path.parent].get(path.name, (0, -1))
        except FileNotFoundError:
            return 0, -1


def _changed(what: str) -> ValueError:
    return ValueError(
        f"{what} while its corpus was being prepared, so no store was made: run the same command "
        "again when the source is at rest. Only what changed is read again."
    )
