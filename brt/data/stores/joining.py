"""Joins shards to a token store of one file of each kind; see `token_store`."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from brt.data.stores.own_folders import remove
from brt.data.stores.writer import (
    COUNTS,
    FORMAT,
    OFFSET,
    SHARD,
    SHARD_FILES,
    SyncedFiles,
    dtype_name,
    ones,
    vocabulary_entry,
    write_json,
)
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import read_json
from brt.storage.paths import AnyPath, RemotePath
from brt.storage.paths import remove as remove_remote
from brt.storage.regular_files import open_regular, read_bytes


def join_shards(
    folder: Path, shards: Sequence[AnyPath], vocabulary: Vocabulary, source_description: dict
) -> dict:
    """Writes the files of a store from its shards, in order, and returns its manifest.

    Args:
        folder: an existing, empty folder.
        shards: folders that `ShardWriter` has finished, at least one; on a disk or in a bucket.
        vocabulary: the vocabulary of the ids.
        source_description: goes into the manifest; JSON.

    Raises:
        ValueError: a shard is not what it was when it was finished; it is removed.
    """
    summaries = [read_summary(shard) for shard in shards]
    weighted = any("weights.bin" in summary["hashes"] for summary in summaries)
    with SyncedFiles(folder) as files:
        hashes = {
            name: _join(files.new(name), shards, summaries, name)
            for name in ("tokens.bin", "documents.jsonl", *["weights.bin"] * weighted)
        }
        source_hash = write_offsets(files.new("offsets.npy"), shards, summaries)
    manifest = manifest_of(
        FORMAT,
        summaries,
        vocabulary,
        source_description,
        source_hash=source_hash,
        content=hashes["tokens.bin"],
        hashes=hashes,
    )
    write_json(folder, "manifest.json", manifest)
    return manifest


def read_summary(shard: AnyPath) -> dict:
    """Returns what the shard.json of a finished shard says."""
    again = "delete the folder and run the same command again"
    return read_json(shard / "shard.json", SHARD, again)


def manifest_of(
    version: int,
    summaries: Sequence[dict],
    vocabulary: Vocabulary,
    source_description: dict,
    source_hash: str,
    content: str,
    hashes: dict[str, str],
) -> dict:
    """Returns the manifest of a store.

    Args:
        version: of the layout.
        summaries: what shard.json says of each shard.
        vocabulary, source_description: as of `join_shards`.
        source_hash: sha256 of what the source gave.
        content: identifies the tokens.
        hashes: sha256 of the store's files.
    """
    totals = {name: sum(summary[name] for summary in summaries) for name in COUNTS}
    return {
        "format": version,
        "source": source_description,
        "source_hash": source_hash,
        "vocabulary": vocabulary_entry(vocabulary),
        "dtype": dtype_name(vocabulary.size),
        "weighted": any("weights.bin" in summary["hashes"] for summary in summaries),
        **totals,
        **({"unknown": None} if vocabulary.unknown_id is None else {}),
        "content": content,
        "hashes": hashes,
    }


def _pieces(path: AnyPath) -> Iterator[bytes]:
    """Yields the content of a file, a little at a time."""
    with open_regular(path) as file:
        while data := file.read(2**20):
            yield data


def _join(file: BinaryIO, shards: Sequence[AnyPath], summaries: Sequence[dict], name: str) -> str:
    """Appends a file of every shard to `file`; returns the sha256 of the whole."""
    whole = hashlib.sha256()
    for shard, summary in zip(shards, summaries):
        has_file = name in summary["hashes"]
        own = hashlib.sha256()
        # A shard without weights, where others have some, counts 1 a token.
        for data in _pieces(shard / name) if has_file else ones(summary["tokens"]):
            file.write(data)
            whole.update(data)
            own.update(data)
        if has_file and own.hexdigest() != summary["hashes"][name]:
            remove_shard(shard)
            raise ValueError(
                f"{shard / name} is damaged, and has been removed: run the same command again to "
                "make it anew, and check the disk."
            )
    return whole.hexdigest()


def remove_shard(shard: AnyPath) -> None:
    """Removes a shard, on a disk or in a bucket."""
    if isinstance(shard, RemotePath):
        remove_remote(shard, first="shard.json")
    else:
        remove(shard, SHARD_FILES)


def write_offsets(file: BinaryIO, shards: Sequence[AnyPath], summaries: Sequence[dict]) -> str:
    """Writes offsets.npy, as `np.save` would, without holding more than a shard's.

    Returns:
        The sha256 of what the source gave: of the digests of all documents.

    Raises:
        ValueError: a shard is not what it was when it was finished; it is removed.
    """
    documents = sum(summary["documents"] for summary in summaries)
    header = {"descr": OFFSET.str, "fortran_order": False, "shape": (documents + 1,)}
    np.lib.format.write_array_header_1_0(file, header)
    source_hash = hashlib.sha256()
    last = 0
    file.write(np.array(last, OFFSET).tobytes())
    for shard, summary in zip(shards, summaries):
        lengths = np.frombuffer(read_bytes(shard / "lengths.bin"), OFFSET)
        digests = read_bytes(shard / "digests.bin")
        sizes = {"lengths.bin": lengths.nbytes, "digests.bin": len(digests)}
        if lengths.sum() != summary["tokens"] or sizes != {
            name: summary["sizes"][name] for name in sizes
        }:
            remove_shard(shard)
            raise ValueError(
                f"{shard / 'lengths.bin'} or digests.bin is damaged, and the shard has been "
                "removed: run the same command again to make it anew, and check the disk."
            )
        source_hash.update(digests)
        offsets = last + np.cumsum(lengths)
        file.write(offsets.astype(OFFSET).tobytes())
        last = int(offsets[-1])
    return source_hash.hexdigest()
