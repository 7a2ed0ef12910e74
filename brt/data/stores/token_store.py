"""Token stores: the documents of one split, as token ids in a folder.

    manifest.json     what the store was made from, its counts, and the sha256 of its files
    tokens.bin        the ids of all documents, one after another: little-endian uint16 or uint32
    offsets.npy       int64 (documents + 1,): document d is tokens[offsets[d]:offsets[d + 1]]
    weights.bin       float32, one a token; only where some document has loss weights
    documents.jsonl   one line a document: title, tokens, bytes, words, characters, and its
                      annotation where a source gives any

A large one may have many files of each kind (`sharded`). A store is written whole or not at all,
and a later preparation goes on where an earlier one ended (`growth`). Opening a store costs the
same whatever its size. What is asked for is read, not mapped: a store that is cut short while it is
read ends the command with a sentence, not with SIGBUS.
"""

import errno
import os
import time
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from brt.checks import Count, CountFrom0, Many, ManyFrom0
from brt.data.sources.base import Document
from brt.data.stores.growth import Growth, LocalGrowth
from brt.data.stores.sharded import (
    SHARDED_FORMAT,
    SHARDS,
    JoinedArray,
    document_files,
    files_of,
    misfit_of_shards,
    shard_name,
)
from brt.data.stores.shards import (
    ListedDocuments,
    Run,
    ShardMaker,
    ShardRunner,
    StreamedDocuments,
    key_of,
)
from brt.data.stores.store_cache import local_copy
from brt.data.stores.worker_pool import WorkerPool
from brt.data.stores.writer import DTYPES, FORMAT, OFFSET, STORE_FILES, WEIGHT
from brt.data.vocabularies.base import Vocabulary
from brt.progress import Progress
from brt.storage.file_parts import FileArray
from brt.storage.json_files import DamagedFile, Fields, misfit, read_json, read_json_lines
from brt.storage.paths import AnyPath, as_path
from brt.storage.regular_files import check_inside, check_regular, open_regular

HOW_TO_REPEAT = "delete the folder and prepare it again"

VOCABULARY = Fields(
    {"name": str, "size": Count, "fingerprint": str},
    {"file": str, "frame": Fields({"before": list[CountFrom0], "after": list[CountFrom0]})},
)
MANIFEST = Fields(
    {
        "source": dict,
        "source_hash": str,
        "vocabulary": VOCABULARY,
        "dtype": str,
        "weighted": bool,
        **dict.fromkeys(("documents", "tokens"), Many),
        **dict.fromkeys(("bytes", "words", "characters"), ManyFrom0),
        "unknown": ManyFrom0 | None,
        "content": str,
        "hashes": dict[str, str],
    }
)
"""What every manifest of this format has."""
DOCUMENT = Fields(
    {"title": str, **dict.fromkeys(("tokens", "bytes", "words", "characters"), ManyFrom0)},
    {"annotation": dict | None},
)
"""A line of documents.jsonl."""


