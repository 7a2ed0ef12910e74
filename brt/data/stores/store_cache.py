"""Local copies of token stores in a bucket.

A copy is named by the hash of the manifest; other files are copied at their first use.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import logging

from brt.storage.paths import AnyPath, RemotePath
from brt.storage.replaced_files import lock_file, replace_file
from brt.storage.shipped import user_cache

MANIFEST = "manifest.json"
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
    """Returns the folder of this host's copy, with the manifest."""
    try:
        content = (store / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No token store is at {store}: prepare it, or correct the path."
        ) from None
    copy = cache_folder() / hashlib.sha256(content).hexdigest()[:32]
    if not (copy / MANIFEST).exists():
        copy.mkdir(parents=True, exist_ok=True)
        replace_file(copy, MANIFEST, content)
    return copy


def fetch(store: RemotePath, copy: Path, name: str) -> None:
    """Copies a file to the folder of `local_copy`, if it is missing."""
    file = copy / name
    if file.exists():
        return
    with one_at_a_time(copy.with_name(f".{copy.name}.lock")):
        if file.exists():
            return
        file.parent.mkdir(exist_ok=True)
        growing = file.with_name(f"{file.name}.growing")
        try:
            (store / name).fetch(growing)
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(
                error.errno,
                f"{store} cannot be copied to {copy} ({error.strerror}): free some space, or "
                "name another folder with --store_cache.",
            ) from error
        os.replace(growing, file)


def lock_of(store: AnyPath) -> Path:
    if isinstance(store, Path):
        return store.with_name(f".{store.name}.lock")
    name = hashlib.sha256(str(store).encode()).hexdigest()[:32]
    return cache_folder() / f".{name}.prepare.lock"


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
        except OSError as error:
            reason = error.strerror
            logging.warning(
                "%s has no locks (%s): let one process work there.", path.parent, reason
            )
        yield
    finally:
        os.close(file)
