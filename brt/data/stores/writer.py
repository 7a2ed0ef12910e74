"""Writes the files of a token store: in shards of consecutive documents, which are then joined.

`token_store` describes the store, `shards` decides what a shard holds and which process writes it.
A shard is a folder:

    shard.json        its counts, its files' sizes, and the sha256 of those that stay as they are
    tokens.bin, weights.bin, documents.jsonl      as in a store
    lengths.bin       int64 (documents,): tokens of each
    digests.bin       32 bytes a document: the sha256 of what the source gave
"""

import codecs
import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from brt.checks import ManyFrom0
from brt.data.sources.base import Document
from brt.data.stores.own_folders import remove
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import Fields, read_json
from brt.storage.paths import AnyPath, RemotePath

FORMAT = 2
"""Version of the layout, written to every manifest."""

DTYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
WEIGHT = np.dtype("<f4")
OFFSET = np.dtype("<i8")
COUNTS = ("documents", "tokens", "bytes", "words", "characters", "unknown")

STORE_FILES = ("manifest.json", "tokens.bin", "weights.bin", "offsets.npy", "documents.jsonl")
SHARD_FILES = (
    *("shard.json", "tokens.bin", "weights.bin", "documents.jsonl", "lengths.bin", "digests.bin"),
)
"""All that is ever written to a store, and to a shard."""

SHARD = Fields(
    {**dict.fromkeys(COUNTS, ManyFrom0), "hashes": dict[str, str], "sizes": dict[str, ManyFrom0]}
)
"""What shard.json says."""

PIECE = 2**16
"""Bytes of a document that are encoded together where that changes nothing."""

WHOLE = 2**25
"""Bytes of the longest document that is encoded whole: SentencePiece takes up to 50 times that,
and a process should need no more than 2 GB."""


