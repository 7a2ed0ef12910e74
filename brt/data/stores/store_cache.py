"""Copies of token stores that lie in a bucket: each host reads a copy of its own.

The cache is a folder of the disk (`--store_cache`). A copy is named by the hash of the store's
manifest, which has the hashes of the store's files; it gets its name once every file has been
compared with these. So a copy is never of another store, and never of half of one.
"""

import fcntl
import hashlib
import itertools
import json
import os
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from absl import logging

from brt.data.stores.own_folders import MARK, claim
from brt.data.stores.sharded import document_files, is_shard_file, remove_store
from brt.data.stores.writer import OFFSET, STORE_FILES
from brt.progress import Progress
from brt.storage.json_files import Fields, parse_json, read_json_lines
from brt.storage.paths import RemotePath, upload

MANIFEST = "manifest.json"

_chosen: list[Path] = []


def use(folder: str | None) -> None:
    """Says where copies are kept from now on; None for the default, `~/.cache/brt/stores`."""
    _chosen[:] = [Path(folder).expanduser()] if folder else []


def cache_folder() -> Path:
    """Returns the folder of this host's copies, which may not be there yet."""
    if _chosen:
        return _chosen[0]
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "brt" / "stores"


def local_copy(store: RemotePath) -> Path:
    """Returns the folder of this host's copy of a store; copies it if there is none.

    Several processes may ask at once: one copies and the others wait.

    Raises:
        FileNotFoundError: there is no such store, or a file of it is missing.
        ValueError: a file is not the one that the manifest describes.
        OSError: the store cannot be read, or the copy not be written.
    """
    try:
        content = (store / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No token store is at {store}: prepare it, or correct the path."
        ) from None
    copy = _folder_of(content)
    if copy.is_dir():
        return copy
    with one_at_a_time(copy.with_name(f".{copy.name}.lock")):
        if not copy.is_dir():
            growing = copy.with_name(f"{copy.name}.growing")
            claim(growing)
            remove_store(growing)  # of a process that was killed
            claim(growing)
            _fetch(store, content, growing)
            (growing / MARK).unlink()
            os.replace(growing, copy)
    return copy


def place_to_prepare(store: RemotePath, made_with: dict) -> Path:
    """Returns where a store is made before it is published.

    made_with: JSON, of what; a store of something else has another place.
    """
    name = json.dumps([str(store), made_with], sort_keys=True).encode()
    return cache_folder() / "prepared" / hashlib.sha256(name).hexdigest()[:32] / store.name


def publish(made: Path, store: RemotePath) -> None:
    """Copies a store to a bucket, its manifest last, and keeps it as this host's copy.

    Until the manifest is there, no store is.
    """
    upload(made, store, last=MANIFEST)
    copy = _folder_of((made / MANIFEST).read_bytes())
    if copy.is_dir():
        remove_store(made)
    else:
        os.replace(made, copy)
    made.parent.rmdir()


def _folder_of(manifest: bytes) -> Path:
    return cache_folder() / hashlib.sha256(manifest).hexdigest()[:32]


def _fetch(store: RemotePath, manifest: bytes, folder: Path) -> None:
    """Copies the files of a store, and compares them with its manifest."""
    again = "prepare the store again"
    hashes = parse_json(manifest, Fields({"hashes": dict[str, str]}), str(store / MANIFEST), again)
    hashes = hashes["hashes"]
    strange = sorted(n for n in hashes if n not in STORE_FILES and not is_shard_file(n))
    if strange:
        raise ValueError(
            f"{store / MANIFEST} is not the manifest of a token store, as it names {strange[0]!r}: "
            f"{again}."
        )
    names = [*hashes, "offsets.npy"]
    sizes = {name: (store / name).size() for name in names}
    logging.info("copying %s to %s: %d bytes", store, folder, sum(sizes.values()))
    progress = Progress(f"copying {store}, MB", sum(sizes.values()) // 10**6)
    done = 0
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        try:
            (store / name).fetch(folder / name)
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(
                error.errno,
                f"{store} cannot be copied to {folder} ({error.strerror}): free some space, or "
                "name another folder with --store_cache.",
            ) from error
        if name in hashes and _sha256(folder / name) != hashes[name]:
            raise ValueError(
                f"{store / name} is damaged, as its sha256 is not the one in the manifest: "
                "prepare the store again."
            )
        done += sizes[name]
        progress.update(done // 10**6)
    progress.close()
    _check_offsets(store, folder, document_files(hashes))
    (folder / MANIFEST).write_bytes(manifest)


def _check_offsets(store: RemotePath, folder: Path, names: list[str]) -> None:
    """Compares offsets.npy, which has no hash, with documents.jsonl, which has one.

    names: of the files documents.jsonl, of which a store may have several.
    """
    again = "prepare the store again"
    files = (read_json_lines(folder / name, Fields({"tokens": int}), again) for name in names)
    entries = itertools.chain.from_iterable(files)
    lengths = np.fromiter((entry["tokens"] for entry in entries), OFFSET)
    expected = np.fromiter(itertools.accumulate(lengths, initial=0), OFFSET)
    try:
        same = np.array_equal(np.load(folder / "offsets.npy", allow_pickle=False), expected)
    except (ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError):
        same = False
    if not same:
        raise ValueError(
            f"{store / 'offsets.npy'} is damaged, as its documents have other lengths than in "
            "documents.jsonl: prepare the store again."
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(2**22):
            digest.update(data)
    return digest.hexdigest()


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Holds a lock that ends with the process; the file stays behind, empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("another process is at work on %s; waiting for it", path.parent)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