def write_store(
    folder: str | os.PathLike,
    documents: ListedDocuments | StreamedDocuments | Iterable[Document],
    vocabulary: Vocabulary,
    source_description: dict,
    total: int | None = None,
    quiet: bool = False,
    workers: int = 1,
    shard_bytes: int | None = None,
    runner: ShardRunner | None = None,
    growth: Growth | None = None,
) -> dict:
    """Writes `documents` to a new token store and returns its manifest.

    The store is the same for any number of workers, and any runner. Shards that an earlier call has
    finished, from the same documents, are used. A process holds one document at a time, or the
    documents of a few shards where they are not listed. The disk holds the store twice for a
    moment, unless it is sharded.

    Args:
        folder: the store to make; folders above it are made too.
        documents: at least one `Document`; those without tokens are encoded by `vocabulary`.
        vocabulary: the vocabulary of the ids.
        source_description: goes into the manifest; JSON.
        total: number of documents where known, for the progress display.
        quiet: no progress display.
        workers: number of processes that encode; with 1 it is this one.
        shard_bytes: of the documents of a shard, or a few more: the store has a token file a shard.
            None for one token file.
        runner: makes the shards instead of the workers.
        growth: where the shards are put, and what becomes of them; None for a store on this disk.

    Raises:
        FileExistsError: `folder` exists.
        ValueError: no document, a document without a token, an id outside the vocabulary, weights
            that do not fit the tokens, a source that changed in between, or a folder of somebody
            else where the store is to grow.
        ChildProcessError: a worker was killed.
        OSError: the disk is full.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists: delete it, or give the new store another name.")
    growth = growth or LocalGrowth(folder)
    growth.begin()
    if not isinstance(documents, (ListedDocuments, StreamedDocuments)):
        documents = StreamedDocuments(documents, total)
    progress = Progress(str(folder), documents.total, quiet=quiet)
    try:
        maker = growth.maker(vocabulary, documents.source)
        runs = documents.runs(key_of(vocabulary, source_description), shard_bytes)
        shards = _make_missing(maker, runs, runner or WorkerPool(workers), progress)
        documents.check_unchanged()
        if not shards:
            raise ValueError(
                f"The source has no documents for {folder.name}: correct its settings, which are "
                f"{source_description}."
            )
        sharded = shard_bytes is not None
        manifest = growth.finish(shards, vocabulary, source_description, sharded)
    except BaseException as error:
        kept = growth.leave()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"The disk was full before store {folder} was whole: free some space, or bind "
                f"Corpus.store to a folder on another disk.{kept}",
            ) from error
        raise
    finally:
        progress.close()
    growth.clear()
    return manifest


def _make_missing(
    maker: ShardMaker, runs: Iterable[Run], runner: ShardRunner, progress: Progress
) -> list[AnyPath]:
    """Makes the shards that are not there yet; returns the folders of all, in order."""
    shards: list[AnyPath] = []
    done = size = 0

    def listed() -> Iterator[Run]:
        for run in runs:
            shards.append(maker.path(run))
            yield run

    for is_new, summary in runner.make(maker, listed()):
        done += summary["documents"]
        if is_new:
            size += summary["bytes"]
        else:
            progress.start += summary["documents"]
        seconds = max(time.monotonic() - progress.begun, 1e-9)
        speed = f"{(done - progress.start) / seconds:.3g} documents/s"
        progress.update(done, aside=f"{speed}  {size / seconds / 1e6:.3g} MB/s")
    return shards


class TokenStore:
    """A token store, open for reading.

    Attributes:
        folder: path of the store, on a disk or in a bucket.
        files: folder of its files on this disk: the store's own, or this host's copy.
        manifest: its manifest, a dict.
        lengths_D: tokens of each document, int64 (documents,).
        has_weights: whether it holds loss weights.

    Raises:
        FileNotFoundError: there is no folder, or the store in it is incomplete.
        ValueError: the manifest cannot be used, a file's size differs from what it says, or a file
            is a link that leads out of the folder.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder: AnyPath = as_path(folder)
        self.files = self.folder if isinstance(self.folder, Path) else local_copy(self.folder)
        self.manifest = read_manifest(self.files)
        check_inside(self.files, ("offsets.npy", *files_of(self.manifest)))
        dtype = DTYPES[self.manifest["dtype"]]
        self._offsets = _read_offsets(self.files, self.manifest)
        self._tokens = self._array("tokens.bin", dtype)
        self.has_weights = self.manifest["weighted"]
        self._weights = self._array("weights.bin", WEIGHT) if self.has_weights else None
        self.lengths_D = np.diff(self._offsets)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.lengths_D)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all documents."""
        return len(self._tokens)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Returns ids start to stop of a document, fewer where it ends; uint16 or uint32.

        Raises:
            IndexError: there is no such document.
        """
        return self._tokens[self._range(document, start, stop)]

    def weights(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Returns the loss weights of the same tokens, float32; ones where the store holds none.

        Raises:
            IndexError: there is no such document.
        """
        tokens = self._range(document, start, stop)
        if self._weights is None:
            return np.ones(tokens.stop - tokens.start, np.float32)
        return self._weights[tokens]

    @property
    def all_tokens(self) -> FileArray | JoinedArray:
        """Ids of all documents, one after another: (num_tokens,), read by parts."""
        return self._tokens

    @property
    def all_weights(self) -> FileArray | JoinedArray | None:
        """Loss weights of all tokens, float32 (num_tokens,); None where the store holds none."""
        return self._weights

    def titles(self) -> list[str]:
        """Returns the titles of all documents, in order."""
        return [line["title"] for line in self.entries()]

    def annotations(self) -> list[dict[str, Any] | None]:
        """Returns what is told of each document besides its text, in order; None for nothing."""
        return [line.get("annotation") for line in self.entries()]

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yields what documents.jsonl says of each document: its title and counts.

        Raises:
            ValueError: a line is damaged.
        """
        for name in document_files(files_of(self.manifest)):
            yield from read_json_lines(self.files / name, DOCUMENT, HOW_TO_REPEAT)

    def _array(self, name: str, dtype: np.dtype) -> FileArray | JoinedArray:
        """The files of this name; all of them are there, and have the right size."""
        if "shards" not in self.manifest:
            return _read_by_parts(self.files / name, dtype, self.manifest["tokens"])
        shards = self.manifest["shards"]
        held = set(files_of(self.manifest))

        def array(number: int) -> np.ndarray | FileArray:
            path = f"{shard_name(number)}/{name}"
            count = shards[number]["tokens"]
            if path in held:
                return _read_by_parts(self.files / path, dtype, count)
            return np.broadcast_to(dtype.type(1), count)  # a shard without weights

        for number, shard in enumerate(shards):
            if f"{shard_name(number)}/{name}" in held:
                _check_size(self.files / shard_name(number) / name, shard["tokens"], dtype)
        return JoinedArray([shard["tokens"] for shard in shards], dtype, array)

    def _range(self, document: int, start: int, stop: int | None) -> slice:
        if not 0 <= document < len(self.lengths_D):
            raise IndexError(
                f"{self.folder} has no document {document}: ask for one of its "
                f"{self.num_documents}."
            )
        first = int(self._offsets[document])
        end = int(self._offsets[document + 1])
        start = min(first + max(start, 0), end)
        return slice(start, end if stop is None else max(start, min(first + stop, end)))


def read_manifest(folder: Path) -> dict:
    """Returns the manifest of a token store.

    Raises:
        FileNotFoundError, ValueError: as `TokenStore`.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"No token store is at {folder}: prepare it, or correct the path.")
    path = folder / "manifest.json"
    check_inside(folder, ["manifest.json"])
    try:
        manifest = read_json(path, Fields({}, {"format": int}), HOW_TO_REPEAT)
    except FileNotFoundError:
        is_empty = not any(folder.iterdir())
        if not is_empty and not any((folder / name).exists() for name in STORE_FILES):
            raise FileNotFoundError(
                f"{folder} is no token store, as it has no manifest.json: correct the path."
            ) from None
        raise FileNotFoundError(
            f"{folder} has no manifest.json, as when its preparation or a copy of it was "
            f"interrupted: {HOW_TO_REPEAT}."
        ) from None
    version = manifest.get("format")
    if version not in (FORMAT, SHARDED_FORMAT):
        raise ValueError(
            f"{path} has store format {version}, and this version of brt reads {FORMAT} "
            f"and {SHARDED_FORMAT}: "
            f"{HOW_TO_REPEAT}."
        )
    wrong = misfit(MANIFEST, manifest)
    if version == SHARDED_FORMAT:
        wrong = wrong or misfit(SHARDS, manifest) or misfit_of_shards(manifest)
    elif "shards" in manifest:
        wrong = wrong or f"a store of format {FORMAT} has no shards"
    if not wrong and manifest["dtype"] not in DTYPES:
        wrong = f"dtype = {manifest['dtype']!r} is none of {', '.join(DTYPES)}"
    if wrong:
        raise DamagedFile(f"{path} is damaged, as {wrong}: {HOW_TO_REPEAT}.")
    return manifest


def _read_offsets(folder: Path, manifest: dict) -> np.ndarray:
    path = folder / "offsets.npy"
    count = manifest["documents"] + 1
    try:
        with open_regular(path) as file:
            # The header first: it may promise more than there is memory.
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("another version of the format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            size = os.fstat(file.fileno()).st_size - file.tell()
            fits = shape == (count,) and dtype == OFFSET and size == count * OFFSET.itemsize
            offsets = np.frombuffer(file.read(), OFFSET) if fits else None
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has no offsets.npy: {HOW_TO_REPEAT}.") from None
    except (ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{path} cannot be read ({error}): {HOW_TO_REPEAT}.") from None
    if (
        offsets is None
        or offsets[0] != 0
        or offsets[-1] != manifest["tokens"]
        or np.any(np.diff(offsets) < 1)
    ):
        raise ValueError(
            f"{path} does not describe {manifest['documents']} documents with "
            f"{manifest['tokens']} tokens, as the manifest says: {HOW_TO_REPEAT}."
        )
    return offsets


def _read_by_parts(path: Path, dtype: np.dtype, count: int) -> FileArray:
    _check_size(path, count, dtype)
    return FileArray(path, dtype, f"If it was not brt that did, {HOW_TO_REPEAT}.")


def _check_size(path: Path, count: int, dtype: np.dtype) -> None:
    """Refuses a file that does not have so many items."""
    try:
        check_regular(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} has no {path.name}: {HOW_TO_REPEAT}.") from None
    expected = count * dtype.itemsize
    found = os.path.getsize(path)
    if found != expected:
        raise ValueError(
            f"{path} should have {expected} bytes and has {found}, as when it was cut short or "
            f"changed: {HOW_TO_REPEAT}."
        )
