"""Divides the documents of a store into shards, and makes a shard.

A shard consists of consecutive documents, about `SHARD_BYTES` of them. Its end follows from the
documents alone, so the store has the same bytes for any number of workers. Its key identifies
what it was made from (source, vocabulary, documents, sizes and times of their files), so a later
preparation knows which shards it can use.

Shards are made by processes of this machine (`worker_pool`) or on Apache Beam (`distributed`).
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
from brt.data.stores.layout import FORMAT, SHARD, SHARD_FILES, shard_name, vocabulary_entry
from brt.data.stores.own_folders import remove
from brt.data.stores.writer import ShardWriter, document_digest
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import read_json
from brt.storage.paths import AnyPath, RemotePath, StorageError, is_remote, upload

SHARD_BYTES = 2**23
"""A shard ends when its documents have this many bytes: a few seconds of work."""

SHARD_DOCUMENTS = 2**12
"""Most documents of a shard, unless the number of bytes is given."""


class Run(NamedTuple):
    """The documents of one shard.

    number: of the shard, from 0.
    first: number of its first document, from 0.
    documents: `Document`s, or parts that the source can read.
    size: approximate bytes of the documents.
    key: identifies what the shard is made from.
    names: of the first and the last document, for messages: their files or titles.
    """

    number: int
    first: int
    documents: list[Any]
    size: int
    key: str
    names: tuple[str, str]

    def __str__(self) -> str:
        last = self.first + len(self.documents) - 1
        return f"documents {self.first} ({self.names[0]}) to {last} ({self.names[1]})"


class ListedDocuments:
    """The documents of a source that lists them; workers read them."""

    def __init__(self, source: Source, split: str):
        self.source = source
        self.split = split
        self.parts = source.parts(split)
        self.total: int | None = len(self.parts)
        self._stamps: dict[str, tuple[int, int]] = {}  # of every file when it was listed
        self._stamp = _Stamps()

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        """Yields the runs in order.

        Args:
            made_with: JSON that becomes part of every key.
            shard_bytes: bytes after which a shard ends; None for `SHARD_BYTES` or
                `SHARD_DOCUMENTS` documents.
        """
        first = size = number = 0
        parts: list[Any] = []
        stamps: dict[str, tuple[int, int]] = {}
        for end, part in enumerate(self.parts, 1):
            parts.append(part)
            size += self._note_files(part, stamps)
            if end == len(self.parts) or _is_full(size, len(parts), shard_bytes):
                content = [made_with, [repr(part) for part in parts], stamps]
                names = self._name(parts[0]), self._name(part)
                yield Run(number, first, parts, size, _hexadecimal(content), names)
                first, size, number = end, 0, number + 1
                parts, stamps = [], {}

    def check_unchanged(self) -> None:
        """Refuses the source if it has changed since it was listed.

        Raises:
            ValueError: naming the first file that has changed.
        """
        stamp_of = _Stamps()
        for file, stamp in self._stamps.items():
            if stamp_of(file) != stamp:
                raise _changed(f"{file} changed")
        for old, new in zip_longest(self.parts, self.source.parts(self.split)):
            if old != new:
                raise _changed(f"{new or old} came or went")

    def _name(self, part: Any) -> str:
        return next(iter(self.source.files(part)), str(part))

    def _note_files(self, part: Any, stamps: dict[str, tuple[int, int]]) -> int:
        """Records the files of a part; returns the bytes it adds to its shard."""
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

    source = None

    def __init__(self, documents: Iterable[Document], total: int | None = None):
        self.documents = documents
        self.total = total

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        """Yields the runs in order, as `ListedDocuments.runs`."""
        first = size = number = 0
        documents: list[Document] = []
        digests: list[Any] = [made_with]
        for document in self.documents:
            documents.append(document)
            digests += [document.title, document_digest(document).hex()]
            size += len(document.data)
            size += 8 * np.size(document.tokens) if document.tokens is not None else 0
            del document  # frees it while the source makes the next one
            if _is_full(size, len(documents), shard_bytes):
                yield _streamed_run(number, first, documents, size, digests)
                first, size, number = first + len(documents), 0, number + 1
                documents, digests = [], [made_with]
        if documents:
            yield _streamed_run(number, first, documents, size, digests)

    def check_unchanged(self) -> None:
        """Refuses nothing: a stream cannot be read again."""


def _streamed_run(
    number: int, first: int, documents: list[Document], size: int, digests: list
) -> Run:
    names = documents[0].title, documents[-1].title
    return Run(number, first, documents, size, _hexadecimal(digests), names)


class ShardMaker:
    """Makes the shards of one store, in any number of processes at once.

    On a disk a shard is written to a folder of its own, which then gets its name. In a bucket
    shard.json is written last.

    Args:
        folder: of the store, which all processes see.
        vocabulary: of the ids.
        source: reads the parts of runs; None if the runs contain documents.
    """

    def __init__(self, folder: AnyPath, vocabulary: Vocabulary, source: Source | None):
        self.folder = folder
        self.vocabulary = vocabulary
        self.source = source

    def path(self, run: Run) -> AnyPath:
        """Returns the folder of a run's shard."""
        return self.folder / shard_name(run.number)

    def finished(self, run: Run) -> dict | None:
        """Returns the shard.json of a run's complete shard; None if it has to be made."""
        path = self.path(run)
        try:
            summary = read_json(path / "shard.json", SHARD, "delete the folder")
            whole = summary["key"] == run.key and (
                isinstance(path, RemotePath)
                or all(os.path.getsize(path / n) == size for n, size in summary["sizes"].items())
            )
        except StorageError:
            raise
        except (OSError, ValueError):
            whole = False
        if whole:
            return summary
        if isinstance(path, Path) and path.is_dir():
            remove(path, SHARD_FILES)
        return None

    def make(self, run: Run) -> dict:
        """Makes a run's shard and returns the content of its shard.json."""
        path = self.path(run)
        if isinstance(path, RemotePath):
            with tempfile.TemporaryDirectory(prefix="brt-shard-") as scratch:
                summary = self._write(Path(scratch), run)
                upload(Path(scratch), path, last="shard.json")
            return summary
        growing = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.growing")
        growing.mkdir()
        try:
            summary = self._write(growing, run)
            try:
                os.replace(growing, path)
            except OSError:
                # Another process may have made it in the meantime.
                other = self.finished(run)
                if other is None:
                    raise
                return other
            return summary
        finally:
            with suppress(OSError, ValueError):
                remove(growing, SHARD_FILES)

    def _write(self, folder: Path, run: Run) -> dict:
        with ShardWriter(folder, self.vocabulary) as writer:
            for document in run.documents:
                self._add(writer, document)
            return writer.finish(run.key, run.number)

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
        """Makes the missing shards.

        Yields:
            For each run, in any order: whether its shard is new, and its shard.json.
        """


def key_of(vocabulary: Vocabulary, source_description: dict) -> dict:
    """Returns the part of the keys that all shards of a store have in common, as JSON."""
    return {
        "format": FORMAT,
        "vocabulary": vocabulary_entry(vocabulary),
        "source": source_description,
    }


def _is_full(size: int, documents: int, shard_bytes: int | None) -> bool:
    if shard_bytes is None:
        return size >= SHARD_BYTES or documents == SHARD_DOCUMENTS
    return size >= shard_bytes


def _hexadecimal(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


class _Stamps:
    """Sizes and modification times (ns) of files; (0, -1) for a missing file.

    For objects of a bucket the size and the version in the listing of their folder, which is
    requested once.
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
