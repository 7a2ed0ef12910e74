"""Local copies of token stores in a bucket.

A copy is named by the hash of the manifest. It begins with the manifest and the boundaries of
documents; other files are copied at their first use. Each is compared with its hash.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from absl import logging

from brt.data.stores.layout import STORE_FILES, is_shard_file, remove_store
from brt.data.stores.own_folders import MARK, claim
from brt.storage.json_files import Fields, parse_json
from brt.storage.paths import AnyPath, RemotePath
from brt.storage.regular_files import file_sha256
from brt.storage.replaced_files import lock_file, replace_file
from brt.storage.shipped import user_cache

MANIFEST = "manifest.json"
AGAIN = "prepare the store again"
NONE = "none"

_chosen: list[Path] = []


def use(folder: str | None) -> None:
    """Sets the folder of the copies; None for `~/.cache/brt/stores`, "none" to copy no tokens."""
    _chosen[:] = [Path(folder).expanduser()] if folder else []


def copies_tokens() -> bool:
    return _chosen != [Path(NONE)]


def cache_folder() -> Path:
    return _chosen[0] if _chosen and copies_tokens() else user_cache("stores")


def local_copy(store: RemotePath) -> Path:
    """Returns the folder of this host's copy, with the manifest and offsets.npy."""
    try:
        content = (store / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No token store is at {store}: prepare it, or correct the path."
        ) from None
    copy = cache_folder() / hashlib.sha256(content).hexdigest()[:32]
    if copy.is_dir():
        return copy
    with one_at_a_time(_lock(copy)):
        if not copy.is_dir():
            growing = copy.with_name(f"{copy.name}.growing")
            claim(growing)
            remove_store(growing)  # of a killed process
            claim(growing)
            logging.info("copying %s to %s", store, copy)
            _copy(store, growing, "offsets.npy", _hashes(store, content).get("offsets.npy"))
            replace_file(growing, MANIFEST, content)
            (growing / MARK).unlink()
            os.replace(growing, copy)
    return copy


def fetch(store: RemotePath, copy: Path, hashes: Mapping[str, str], name: str) -> None:
    """Copies a file to the folder of `local_copy`, if it is missing."""
    if (copy / name).exists():
        return
    with one_at_a_time(_lock(copy)):
        if not (copy / name).exists():
            (copy / name).parent.mkdir(exist_ok=True)
            growing = f"{name}.growing"
            _copy(store, copy, name, hashes.get(name), growing)
            os.replace(copy / growing, copy / name)


def lock_of(store: AnyPath) -> Path:
    if isinstance(store, Path):
        return store.with_name(f".{store.name}.lock")
    name = hashlib.sha256(str(store).encode()).hexdigest()[:32]
    return cache_folder() / f".{name}.prepare.lock"


def compare(store: RemotePath, hashes: Mapping[str, str], name: str) -> None:
    """Reads a file of a bucket once, and compares it with its hash."""
    if file_sha256(store / name) != hashes.get(name):
        raise _damaged(store / name)


def _damaged(path: RemotePath) -> ValueError:
    return ValueError(f"{path} is damaged, as its sha256 is not the one in the manifest: {AGAIN}.")


def _lock(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}.lock")


def _hashes(store: RemotePath, manifest: bytes) -> dict[str, str]:
    where = str(store / MANIFEST)
    hashes = parse_json(manifest, Fields({"hashes": dict[str, str]}), where, AGAIN)["hashes"]
    others = sorted(n for n in hashes if n not in STORE_FILES and not is_shard_file(n))
    if others:
        raise ValueError(
            f"{where} is not the manifest of a token store, as it names {others[0]!r}: {AGAIN}."
        )
    return hashes


def _copy(
    store: RemotePath, folder: Path, name: str, expected: str | None, target: str | None = None
) -> None:
    file = folder / (target or name)
    try:
        (store / name).fetch(file)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno,
            f"{store} cannot be copied to {folder} ({error.strerror}): free some space, or "
            "name another folder with --store_cache.",
        ) from error
    if expected is not None and file_sha256(file) != expected:
        file.unlink()
        raise _damaged(store / name)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Holds a lock that ends with the process; the empty file remains."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = lock_file(path)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("another process is at work on %s; waiting for it", path.parent)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
