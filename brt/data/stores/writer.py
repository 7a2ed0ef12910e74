"""Writes the shards of a token store: the files of a run of consecutive documents.

`shards` decides what a shard holds, `joining` and `sharded` make a store of shards.
A shard is a folder:

    shard.json        its counts, its files' sizes, and the sha256 of those that stay as they are
    tokens.bin, weights.bin, documents.jsonl      as in a store
    lengths.bin       int64 (documents,): tokens of each
    digests.bin       32 bytes a document: the sha256 of what the source gave
"""

import codecs
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from brt.checks import ManyFrom0
from brt.data.sources.base import Document
from brt.data.vocabularies.base import Vocabulary
from brt.storage.file_parts import FileBytes, pieces
from brt.storage.json_files import Fields
from brt.storage.paths import AnyPath, RemotePath

FORMAT = 2
"""Version of the layout, written to every manifest."""

DTYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
WEIGHT = np.dtype("<f4")
OFFSET = np.dtype("<i8")
MOST_WEIGHT = 1_000_000
"""The largest loss weight of a token."""
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
            # By the names that were written: were one gone, this would be no shard.
            "sizes": {name: os.path.getsize(self.folder / name) for name in self._files.names},
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
            for data in ones(self.counts["tokens"]):
                self._weights(data)
        if weights is None:
            for data in ones(tokens):
                self._weights(data)
            return
        if np.shape(weights) != (tokens,):
            raise ValueError(
                f"Document {document.title!r} has {tokens} tokens but weights of shape "
                f"{np.shape(weights)}: give one weight a token."
            )
        if wrong := misfit_of_weights(np.asarray(weights)):
            raise ValueError(f"Document {document.title!r} has weights of which {wrong}.")
        self._weights(np.asarray(weights, WEIGHT).tobytes())


def misfit_of_weights(weights: np.ndarray) -> str:
    """Says which loss weight has no meaning; an empty string if all have."""
    is_bad = ~((weights >= 0) & (weights <= MOST_WEIGHT))  # NaN is neither
    if not is_bad.any():
        return ""
    return f"one is {weights[is_bad][0]:g}, and they must be from 0 to {MOST_WEIGHT:,}"


class SyncedFiles(ExitStack):
    """New files of a folder, which are on disk for certain once the context is left."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self._names: list[str] = []

    @property
    def names(self) -> list[str]:
        """The names of all files so far, sorted."""
        return sorted(self._names)

    def new(self, name: str) -> BinaryIO:
        """Opens a new file for writing bytes."""
        self._names.append(name)
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
    digest = hashlib.sha256()
    for data in pieces(document.data):
        digest.update(data)
    if document.tokens is not None:
        digest.update(np.asarray(document.tokens, OFFSET).tobytes())
    if document.weights is not None:
        digest.update(np.asarray(document.weights, WEIGHT).tobytes())
    if document.annotation is not None:
        digest.update(json.dumps(document.annotation, sort_keys=True).encode())
    return digest.digest()


def count_text(data: bytes | FileBytes) -> tuple[int, int]:
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


def ones(count: int) -> Iterator[bytes]:
    """Yields so many weights of 1, as a file has them, a little at a time."""
    for start in range(0, count, PIECE):
        yield np.ones(min(PIECE, count - start), WEIGHT).tobytes()