class ShardWriter:
    """The files of one shard while they grow; a context that closes them.

    Args:
        folder: an existing, empty folder.
        vocabulary: the vocabulary of the ids; encodes documents that come without tokens.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary):
        self.folder = folder
        self.vocabulary = vocabulary
        self.size = vocabulary.size
        self.unknown_id = vocabulary.unknown_id
        self.dtype: np.dtype = DTYPES[dtype_name(self.size)]
        self.counts = dict.fromkeys(COUNTS, 0)
        self.hashes: dict[str, hashlib._Hash] = {}
        self._files = SyncedFiles(folder)

    def __enter__(self) -> "ShardWriter":
        self._tokens = self._new("tokens.bin")
        self._lines = self._new("documents.jsonl")
        self._lengths = self._files.new("lengths.bin")
        self._digests = self._files.new("digests.bin")
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def add(self, document: Document) -> None:
        """Appends one document.

        Raises:
            ValueError: no token, an id outside the vocabulary, weights of another length, or more
                than `WHOLE` bytes for a vocabulary without `cuts_after`.
        """
        tokens = sum(self._add_tokens(document, ids) for ids in self._encoded(document))
        if not tokens:
            raise ValueError(
                f"Document {document.title!r} has no tokens ({len(document.data)} bytes): remove "
                "it from the source."
            )
        self._add_weights(document, tokens)
        words, characters = count_text(document.data)
        counts = {
            "tokens": tokens,
            "bytes": len(document.data),
            "words": words,
            "characters": characters,
        }
        line = {"title": document.title, **counts}
        if document.annotation is not None:
            line["annotation"] = document.annotation
        self._lines(json.dumps(line).encode() + b"\n")
        self._lengths.write(np.array(tokens, OFFSET).tobytes())
        self._digests.write(document_digest(document))
        for name, count in counts.items():
            self.counts[name] += count
        self.counts["documents"] += 1

    def finish(self) -> dict:
        """Puts everything on disk, then writes and returns what shard.json says."""
        self._files.close()
        summary = {
            **self.counts,
            "hashes": {name: digest.hexdigest() for name, digest in self.hashes.items()},
            "sizes": {file.name: file.stat().st_size for file in sorted(self.folder.iterdir())},
        }
        write_json(self.folder, "shard.json", summary)
        return summary

    def _new(self, name: str) -> Callable[[bytes], None]:
        """Makes a function that appends to a new file, and to the hash of its content."""
        file = self._files.new(name)
        digest = hashlib.sha256()
        self.hashes[name] = digest

        def append(data: bytes) -> None:
            file.write(data)
            digest.update(data)

        return append

    def _encoded(self, document: Document) -> Iterator[np.ndarray]:
        """Yields the ids of a document, in one piece or several."""
        data = document.data
        after = self.vocabulary.cuts_after
        if document.tokens is not None:
            yield np.asarray(document.tokens)
        elif after is not None:
            start = 0
            while start < len(data):
                stop = data.find(after, min(start + PIECE, len(data)) - len(after))
                stop = len(data) if stop < 0 else stop + len(after)
                yield self._encoded_piece(data[start:stop], start, document.title)
                start = stop
        elif len(data) > WHOLE:
            raise ValueError(
                f"Document {document.title!r} has {len(data):,} bytes, and vocabulary "
                f"{self.vocabulary.name!r} has to encode a document whole, of at most {WHOLE:,} "
                'bytes: cut it into several documents, or bind Corpus.vocabulary = "bytes".'
            )
        else:
            yield np.asarray(self.vocabulary.encode(data[:], document.title))

    def _encoded_piece(self, data: bytes, start: int, title: str) -> np.ndarray:
        try:
            return np.asarray(self.vocabulary.encode(data, title))
        except ValueError as error:
            if start:
                raise ValueError(
                    f"{error} Bytes and characters count from byte {start:,} of the document."
                ) from None
            raise

    def _add_tokens(self, document: Document, ids: np.ndarray) -> int:
        if not ids.size:
            return 0
        low = ids.min()
        high = ids.max()
        if low < 0 or high >= self.size:
            raise ValueError(
                f"Document {document.title!r} has token id {low if low < 0 else high}, outside "
                f"vocabulary {self.vocabulary.name!r} of size {self.size}: use the "
                "vocabulary that made its tokens."
            )
        self._tokens(ids.astype(self.dtype).tobytes())
        if self.unknown_id is not None:
            self.counts["unknown"] += int(np.count_nonzero(ids == self.unknown_id))
        return ids.size

    def _add_weights(self, document: Document, tokens: int) -> None:
        weights = document.weights
        if weights is None and "weights.bin" not in self.hashes:
            return
        if "weights.bin" not in self.hashes:  # the documents so far count 1 a token
            self._weights = self._new("weights.bin")
            for data in _ones(self.counts["tokens"]):
                self._weights(data)
        if weights is None:
            for data in _ones(tokens):
                self._weights(data)
            return
        if np.shape(weights) != (tokens,):
            raise ValueError(
                f"Document {document.title!r} has {tokens} tokens but weights of shape "
                f"{np.shape(weights)}: give one weight a token."
            )
        self._weights(np.asarray(weights, WEIGHT).tobytes())


def join_shards(
    folder: Path, shards: Sequence[Path], vocabulary: Vocabulary, source_description: dict
) -> dict:
    """Writes the files of a store from its shards, in order, and returns its manifest.

    Args:
        folder: an existing, empty folder.
        shards: folders that `ShardWriter` has finished, at least one.
        vocabulary: the vocabulary of the ids.
        source_description: goes into the manifest; JSON.

    Raises:
        ValueError: a shard is not what it was when it was finished; it is removed.
    """
    again = "delete the folder and run the same command again"
    summaries = [read_json(shard / "shard.json", SHARD, again) for shard in shards]
    totals = {name: sum(summary[name] for summary in summaries) for name in COUNTS}
    if vocabulary.unknown_id is None:
        totals["unknown"] = None
    weighted = any("weights.bin" in summary["hashes"] for summary in summaries)
    with SyncedFiles(folder) as files:
        hashes = {
            name: _join(files.new(name), shards, summaries, name)
            for name in ("tokens.bin", "documents.jsonl", *["weights.bin"] * weighted)
        }
        _join_offsets(files.new("offsets.npy"), shards, totals["documents"])
    source_hash = hashlib.sha256()
    for shard in shards:
        source_hash.update((shard / "digests.bin").read_bytes())
    manifest = {
        "format": FORMAT,
        "source": source_description,
        "source_hash": source_hash.hexdigest(),
        "vocabulary": vocabulary_entry(vocabulary),
        "dtype": dtype_name(vocabulary.size),
        "weighted": weighted,
        **totals,
        "content": hashes["tokens.bin"],
        "hashes": hashes,
    }
    write_json(folder, "manifest.json", manifest)
    return manifest


class SyncedFiles(ExitStack):
    """New files of a folder, which are on disk for certain once the context is left."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def new(self, name: str) -> BinaryIO:
        """Opens a new file for writing bytes."""
        file = self.enter_context((self.folder / name).open("wb"))
        self.callback(_sync, file)
        return file


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def write_json(folder: Path, name: str, content: Any) -> None:
    """Writes a JSON file, on disk for certain."""
    with SyncedFiles(folder) as files:
        files.new(name).write(json.dumps(content, indent=2).encode() + b"\n")


