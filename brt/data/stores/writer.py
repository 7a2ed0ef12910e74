"""Writes the shards of a token store, which `layout` describes."""

import codecs
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from absl import logging

from brt.data.sources.base import Document
from brt.data.stores.layout import COUNTS, DTYPES, OFFSET, WEIGHT, dtype_name
from brt.data.vocabularies.base import Vocabulary, cut
from brt.storage.file_parts import FileBytes, pieces
from brt.storage.replaced_files import new_file, replace_json, sync

MAX_WEIGHT = 1_000_000

PIECE = 2**16
"""Bytes encoded at once if the vocabulary allows cuts."""

NOT_UTF8 = 10
"""Warnings of invalid UTF-8 in one process."""

WHOLE = 2**25
"""Most bytes of a document encoded whole: SentencePiece needs up to 50 times as much memory."""


class ShardWriter:
    """The files of one shard in an empty folder; a context manager that closes them."""

    def __init__(self, folder: Path, vocabulary: Vocabulary):
        self.folder = folder
        self.vocabulary = vocabulary
        self.size = vocabulary.size
        self.unknown_id = vocabulary.unknown_id
        self.dtype = DTYPES[dtype_name(self.size)]
        self.counts = dict.fromkeys(COUNTS, 0)
        self.hashes: dict[str, hashlib._Hash] = {}
        self._source = hashlib.sha256()
        self._files = ExitStack()

    def __enter__(self) -> "ShardWriter":
        self._tokens = self._new("tokens.bin")
        self._lines = self._new("documents.jsonl")
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def add(self, document: Document) -> None:
        tokens = sum(self._add_tokens(document, ids) for ids in self._encoded(document))
        if not tokens:
            raise ValueError(
                f"Document {document.title!r} has no tokens ({len(document.data)} bytes): remove "
                "it from the source."
            )
        self._add_weights(document, tokens)
        words, characters = count_text(document.data)
        if document.tokens is None and (wrong := first_misfit_of_utf8(document.data)) is not None:
            logging.log_first_n(
                logging.WARNING,
                "%s is not UTF-8 (its byte %d begins no character): its bytes are kept as they "
                "are, and generated text may show others for them.",
                *(NOT_UTF8, document.title, wrong),
            )
        counts = {"tokens": tokens, "bytes": len(document.data)}
        counts |= {"words": words, "characters": characters}
        line = {"title": document.title, **counts}
        if document.annotation is not None:
            line["annotation"] = document.annotation
        self._lines(json.dumps(line).encode() + b"\n")
        self._source.update(document_digest(document))
        for name, count in counts.items():
            self.counts[name] += count
        self.counts["documents"] += 1

    def finish(self, key: str, number: int) -> dict:
        """Syncs the files, then writes shard.json and returns it; arguments as of `Run`."""
        self._files.close()
        summary = {
            "key": key,
            "number": number,
            "source_hash": self._source.hexdigest(),
            **self.counts,
            "hashes": {name: digest.hexdigest() for name, digest in self.hashes.items()},
            "sizes": {name: os.path.getsize(self.folder / name) for name in sorted(self.hashes)},
        }
        replace_json(self.folder, "shard.json", summary)
        return summary

    def _new(self, name: str) -> Callable[[bytes], None]:
        file = self._files.enter_context(new_file(self.folder / name))
        self._files.callback(sync, file)
        digest = hashlib.sha256()
        self.hashes[name] = digest

        def append(data: bytes) -> None:
            file.write(data)
            digest.update(data)

        return append

    def _encoded(self, document: Document) -> Iterator[np.ndarray]:
        data = document.data
        after = self.vocabulary.cuts_after
        if document.tokens is not None:
            yield np.asarray(document.tokens)
        elif after is not None:
            for start, part in cut(data, after, PIECE):
                yield self._encoded_piece(part, start, document.title)
        elif len(data) > WHOLE:
            raise ValueError(
                f"Document {document.title!r} has {len(data):,} bytes, and vocabulary "
                f"{self.vocabulary.name!r} has to encode a document whole, of at most {WHOLE:,} "
                'bytes: cut it into several documents, or bind Corpus.vocabulary = "bytes".'
            )
        else:
            yield self._encoded_piece(data[:], 0, document.title)

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
        low, high = ids.min(), ids.max()
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
        if weights is not None and "weights.bin" not in self.hashes:
            self._weights = self._new("weights.bin")
            self._add_ones(self.counts["tokens"])  # earlier documents have weight 1
        if weights is None:
            if "weights.bin" in self.hashes:
                self._add_ones(tokens)
            return
        if np.shape(weights) != (tokens,):
            raise ValueError(
                f"Document {document.title!r} has {tokens} tokens but weights of shape "
                f"{np.shape(weights)}: give one weight a token."
            )
        weights = np.asarray(weights)
        is_bad = ~((weights >= 0) & (weights <= MAX_WEIGHT))  # also true for NaN
        if is_bad.any():
            raise ValueError(
                f"Document {document.title!r} has weights of which one is {weights[is_bad][0]:g}, "
                f"and they must be from 0 to {MAX_WEIGHT:,}."
            )
        self._weights(weights.astype(WEIGHT).tobytes())

    def _add_ones(self, count: int) -> None:
        for start in range(0, count, PIECE):
            self._weights(np.ones(min(PIECE, count - start), WEIGHT).tobytes())


def document_digest(document: Document) -> bytes:
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


def first_misfit_of_utf8(data: bytes | FileBytes) -> int | None:
    """Returns the position of the first byte that is not UTF-8, or None."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), PIECE):
        before = start - len(decoder.getstate()[0])  # where a cut character begins
        try:
            decoder.decode(data[start : start + PIECE], final=start + PIECE >= len(data))
        except UnicodeDecodeError as error:
            return before + error.start
    return None


def count_text(data: bytes | FileBytes) -> tuple[int, int]:
    """Counts words (separated by Unicode white space) and characters; invalid UTF-8 as U+FFFD."""
    words = characters = 0
    inside = False  # the text so far ends within a word
    parts = (data[start : start + PIECE] for start in range(0, len(data), PIECE))
    for text in codecs.iterdecode(parts, "utf-8", "replace"):
        words += len(text.split()) - (inside and not text[0].isspace())
        characters += len(text)
        inside = not text[-1].isspace()
    return words, characters
