"""Local copies of token stores in a bucket.

A copy is named by the hash of the manifest once every file has been compared with its hash there.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import logging

from brt.data.stores.layout import STORE_FILES, is_shard_file, remove_store
from brt.data.stores.own_folders import MARK, claim
from brt.progress import Progress
from brt.storage.json_files import Fields, parse_json
from brt.storage.paths import AnyPath, RemotePath
from brt.storage.regular_files import file_sha256
from brt.storage.replaced_files import lock_file, replace_file
from brt.storage.shipped import user_cache

MANIFEST = "manifest.json"
AGAIN = "prepare the store again"

_chosen: list[Path] = []


def use(folder: str | None) -> None:
    """Sets the folder of the copies; None for `~/.cache/brt/stores`."""
    _chosen[:] = [Path(folder).expanduser()] if folder else []


def cache_folder() -> Path:
    return _chosen[0] if _chosen else user_cache("stores")


def local_copy(store: RemotePath) -> Path:
    try:
        content = (store / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No token store is at {store}: prepare it, or correct the path."
        ) from None
    copy = cache_folder() / hashlib.sha256(content).hexdigest()[:32]
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


def lock_of(store: AnyPath) -> Path:
    if isinstance(store, Path):
        return store.with_name(f".{store.name}.lock")
    name = hashlib.sha256(str(store).encode()).hexdigest()[:32]
    return cache_folder() / f".{name}.prepare.lock"


def _fetch(store: RemotePath, manifest: bytes, folder: Path) -> None:
    where = str(store / MANIFEST)
    hashes = parse_json(manifest, Fields({"hashes": dict[str, str]}), where, AGAIN)["hashes"]
    others = sorted(n for n in hashes if n not in STORE_FILES and not is_shard_file(n))
    if others:
        raise ValueError(
            f"{where} is not the manifest of a token store, as it names {others[0]!r}: {AGAIN}."
        )
    names = dict.fromkeys([*hashes, "offsets.npy"])
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
        if name in hashes and file_sha256(folder / name) != hashes[name]:
            raise ValueError(
                f"{store / name} is damaged, as its sha256 is not the one in the manifest: {AGAIN}."
            )
        done += sizes[name]
        progress.update(done // 10**6)
    progress.close()
    replace_file(folder, MANIFEST, manifest)


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