def replace_json(folder: AnyPath, name: str, content: Any) -> None:
    """Replaces a JSON file, or writes a new one; a reader finds the old or the new, never half."""
    if isinstance(folder, RemotePath):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
        return
    write_json(folder, f"{name}.new", content)
    os.replace(folder / f"{name}.new", folder / name)


def vocabulary_entry(vocabulary: Vocabulary) -> dict:
    """Returns a vocabulary's entry in a manifest.

    That is name, size and fingerprint, and as far as it has them its file and its frame.
    """
    entry: dict[str, Any] = {
        "name": vocabulary.name,
        "size": int(vocabulary.size),
        "fingerprint": vocabulary.fingerprint,
    }
    if vocabulary.path is not None:
        entry["file"] = vocabulary.path
    if vocabulary.frame.before or vocabulary.frame.after:
        entry["frame"] = vocabulary.frame._asdict()
    return entry


def dtype_name(size: int) -> str:
    """Returns the type that holds the ids of a vocabulary of this size."""
    return "uint16" if size <= 2**16 else "uint32"


def document_digest(document: Document) -> bytes:
    """Hashes what a source gave (sha256).

    That is its bytes, then any tokens (int64), weights (float32) and annotation (JSON).
    """
    digest = hashlib.sha256(document.data)
    if document.tokens is not None:
        digest.update(np.asarray(document.tokens, OFFSET).tobytes())
    if document.weights is not None:
        digest.update(np.asarray(document.weights, WEIGHT).tobytes())
    if document.annotation is not None:
        digest.update(json.dumps(document.annotation, sort_keys=True).encode())
    return digest.digest()


def count_text(data: bytes | mmap.mmap) -> tuple[int, int]:
    """Counts words and characters of a document, whose invalid UTF-8 reads as U+FFFD.

    Words are what white space, Unicode's included, separates. Memory does not grow with `data`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    words = characters = 0
    inside = False  # whether the text so far ends within a word
    for start in range(0, len(data), PIECE):
        text = decoder.decode(data[start : start + PIECE], final=start + PIECE >= len(data))
        if text:
            words += len(text.split()) - (inside and not text[0].isspace())
            characters += len(text)
            inside = not text[-1].isspace()
    return words, characters


def _ones(count: int) -> Iterator[bytes]:
    """Yields so many weights of 1, as a file has them, a little at a time."""
    for start in range(0, count, PIECE):
        yield np.ones(min(PIECE, count - start), WEIGHT).tobytes()


def _pieces(path: Path) -> Iterator[bytes]:
    """Yields the content of a file, a little at a time."""
    with open(path, "rb") as file:
        while data := file.read(2**20):
            yield data


def _join(file: BinaryIO, shards: Sequence[Path], summaries: Sequence[dict], name: str) -> str:
    """Appends a file of every shard to `file`; returns the sha256 of the whole."""
    whole = hashlib.sha256()
    for shard, summary in zip(shards, summaries):
        has_file = name in summary["hashes"]
        own = hashlib.sha256()
        # A shard without weights, where others have some, counts 1 a token.
        for data in _pieces(shard / name) if has_file else _ones(summary["tokens"]):
            file.write(data)
            whole.update(data)
            own.update(data)
        if has_file and own.hexdigest() != summary["hashes"][name]:
            remove(shard, SHARD_FILES)
            raise ValueError(
                f"{shard / name} is damaged, and has been removed: run the same command again to "
                "make it anew, and check the disk."
            )
    return whole.hexdigest()


def _join_offsets(file: BinaryIO, shards: Sequence[Path], documents: int) -> None:
    """Writes what `np.save` would, without holding more than a shard's."""
    header = {"descr": OFFSET.str, "fortran_order": False, "shape": (documents + 1,)}
    np.lib.format.write_array_header_1_0(file, header)
    last = 0
    file.write(np.array(last, OFFSET).tobytes())
    for shard in shards:
        offsets = last + np.cumsum(np.fromfile(shard / "lengths.bin", OFFSET))
        file.write(offsets.astype(OFFSET).tobytes())
        last = int(offsets[-1])
