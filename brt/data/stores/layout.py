"""The files of a token store, and the fields of its manifest.

    manifest.json                source, vocabulary, counts, sha256 of the files; written last
    offsets.npy                  int64 (documents + 1,), where each document begins
    shard-00000/tokens.bin       ids of the first documents: little-endian uint16 or uint32
    shard-00000/weights.bin      float32, one per token; only if a document has loss weights
    shard-00000/documents.jsonl  one line per document: title, counts, optional annotation
    shard-00001/...              the next documents

Earlier versions wrote stores of one shard without a folder (format 2); these are read, too.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from brt.checks import Many, ManyFrom0
from brt.data.stores.own_folders import remove
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import Fields

FORMAT, FLAT_FORMAT = 3, 2
"""Versions of the layout: the one that is written, and an earlier one that is read, too."""

DTYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
WEIGHT = np.dtype("<f4")
OFFSET = np.dtype("<i8")
COUNTS = ("documents", "tokens", "bytes", "words", "characters", "unknown")

KEPT_FILES = ("tokens.bin", "documents.jsonl", "weights.bin")
SHARD_FILES = (*KEPT_FILES, "shard.json")
"""All files of a shard; shard.json exists only until the store is complete."""
STORE_FILES = ("manifest.json", "offsets.npy", *KEPT_FILES)

NOTE = ".failed"
"""Suffix of a file in which a worker of a job reports an error."""

REQUESTS = 16
"""Concurrent requests to a bucket."""

SHARDS = Fields({"shards": [Fields({"documents": Many, "tokens": Many, "weighted": bool})]})
"""Field of a manifest of format 3."""

SHARD = Fields(
    {
        **dict.fromkeys(("key", "source_hash"), str),
        **dict.fromkeys(("number", *COUNTS), ManyFrom0),
        "hashes": dict[str, str],
        "sizes": dict[str, ManyFrom0],
    }
)
"""Fields of shard.json."""

_SHARD_FILE = re.compile(rf"shard-\d{{5,}}/({'|'.join(map(re.escape, SHARD_FILES))})")


def shard_name(number: int) -> str:
    return f"shard-{number:05}"


def is_shard_file(name: str) -> bool:
    return bool(_SHARD_FILE.fullmatch(name))


def shards_of(manifest: Mapping) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the prefix of the paths, and the counts, of each shard of a store."""
    if "shards" not in manifest:
        return [("", manifest)]
    return [(f"{shard_name(n)}/", shard) for n, shard in enumerate(manifest["shards"])]


def files_of(manifest: Mapping) -> list[str]:
    return [
        prefix + name
        for prefix, shard in shards_of(manifest)
        for name in (KEPT_FILES if shard["weighted"] else KEPT_FILES[:2])
    ]


def content_of(manifest: Mapping) -> str:
    """Returns what identifies the tokens of a store: the sha256 of the hashes of its shards."""
    if "shards" not in manifest:
        return manifest["hashes"]["tokens.bin"]
    return joint_hash(
        manifest["hashes"][f"{prefix}tokens.bin"] for prefix, _ in shards_of(manifest)
    )


def joint_hash(hashes: Iterable[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def misfit_of_shards(manifest: Mapping) -> str:
    """Returns how the shards of a manifest contradict the rest of it; empty if they do not."""
    shards = manifest["shards"]
    for name in ("documents", "tokens"):
        if sum(shard[name] for shard in shards) != manifest[name]:
            return f"its shards have another number of {name}"
    if any(shard["weighted"] for shard in shards) != manifest["weighted"]:
        return "weighted is not that of its shards"
    return ""


def dtype_name(size: int) -> str:
    return "uint16" if size <= 2**16 else "uint32"


def vocabulary_entry(vocabulary: Vocabulary) -> dict:
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


def remove_store(folder: Path) -> None:
    for shard in folder.glob("shard-*"):
        remove(shard, SHARD_FILES)
    remove(folder, STORE_FILES)
