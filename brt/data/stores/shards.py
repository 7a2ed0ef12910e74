"""Divides documents into shards, and makes shards. A shard's end follows from its documents alone.
Its key identifies source, vocabulary and documents, with sizes and times of files, for reuse by a
later preparation.
"""

import functools
import hashlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from brt.data.sources.base import Document, Source
from brt.data.stores.layout import FILES, FORMAT, SHARD, SHARD_FILES, shard_name, vocabulary_entry
from brt.data.stores.own_folders import remove
from brt.data.stores.writer import ShardWriter, document_digest
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import read_json
from brt.storage.paths import AnyPath, RemotePath, StorageError, is_remote, upload

SHARD_BYTES = 2**23
"""Bytes of documents at which a shard ends: a few seconds of work."""

SHARD_DOCUMENTS = 2**12
"""Most documents of a shard, unless its bytes are given."""


class Run(NamedTuple):
    """The documents of one shard.

    number, first: of the shard and of its first document, from 0.
    documents: `Document`s, or parts that the source can read.
    size: approximate bytes of the documents.
    key: identifies source, vocabulary and documents.
    names: of the first and the last document, for messages.
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


class _Item(NamedTuple):
    document: Any  # as of `Run`
    size: int
    identity: list  # JSON that becomes part of the key
    name: str


def _runs(items: Iterator[_Item], made_with: dict, shard_bytes: int | None) -> Iterator[Run]:
    first = number = size = 0
    shard: list[_Item] = []
    most = SHARD_DOCUMENTS if shard_bytes is None else sys.maxsize
    for item in items:
        shard.append(item)
        size += item.size
        del item  # frees the document before the source makes the next one
        if size >= (shard_bytes or SHARD_BYTES) or len(shard) == most:
            yield _run(number, first, shard, size, made_with)
            first, size, number = first + len(shard), 0, number + 1
            shard = []
    if shard:
        yield _run(number, first, shard, size, made_with)


def _run(number: int, first: int, shard: list[_Item], size: int, made_with: dict) -> Run:
    content = json.dumps([made_with, [item.identity for item in shard]], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    names = shard[0].name, shard[-1].name
    return Run(number, first, [item.document for item in shard], size, key, names)


class ListedDocuments:
    """The documents of a source that lists them; workers read them."""

    def __init__(self, source: Source, split: str):
        self.source = source
        self.split = split
        self.parts = source.parts(split)
        self.total: int | None = len(self.parts)
        self._stamps: dict[str, tuple[int, int]] = {}  # of every file when it was listed

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        return _runs(self._items(), made_with, shard_bytes)

    def _items(self) -> Iterator[_Item]:
        stamp_of = _stamps()
        for part in self.parts:
            files = self.source.files(part)
            new = [file for file in files if file not in self._stamps]
            self._stamps |= {file: stamp_of(file) for file in new}
            size = self.source.part_bytes(part)
            if size is None:
                size = sum(self._stamps[file][0] for file in new)
            identity = [repr(part), [self._stamps[file] for file in files]]
            yield _Item(part, size, identity, next(iter(files), str(part)))

    def check_unchanged(self) -> None:
        """Raises, naming the first file, if the source has changed since it was listed."""
        stamp_of = _stamps()
        for file, stamp in self._stamps.items():
            if stamp_of(file) != stamp:
                raise _changed(f"{file} changed")
        for old, new in zip_longest(self.parts, self.source.parts(self.split)):
            if old != new:
                raise _changed(f"{new or old} came or went")


class StreamedDocuments:
    """Documents that this process reads, and workers encode."""

    source = None

    def __init__(self, documents: Iterable[Document], total: int | None = None):
        self.documents = documents
        self.total = total

    def runs(self, made_with: dict, shard_bytes: int | None = None) -> Iterator[Run]:
        return _runs(map(_streamed, self.documents), made_with, shard_bytes)

    def check_unchanged(self) -> None:
        """Does nothing: a stream cannot be read again."""


def documents_of(source: Source, split: str) -> ListedDocuments | StreamedDocuments:
    if source.listed:
        return ListedDocuments(source, split)
    return StreamedDocuments(source.documents(split), source.count(split))


def _streamed(document: Document) -> _Item:
    size = len(document.data) + 8 * np.size(document.tokens if document.tokens is not None else [])
    identity = [document.title, document_digest(document).hex()]
    return _Item(document, size, identity, document.title)


class ShardMaker:
    """Makes the shards of one store; several processes may work at once.

    On a disk a shard is written to a temporary folder and renamed; in a bucket shard.json is
    written last.
    """

    def __init__(self, folder: AnyPath, vocabulary: Vocabulary, source: Source | None):
        self.folder = folder
        self.vocabulary = vocabulary
        self.source = source

    def finished(self, run: Run) -> dict | None:
        """Returns the shard.json of a run's complete shard, or None."""
        path = self.folder / shard_name(run.number)
        try:
            summary = read_json(path / "shard.json", SHARD, "delete the folder")
            if summary["key"] == run.key and (
                isinstance(path, RemotePath)
                or all(os.path.getsize(path / n) == size for n, size in summary["sizes"].items())
            ):
                return summary
        except StorageError:
            raise
        except (OSError, ValueError):
            pass
        if isinstance(path, Path) and path.is_dir():
            remove(path, SHARD_FILES)
        return None

    def make(self, run: Run) -> dict:
        path = self.folder / shard_name(run.number)
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
                # Another process may have made it meanwhile.
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


def key_of(vocabulary: Vocabulary, source_description: dict) -> dict:
    return {
        "format": FORMAT,
        "vocabulary": vocabulary_entry(vocabulary),
        # Each shard has the identities of its own files.
        "source": {name: x for name, x in source_description.items() if name != FILES},
    }


def _stamps() -> Callable[[str], tuple[int, int]]:
    """Returns a function from a file to its size and modification time (ns); (0, -1) for none.

    For objects in a bucket the version; the listing of a folder is requested once.
    """
    listing = functools.cache(RemotePath.stamps)

    def stamp(file: str) -> tuple[int, int]:
        try:
            if is_remote(file):
                path = RemotePath(file)
                return listing(path.parent).get(path.name, (0, -1))
            status = os.stat(file)
            return status.st_size, status.st_mtime_ns
        except FileNotFoundError:
            return 0, -1

    return stamp


def _changed(what: str) -> ValueError:
    return ValueError(
        f"{what} while its corpus was being prepared, so no store was made: run the same command "
        "again when the source is at rest. Only what changed is read again."
    )
