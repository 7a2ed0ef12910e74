"""Token stores of many token files under one manifest, for corpora larger than a file should be.

    manifest.json               as of any store, of format 3, and the counts of each shard
    offsets.npy                 as of any store, through all shards
    shard-00000/tokens.bin      the ids of the first documents; weights.bin, documents.jsonl: theirs
    shard-00001/tokens.bin      and so on; a shard begins with a document

The shards of preparation are the store's: none is copied on a disk, and within a bucket the service
copies them. Their weights.bin is there only where some document of the shard has loss weights.
"""

import bisect
import functools
import hashlib
import operator
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from brt.checks import Many
from brt.data.stores.joining import manifest_of, read_summary, write_offsets
from brt.data.stores.own_folders import remove
from brt.data.stores.writer import STORE_FILES, SyncedFiles, replace_json
from brt.data.vocabularies.base import Vocabulary
from brt.storage.file_parts import FileArray
from brt.storage.json_files import Fields
from brt.storage.paths import AnyPath, RemotePath

SHARDED_FORMAT = 3
"""Version of the layout, written to the manifest: a reader of format 2 refuses it."""

SHARDS = Fields({"shards": [Fields({"documents": Many, "tokens": Many, "weighted": bool})]})
"""What the manifest has besides that of other stores."""

KEPT_FILES = ("tokens.bin", "documents.jsonl", "weights.bin")
"""What a shard of preparation gives to the store."""

OPEN_FILES = 256
"""Files of one kind that are open at once."""

REQUESTS = 16
"""Requests to a bucket at once."""

_OWN_FILE = re.compile(rf"shard-\d{{5,}}/({'|'.join(map(re.escape, KEPT_FILES))})")


def shard_name(number: int) -> str:
    """Returns the name of a shard's folder."""
    return f"shard-{number:05}"


def is_shard_file(name: str) -> bool:
    """Returns whether a path in a store is that of a shard's file."""
    return bool(_OWN_FILE.fullmatch(name))


def files_of(manifest: Mapping) -> list[str]:
    """Returns the paths of the files that the manifest of a store has hashes of."""
    if "shards" not in manifest:
        return ["tokens.bin", "documents.jsonl", *["weights.bin"] * manifest["weighted"]]
    return [
        f"{shard_name(number)}/{name}"
        for number, shard in enumerate(manifest["shards"])
        for name in ("tokens.bin", "documents.jsonl", *["weights.bin"] * shard["weighted"])
    ]


def document_files(names: Iterable[str]) -> list[str]:
    """Returns those of the files of a store that describe documents, in order."""
    found = [name for name in names if name.rpartition("/")[2] == "documents.jsonl"]
    return sorted(found, key=lambda name: (len(name), name))


def content_of(manifest: Mapping) -> str:
    """Returns what identifies the tokens of a store: the sha256 of tokens.bin.

    Of several it is the sha256 of theirs, in hex, one after another.
    """
    hashes = manifest["hashes"]
    if "shards" not in manifest:
        return hashes["tokens.bin"]
    names = (f"{shard_name(n)}/tokens.bin" for n in range(len(manifest["shards"])))
    return hashlib.sha256("".join(hashes[name] for name in names).encode()).hexdigest()


def misfit_of_shards(manifest: Mapping) -> str:
    """Says in which way the shards of a manifest contradict the rest of it; empty if they do not.

    manifest: has the fields of a store's and those of `SHARDS`.
    """
    shards = manifest["shards"]
    for name in ("documents", "tokens"):
        if sum(shard[name] for shard in shards) != manifest[name]:
            return f"its shards have another number of {name}"
    if any(shard["weighted"] for shard in shards) != manifest["weighted"]:
        return "weighted is not that of its shards"
    return ""


Numbers = np.ndarray | FileArray
"""What slices are taken of."""


class JoinedArray:
    """Arrays that follow one another, read as one by slices.

    Args:
        lengths: items of each.
        dtype: of all.
        array: gives the array of a number. The last ones it gave are remembered.
    """

    def __init__(self, lengths: Sequence[int], dtype: np.dtype, array: Callable[[int], Numbers]):
        self.dtype = dtype
        self._ends = np.cumsum(lengths).tolist()
        self._array = functools.lru_cache(OPEN_FILES)(array)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, which: slice | int) -> np.ndarray:
        if not isinstance(which, slice):
            number = operator.index(which)
            if not 0 <= number < len(self):
                raise IndexError(f"There is no item {number} of {len(self)}.")
            return self[number : number + 1][0]
        start, stop, step = which.indices(len(self))
        if step != 1:
            raise IndexError(f"Items are read one after another, and not in steps of {step}.")
        found = []
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            end = self._ends[number]
            first = self._ends[number - 1] if number else 0
            found.append(self._array(number)[start - first : min(stop, end) - first])
            start = end
            number += 1
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, self.dtype)


