"""Token stores: one split's documents as token ids (`layout`).

Files are not mapped: a truncated one would end the process by SIGBUS.
"""

import functools
import os
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from brt.checks import Count, CountFrom0, Many, ManyFrom0
from brt.data.stores.joined_array import JoinedArray
from brt.data.stores.layout import DTYPES, FORMAT, OFFSET, SHARDS, WEIGHT, files_of, shard_name
from brt.data.stores.store_cache import compare, copies_tokens, fetch, local_copy
from brt.host.progress import reported
from brt.storage.file_parts import FileArray
from brt.storage.json_files import DamagedFile, Fields, misfit, read_json, read_json_lines
from brt.storage.paths import AnyPath, as_path
from brt.storage.regular_files import check_inside, check_size, open_regular

HOW_TO_REPEAT = "delete the folder and prepare it again"

SMALL = 2**30
"""Most bytes of tokens and weights of a store that is copied and compared as a whole."""

SHOWN_AFTER = 3.0
"""Seconds of copying and comparing before a live bar appears."""

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
        "shards": SHARDS,
    }
)
DOCUMENT = Fields(
    {"title": str, **dict.fromkeys(("tokens", "bytes", "words", "characters"), ManyFrom0)},
    {"annotation": dict | None},
)


class TokenStore:
    """A token store, open for reading.

    Attributes:
        folder: path of the store, on a disk or in a bucket.
        files: folder of its files: the store itself, or this host's copy.
        check: called with a file's name before the file is first read; for a bucket, it copies the
            file and compares the hash.
        lengths_D: tokens of each document, int64 (documents,).
        all_tokens, all_weights: ids and float32 loss weights of all documents, (num_tokens,), to be
            sliced; no weights if they are all 1.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder: AnyPath = as_path(folder)
        self.files: AnyPath
        self.check: Callable[[str], None] | None = None
        if isinstance(self.folder, Path):
            files = self.files = self.folder
            self.manifest = read_manifest(files)
            check_inside(files, ("offsets.npy", *files_of(self.manifest)))
            self._check_sizes()
        else:
            files = self.files = local_copy(self.folder)
            self.manifest = read_manifest(files)
            hashes = self.manifest["hashes"]
            if copies_tokens():
                self.check = functools.partial(fetch, self.folder, self.files, hashes)
            else:
                self.check = functools.cache(functools.partial(compare, self.folder, hashes))
                self.files = self.folder
            if self.is_small:
                self.read_all()
        self._offsets = _read_offsets(files, self.manifest)
        self.all_tokens = self._array("tokens.bin", DTYPES[self.manifest["dtype"]])
        self.has_weights = self.manifest["weighted"]
        self.all_weights = self._array("weights.bin", WEIGHT) if self.has_weights else None
        self.lengths_D = np.diff(self._offsets)

    @property
    def is_small(self) -> bool:
        """Whether all files are copied and compared at once, not at their first use."""
        item = DTYPES[self.manifest["dtype"]].itemsize + WEIGHT.itemsize * self.manifest["weighted"]
        return self.manifest["tokens"] * item <= SMALL

    def read_all(self) -> None:
        names = files_of(self.manifest)
        label = f"reading {self.folder}, files"
        for name in reported(names, label, len(names), delay=SHOWN_AFTER):
            self.file(name)

    def file(self, name: str) -> AnyPath:
        if self.check is not None:
            self.check(name)
        return self.files / name

    @property
    def shard_documents(self) -> np.ndarray:
        """First document of each shard, then the number of all, int64 (shards + 1,)."""
        return np.cumsum([0, *(shard["documents"] for shard in self.manifest["shards"])])

    @property
    def num_documents(self) -> int:
        return len(self.lengths_D)

    @property
    def num_tokens(self) -> int:
        return len(self.all_tokens)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Returns ids start to stop of a document, fewer at its end; uint16 or uint32."""
        return self.all_tokens[self._range(document, start, stop)]

    def weights(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Returns the loss weights of the same tokens, float32; 1 by default."""
        tokens = self._range(document, start, stop)
        if self.all_weights is None:
            return np.ones(tokens.stop - tokens.start, np.float32)
        return self.all_weights[tokens]

    def titles(self) -> list[str]:
        return [line["title"] for line in self.entries()]

    def annotations(self) -> list[dict[str, Any] | None]:
        return [line.get("annotation") for line in self.entries()]

    def entries(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self.manifest["shards"])):
            path = self.file(f"{shard_name(number)}/documents.jsonl")
            yield from read_json_lines(path, DOCUMENT, HOW_TO_REPEAT)

    def _array(self, name: str, dtype: np.dtype) -> JoinedArray:
        shards = self.manifest["shards"]

        def array(number: int) -> np.ndarray | FileArray:
            shard = shards[number]
            if name == "weights.bin" and not shard["weighted"]:
                return np.broadcast_to(dtype.type(1), shard["tokens"])
            path = self.file(f"{shard_name(number)}/{name}")
            check_size(path, shard["tokens"] * dtype.itemsize, HOW_TO_REPEAT)
            return FileArray(path, dtype, f"If it was not brt that did, {HOW_TO_REPEAT}.")

        return JoinedArray([shard["tokens"] for shard in shards], dtype, array)

    def _check_sizes(self) -> None:
        size = DTYPES[self.manifest["dtype"]].itemsize
        for number, shard in enumerate(self.manifest["shards"]):
            folder = self.files / shard_name(number)
            check_size(folder / "tokens.bin", shard["tokens"] * size, HOW_TO_REPEAT)
            if shard["weighted"]:
                weights = shard["tokens"] * WEIGHT.itemsize
                check_size(folder / "weights.bin", weights, HOW_TO_REPEAT)

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
    if not folder.is_dir():
        raise FileNotFoundError(f"No token store is at {folder}: prepare it, or correct the path.")
    path = folder / "manifest.json"
    check_inside(folder, ["manifest.json"])
    try:
        manifest = read_json(path, Fields({}, {"format": int}), HOW_TO_REPEAT)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder} has no manifest.json, so it is not a token store, or its preparation or a "
            "copy of it was interrupted: correct the path, or prepare it again."
        ) from None
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path} has store format {manifest.get('format')}, and this version of brt reads "
            f"{FORMAT}: {HOW_TO_REPEAT}."
        )
    wrong = misfit(MANIFEST, manifest)
    shards = [] if wrong else manifest["shards"]
    for name in ("documents", "tokens"):
        if not wrong and sum(shard[name] for shard in shards) != manifest[name]:
            wrong = f"its shards have another number of {name}"
    if not wrong and any(shard["weighted"] for shard in shards) != manifest["weighted"]:
        wrong = "weighted is not that of its shards"
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
            # Checks the header first: its shape may need more memory than there is.
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("another version of the format")
            header = np.lib.format.read_array_header_1_0(file)
            data = file.read((count + 1) * OFFSET.itemsize)
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has no offsets.npy: {HOW_TO_REPEAT}.") from None
    except (ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{path} cannot be read ({error}): {HOW_TO_REPEAT}.") from None
    fits = header == ((count,), False, OFFSET) and len(data) == count * OFFSET.itemsize
    offsets = np.frombuffer(data, OFFSET) if fits else np.zeros(1)
    if offsets[0] != 0 or offsets[-1] != manifest["tokens"] or np.any(np.diff(offsets) < 1):
        raise ValueError(
            f"{path} does not describe {manifest['documents']} documents with "
            f"{manifest['tokens']} tokens, as the manifest says: {HOW_TO_REPEAT}."
        )
    return offsets
