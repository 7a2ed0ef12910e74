"""The files of a token store, written one document at a time.

`token_store` describes them; `write_store` there is what makes a store.
"""

import hashlib
import io
import json
import os
from contextlib import ExitStack

import numpy as np

from brt.data.sources import Document
from brt.data.vocabularies import Vocabulary

FORMAT = 1
"""Version of the layout, written to every manifest."""

DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
WEIGHT = np.dtype("<f4")


class StoreWriter:
    """The files of one token store while they grow; a context that closes them.

    Args:
        folder: an existing, empty folder.
        vocabulary: the vocabulary of the ids; encodes documents that come without tokens.
    """

    def __init__(self, folder, vocabulary: Vocabulary):
        self.folder = folder
        self.vocabulary = vocabulary
        self.dtype = "uint16" if vocabulary.size <= 2**16 else "uint32"
        self.offsets = [0]
        self.bytes = self.words = 0
        self.digest = hashlib.sha256()
        self.weights_file = None
        self._files = ExitStack()

    def __enter__(self):
        self.tokens_file = self._open("tokens.bin")
        self.lines_file = self._open("documents.jsonl")
        return self

    def __exit__(self, *exception):
        self._files.close()

    def add(self, document: Document) -> None:
        """Appends one document.

        Raises:
            ValueError: no token, an id outside the vocabulary, or weights of another length.
        """
        tokens = self._tokens(document)
        data = tokens.astype(DTYPES[self.dtype]).tobytes()
        self.tokens_file.write(data)
        self.digest.update(data)
        self._add_weights(document, len(tokens))
        words = _count_words(document.data)
        line = {"title": document.title, "tokens": len(tokens), "bytes": len(document.data)}
        self.lines_file.write(json.dumps({**line, "words": words}).encode() + b"\n")
        self.offsets.append(self.offsets[-1] + len(tokens))
        self.bytes += len(document.data)
        self.words += words

    def finish(self, source_description: dict) -> dict:
        """Puts everything on disk, then writes and returns the manifest.

        Raises:
            ValueError: there was no document.
        """
        if len(self.offsets) == 1:
            raise ValueError(
                f"the source has no documents for {self.folder.stem}: {source_description}; "
                "correct its settings"
            )
        np.save(self._open("offsets.npy"), np.array(self.offsets, np.int64), allow_pickle=False)
        manifest = {
            "format": FORMAT,
            "source": source_description,
            "vocabulary": vocabulary_entry(self.vocabulary),
            "dtype": self.dtype,
            "weighted": self.weights_file is not None,
            "documents": len(self.offsets) - 1,
            "tokens": self.offsets[-1],
            "bytes": self.bytes,
            "words": self.words,
            "content": self.digest.hexdigest(),
        }
        self._files.close()
        with self._files:
            self._open("manifest.json").write(json.dumps(manifest, indent=2).encode() + b"\n")
        return manifest

    def _open(self, name):
        """A new file of the store, which is on disk for certain once `_files` is closed."""
        file = self._files.enter_context((self.folder / name).open("wb"))
        self._files.callback(lambda: (file.flush(), os.fsync(file.fileno())))
        return file

    def _tokens(self, document):
        tokens = document.tokens
        if tokens is None:
            tokens = self.vocabulary.encode(document.data, document.title)
        tokens = np.asarray(tokens)
        if tokens.size == 0:
            raise ValueError(
                f"document {document.title!r} has no tokens ({len(document.data)} bytes); remove "
                "it from the source"
            )
        low, high = tokens.min(), tokens.max()
        if low < 0 or high >= self.vocabulary.size:
            raise ValueError(
                f"document {document.title!r} has token id {low if low < 0 else high}, outside "
                f"vocabulary {self.vocabulary.name!r} of size {self.vocabulary.size}; use the "
                "vocabulary that made its tokens"
            )
        return tokens

    def _add_weights(self, document, length):
        weights = document.weights
        if weights is None and self.weights_file is None:
            return
        if self.weights_file is None:  # the documents so far count 1 a token
            self.weights_file = self._open("weights.bin")
            for start in range(0, self.offsets[-1], 2**20):
                size = min(2**20, self.offsets[-1] - start)
                self.weights_file.write(np.ones(size, WEIGHT).tobytes())
        if weights is None:
            weights = np.ones(length, WEIGHT)
        if np.shape(weights) != (length,):
            raise ValueError(
                f"document {document.title!r} has {length} tokens but weights of shape "
                f"{np.shape(weights)}; give one weight a token"
            )
        self.weights_file.write(np.asarray(weights, WEIGHT).tobytes())


def vocabulary_entry(vocabulary: Vocabulary) -> dict:
    """What a manifest says of a vocabulary: its name, size and fingerprint."""
    return {
        "name": vocabulary.name,
        "size": int(vocabulary.size),
        "fingerprint": vocabulary.fingerprint,
    }


def _count_words(data):
    """Runs of anything but white space, Unicode's included; line by line to bound the memory."""
    return sum(len(line.decode("utf-8", errors="replace").split()) for line in io.BytesIO(data))
