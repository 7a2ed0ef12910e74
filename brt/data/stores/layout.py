"""The files of a token store, and the fields of its manifest.

manifest.json                source, vocabulary, counts, sha256 of the files; written last
offsets.npy                  int64 (documents + 1,), where each document begins
shard-00000/tokens.bin       ids of the first documents: little-endian uint16 or uint32
shard-00000/weights.bin      float32, one per token; only if a document has loss weights
shard-00000/documents.jsonl  one line per document: title, counts, optional annotation
shard-00001/...              the next documents
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from brt.checks import Many, ManyFrom0
from brt.data.vocabularies.base import Vocabulary
from brt.storage.json_files import Fields

FORMAT = 3
DTYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
WEIGHT = np.dtype("<f4")
OFFSET = np.dtype("<i8")
COUNTS = ("documents", "tokens", "bytes", "words", "characters", "unknown")

DATA_FILES = ("tokens.bin", "documents.jsonl", "weights.bin")
SHARD_FILES = (*DATA_FILES, "shard.json")
"""All files of a shard; shard.json only until the store is complete."""
STORE_FILES = ("manifest.json", "offsets.npy")

FILES = "files"
"""Key of a manifest's source: sha256 of its files' names and sizes."""

NOTE = ".failed"
"""Suffix of a file with the error of a job's worker."""

REQUESTS = 16
"""Concurrent requests to a bucket."""

SHARD = Fields(
    {
        **dict.fromkeys(("key", "source_hash"), str),
        **dict.fromkeys(("number", *COUNTS), ManyFrom0),
        "hashes": dict[str, str],
        "sizes": dict[str, ManyFrom0],
    }
)
SHARDS = [Fields({"documents": Many, "tokens": Many, "weighted": bool})]

_SHARD_FILE = re.compile(rf"shard-\d{{5,}}/({'|'.join(map(re.escape, SHARD_FILES))})")


def shard_name(number: int) -> str:
    return f"shard-{number:05}"


def is_shard_file(name: str) -> bool:
    return bool(_SHARD_FILE.fullmatch(name))


def files_of(manifest: Mapping) -> list[str]:
    return [
        f"{shard_name(number)}/{name}"
        for number, shard in enumerate(manifest["shards"])
        for name in (DATA_FILES if shard["weighted"] else DATA_FILES[:2])
    ]


def content_of(manifest: Mapping) -> str:
    """Returns the hash that identifies the tokens of a store: of the hashes of its shards."""
    names = (f"{shard_name(number)}/tokens.bin" for number in range(len(manifest["shards"])))
    return joint_hash(manifest["hashes"][name] for name in names)


def joint_hash(hashes: Iterable[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


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


def vocabulary_text(entry: Mapping) -> str:
    return "{name} of size {size} ({fingerprint:.12})".format(**entry)


def token_difference(ours: Mapping, theirs: Mapping) -> str:
    """Returns why the tokens of two stores cannot be compared, by their manifests, or ""."""
    if ours["content"] == theirs["content"]:
        return ""
    one, two = ours["vocabulary"], theirs["vocabulary"]
    if one["fingerprint"] != two["fingerprint"]:
        return (
            f"have different tokenizers, {vocabulary_text(one)} and {vocabulary_text(two)}, so "
            "their tokens cannot be compared: compare bits per byte"
        )
    return "hold different documents: bind Corpus.store and Evaluation.split to the same ones"
