"""Token stores: one split's documents as token ids (`layout`).

Files are not mapped: a truncated one would end the process by SIGBUS.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from brt.checks import Count, CountFrom0, Many, ManyFrom0, OneOf
from brt.data.stores.joined_array import JoinedArray
from brt.data.stores.layout import DTYPES, FORMAT, OFFSET, SHARDS, WEIGHT, files_of, shard_name
from brt.data.stores.store_cache import copies_tokens, fetch, local_copy
from brt.host.progress import reported
from brt.storage.file_parts import FileArray
from brt.storage.json_files import DamagedFile, Fields, misfit, read_json, read_json_lines
from brt.storage.paths import AnyPath, RemotePath, as_path, file_size
from brt.storage.regular_files import check_inside, check_size, file_sha256, open_regular

HOW_TO_REPEAT = "delete the folder and prepare it again"
COPY_AGAIN = (
    "it was a copy of {}, and is removed. Run the same command again, and if that does not help, "
    "prepare the store again"
)

SMALL = 2**30
"""Most bytes of tokens and weights of a store that a run reads whole before it starts."""

SHOWN_AFTER = 3.0
"""Seconds of reading before a live bar appears."""

VOCABULARY = Fields(
    {"name": str, "size": Count, "fingerprint": str},
    {"file": str, "frame": Fields({"before": list[CountFrom0], "after": list[CountFrom0]})},
)
MANIFEST = Fields(
    {
        "source": dict,
        "source_hash": str,
        "vocabulary": VOCABULARY,
        "dtype": Annotated[str, OneOf(DTYPES)],
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

    Each file is compared with its hash in the manifest when it is first read (`file`).

    Attributes:
        folder: path of the store, on a disk or in a bucket.
        files: folder of its files: the store itself, or this host's copy.
        lengths_D: tokens of each document, int64 (documents,).
        all_tokens, all_weights: ids and float32 loss weights of all documents, (num_tokens,), to be
            sliced; no weights if they are all 1.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder: AnyPath = as_path(folder)
        self.files: AnyPath = self.folder
        if isinstance(self.folder, RemotePath) and copies_tokens():
            self.files = local_copy(self.folder)
        self.manifest = read_manifest(self.files)
        if isinstance(self.files, Path):
            check_inside(self.files, self.manifest["hashes"])
        if isinstance(self.folder, Path):
            self._check_sizes()
        self._checked: set[str] = set()
        self._offsets = self._read_offsets()
        self.all_tokens = self._array("tokens.bin", DTYPES[self.manifest["dtype"]])
        self.has_weights = any(shard["weighted"] for shard in self.manifest["shards"])
        self.all_weights = self._array("weights.bin", WEIGHT) if self.has_weights else None
        self.lengths_D = np.diff(self._offsets)

    @property
    def is_small(self) -> bool:
        """Whether a run reads all files before it starts, not at their first use."""
        item = DTYPES[self.manifest["dtype"]].itemsize + WEIGHT.itemsize * self.has_weights
        return self.manifest["tokens"] * item <= SMALL

    def read_all(self) -> None:
        names = files_of(self.manifest)
        label = f"reading {self.folder}, files"
        for name in reported(names, label, len(names), delay=SHOWN_AFTER):
            self.file(name)

    def file(self, name: str) -> AnyPath:
        """Returns the path of a file; at its first use, copies it from a bucket and compares its
        hash.

        Raises:
            DamagedFile: the file has another hash.
        """
        path = self.files / name
        if name not in self._checked:
            advice = HOW_TO_REPEAT
            if isinstance(self.folder, RemotePath) and isinstance(self.files, Path):
                fetch(self.folder, self.files, name)
                advice = COPY_AGAIN.format(self.folder)
            try:
                is_damaged = file_sha256(path) != self.manifest["hashes"][name]
            except FileNotFoundError:
                raise FileNotFoundError(f"{path.parent} has no {path.name}: {advice}.") from None
            if is_damaged:
                if self.files != self.folder:
                    path.unlink(missing_ok=True)
                raise DamagedFile(
                    f"{path} is damaged, as its sha256 is not the one in the manifest: {advice}."
                )
            self._checked.add(name)
        return path

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
            return FileArray(path, dtype, f"If it was not brt that did, {HOW_TO_REPEAT}.")

        return JoinedArray([shard["tokens"] for shard in shards], dtype, array)

    def _check_sizes(self) -> None:
        """Refuses missing and cut files at once: most are hashed only when they are first read."""
        items = {"tokens.bin": DTYPES[self.manifest["dtype"]].itemsize}
        for number, shard in enumerate(self.manifest["shards"]):
            for name, size in {**items, "weights.bin": shard["weighted"] * WEIGHT.itemsize}.items():
                if size:
                    path = self.folder / shard_name(number) / name
                    check_size(path, shard["tokens"] * size, HOW_TO_REPEAT)

    def _read_offsets(self) -> np.ndarray:
        path = self.file("offsets.npy")
        size = min(self.manifest["documents"] + 1, file_size(path) // OFFSET.itemsize)
        with open_regular(path) as file:  # no header is parsed: it may ask for any memory
            file.seek(file_size(path) - size * OFFSET.itemsize)
            offsets = np.frombuffer(file.read(size * OFFSET.itemsize), OFFSET)
        documents = self.shard_documents
        tokens = np.cumsum([0, *(shard["tokens"] for shard in self.manifest["shards"])])
        counts = self.manifest["documents"], self.manifest["tokens"]
        fits = (documents[-1], tokens[-1]) == counts and len(offsets) == counts[0] + 1
        if not fits or (np.diff(offsets) < 1).any() or (offsets[documents] != tokens).any():
            raise DamagedFile(
                f"{self.files}/manifest.json is damaged, as its counts are not those of "
                f"offsets.npy: {HOW_TO_REPEAT}."
            )
        return offsets

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


def read_manifest(folder: AnyPath) -> dict:
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
    if not wrong and manifest["hashes"].keys() != {"offsets.npy", *files_of(manifest)}:
        wrong = "its hashes are not those of the files of its shards"
    if wrong:
        raise DamagedFile(f"{path} is damaged, as {wrong}: {HOW_TO_REPEAT}.")
    return manifest
