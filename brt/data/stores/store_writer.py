"""Writes token stores, shard by shard; the manifest comes last."""

import errno
import hashlib
import io
import os
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from brt.data.sources.base import Document
from brt.data.stores.distributed import JobRunner
from brt.data.stores.layout import (
    COUNTS,
    FORMAT,
    OFFSET,
    REQUESTS,
    SHARD_FILES,
    STORE_FILES,
    content_of,
    dtype_name,
    is_shard_file,
    joint_hash,
    shard_name,
    vocabulary_entry,
)
from brt.data.stores.own_folders import UNFINISHED, claim, remove
from brt.data.stores.shards import ListedDocuments, ShardMaker, StreamedDocuments, key_of
from brt.data.stores.worker_pool import make_in_processes
from brt.data.vocabularies.base import Vocabulary
from brt.host.progress import Progress
from brt.storage.json_files import Fields, read_json_lines
from brt.storage.paths import AnyPath, RemotePath, as_path
from brt.storage.replaced_files import LEFT, replace_file, replace_json


def write_store(
    folder: str | os.PathLike,
    documents: ListedDocuments | StreamedDocuments | Iterable[Document],
    vocabulary: Vocabulary,
    source_description: dict,
    quiet: bool = False,
    workers: int = 1,
    shard_bytes: int | None = None,
    runner: JobRunner | None = None,
) -> dict:
    """Writes documents to a new token store and returns its manifest.

    The bytes do not depend on workers and runner. Reuses finished shards.

    Args:
        folder: of the store, on a disk or in a bucket.
        documents: at least one; those without tokens are encoded by `vocabulary`.
        source_description: JSON for the manifest.
        shard_bytes: bytes after which a shard ends; None for `SHARD_BYTES` or `SHARD_DOCUMENTS`.
        runner: makes the shards instead of the workers.
    """
    folder = as_path(folder)
    if (folder / "manifest.json").exists():
        raise FileExistsError(f"{folder} exists: delete it, or give the new store another name.")
    if isinstance(folder, Path):
        claim(folder)
    _remove_unfinished(folder)
    if not isinstance(documents, (ListedDocuments, StreamedDocuments)):
        documents = StreamedDocuments(documents)
    progress = Progress(None if quiet else str(folder), documents.total)
    try:
        maker = ShardMaker(folder.absolute(), vocabulary, documents.source)
        runs = documents.runs(key_of(vocabulary, source_description), shard_bytes)
        made = runner.make(maker, runs) if runner else make_in_processes(workers, maker, runs)
        shards = _observed(made, progress)
        documents.check_unchanged()
        if not shards:
            raise ValueError(
                f"The source has no documents for {folder.name}: correct its settings, which are "
                f"{source_description}."
            )
        return _complete(folder, shards, vocabulary, source_description)
    except BaseException as error:
        note = _keep_finished(folder)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"The disk was full before store {folder} was whole: free some space, or bind "
                f"Corpus.store to a folder on another disk.{note}",
            ) from error
        raise
    finally:
        progress.close()


def _observed(shards: Iterator[tuple[bool, dict]], progress: Progress) -> list[dict]:
    summaries = []
    done = found = size = 0
    for is_new, summary in shards:
        summaries.append(summary)
        done += summary["documents"]
        size += summary["bytes"] * is_new
        found += summary["documents"] * (not is_new)
        seconds = max(time.monotonic() - progress.begun, 1e-9)
        speed = f"{(done - found) / seconds:.3g} documents/s"
        progress.update(done, speed=f"{speed}  {size / seconds / 1e6:.3g} MB/s")
    return sorted(summaries, key=lambda summary: summary["number"])


def _complete(
    folder: AnyPath, shards: Sequence[dict], vocabulary: Vocabulary, source_description: dict
) -> dict:
    names = [shard_name(shard["number"]) for shard in shards]
    with ThreadPoolExecutor(REQUESTS) as threads:
        lengths = list(threads.map(lambda name: _lengths(folder / name), names))
    buffer = io.BytesIO()
    np.save(buffer, np.cumsum(np.concatenate([[0], *lengths]), dtype=OFFSET))
    replace_file(folder, "offsets.npy", buffer.getvalue())
    hashes = {"offsets.npy": hashlib.sha256(buffer.getvalue()).hexdigest()}
    for name, shard in zip(names, shards):
        hashes |= {f"{name}/{file}": digest for file, digest in shard["hashes"].items()}
    weighted = ["weights.bin" in shard["hashes"] for shard in shards]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "source": source_description,
        "source_hash": joint_hash(shard["source_hash"] for shard in shards),
        "vocabulary": vocabulary_entry(vocabulary),
        "dtype": dtype_name(vocabulary.size),
        "weighted": any(weighted),
        **{name: sum(shard[name] for shard in shards) for name in COUNTS},
        **({"unknown": None} if vocabulary.unknown_id is None else {}),
        "hashes": hashes,
        "shards": [
            {"documents": shard["documents"], "tokens": shard["tokens"], "weighted": is_weighted}
            for shard, is_weighted in zip(shards, weighted)
        ],
    }
    manifest["content"] = content_of(manifest)
    _sync_folder(folder)
    replace_json(folder, "manifest.json", manifest)
    _sync_folder(folder)
    _remove_others(folder, manifest["hashes"].keys())
    return manifest


def _lengths(shard: AnyPath) -> np.ndarray:
    lines = read_json_lines(
        shard / "documents.jsonl", Fields({"tokens": int}), "delete the shard and prepare again"
    )
    return np.fromiter((line["tokens"] for line in lines), OFFSET)


def _remove_others(folder: AnyPath, complete: Container[str]) -> None:
    files = _files(folder)
    others = [file for name, file in files.items() if is_shard_file(name) and name not in complete]
    others += [file for name, file in files.items() if LEFT.fullmatch(name)]
    _remove_files(others)
    if isinstance(folder, Path):
        for shard in folder.glob("shard-*"):
            with suppress(OSError):  # it is not empty
                shard.rmdir()


def _remove_unfinished(folder: AnyPath) -> int:
    """Removes unfinished shards; returns the number of finished ones."""
    files = _files(folder)
    _remove_files(file for name, file in files.items() if UNFINISHED.fullmatch(name))
    for path in folder.glob("*.growing") if isinstance(folder, Path) else ():
        with suppress(OSError, ValueError):  # a worker that outlives its driver may write to it
            remove(path, SHARD_FILES)
    return sum(name.startswith("shard-") and name.endswith("/shard.json") for name in files)


def _keep_finished(folder: AnyPath) -> str:
    with suppress(OSError, ValueError):  # the first error counts
        if finished := _remove_unfinished(folder):
            return f" {finished} finished shards stay in {folder} for the next try."
        if isinstance(folder, Path):
            remove(folder, STORE_FILES)
    return ""


def _files(folder: AnyPath) -> dict[str, AnyPath]:
    if isinstance(folder, RemotePath):
        return {file.relative_to(folder): file for file in folder.files()}
    files = (path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def _remove_files(files: Iterable[AnyPath]) -> None:
    with ThreadPoolExecutor(REQUESTS) as threads:
        list(threads.map(lambda file: file.unlink(missing_ok=True), files))


def _sync_folder(folder: AnyPath) -> None:
    if isinstance(folder, Path):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