def rows_of(flat: Numbers | JoinedArray, length: int, rows_B: np.ndarray) -> np.ndarray:
    """Returns some rows of an array that is rows of one length: (B, length)."""
    if isinstance(flat, np.ndarray):
        return flat.reshape(-1, length)[rows_B]
    rows_BL = np.empty((len(rows_B), length), flat.dtype)
    for b, row in enumerate(np.asarray(rows_B).tolist()):
        rows_BL[b] = flat[row * length : (row + 1) * length]
    return rows_BL


def write_shards(
    folder: AnyPath, shards: Sequence[AnyPath], vocabulary: Vocabulary, source_description: dict
) -> dict:
    """Writes a store whose shards are these, its manifest last, and returns that.

    Args:
        folder: an existing, empty folder of the disk, or one in the bucket that holds the shards.
        shards, vocabulary, source_description: as of `join_shards`.

    Raises:
        ValueError: a shard is not what it was when it was finished; it is removed.
    """
    with ThreadPoolExecutor(REQUESTS) as threads:
        summaries = list(threads.map(read_summary, shards))
        names = [shard_name(number) for number in range(len(shards))]
        copies = [
            (shard / name, folder / store_name / name)
            for shard, store_name, summary in zip(shards, names, summaries)
            for name in KEPT_FILES
            if name in summary["hashes"]
        ]
        if isinstance(folder, Path):
            for name in names:
                (folder / name).mkdir()
        else:
            _remove_others(folder, {str(target) for _, target in copies})
        list(threads.map(_give, copies))
    manifest = manifest_of(
        SHARDED_FORMAT,
        summaries,
        vocabulary,
        source_description,
        source_hash=_give_offsets(folder, shards, summaries),
        content="",
        hashes={
            f"{store_name}/{name}": summary["hashes"][name]
            for store_name, summary in zip(names, summaries)
            for name in KEPT_FILES
            if name in summary["hashes"]
        },
    )
    manifest["shards"] = [
        {
            "documents": summary["documents"],
            "tokens": summary["tokens"],
            "weighted": "weights.bin" in summary["hashes"],
        }
        for summary in summaries
    ]
    manifest["content"] = content_of(manifest)
    replace_json(folder, "manifest.json", manifest)
    return manifest


def remove_store(folder: Path) -> None:
    """Removes a store that brt made, as `own_folders.remove` does: with brt's files only."""
    for shard in folder.glob("shard-*"):
        if is_shard_file(f"{shard.name}/tokens.bin") and shard.is_dir():
            remove(shard, KEPT_FILES)
    remove(folder, STORE_FILES)


def _give(copy: tuple[AnyPath, AnyPath]) -> None:
    """Makes a file of a shard one of the store, too."""
    source, target = copy
    if isinstance(source, RemotePath):
        assert isinstance(target, RemotePath)
        source.copy_to(target)
        return
    try:
        os.link(source, target)
    except OSError:  # a disk without links
        shutil.copyfile(source, target)


def _give_offsets(folder: AnyPath, shards: Sequence[AnyPath], summaries: Sequence[dict]) -> str:
    """Writes the store's offsets.npy; returns the sha256 of what the source gave."""
    if isinstance(folder, Path):
        with SyncedFiles(folder) as files:
            return write_offsets(files.new("offsets.npy"), shards, summaries)
    with tempfile.TemporaryDirectory(prefix="brt-offsets-") as scratch:
        with SyncedFiles(Path(scratch)) as files:
            source_hash = write_offsets(files.new("offsets.npy"), shards, summaries)
        (folder / "offsets.npy").put(Path(scratch) / "offsets.npy")
    return source_hash


def _remove_others(folder: RemotePath, wanted: set[str]) -> None:
    """Removes what an earlier preparation, of another source, has left where a store is to be."""
    for file in folder.files():
        if str(file) not in wanted and is_shard_file(file.relative_to(folder)):
            file.unlink(missing_ok=True)
