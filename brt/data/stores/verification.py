"""Compares the files of token stores with their hashes before training.

A host hashes a file once: the result holds while its size, times and inode, recorded in
~/.cache/brt/verified, do not change.
"""

import fcntl
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.stores.layout import WEIGHT, content_of, files_of
from brt.data.stores.token_store import HOW_TO_REPEAT, TokenStore
from brt.data.stores.writer import misfit_of_weights
from brt.host.progress import Progress
from brt.storage.json_files import DamagedFile, read_json
from brt.storage.paths import AnyPath, file_size
from brt.storage.regular_files import file_sha256, open_regular
from brt.storage.replaced_files import lock_file, replace_json
from brt.storage.shipped import user_cache

VARIABLE = "BRT_VERIFIED"
"""Environment variable: folder of the records of verified files; empty for none."""

PIECE = 2**24

SHOWN_FROM = 200 * 10**6


def verify(store: TokenStore) -> None:
    """Compares the files of a store with the manifest and with one another."""
    check_manifest(store)
    if isinstance(store.files, Path):  # a copy of a large store lacks files that were not read
        store.read_all()
    manifest, where = store.manifest, store.folder / "manifest.json"
    check_hashes(store.files, manifest["hashes"], HOW_TO_REPEAT)
    for name in files_of(manifest):
        check_weights(store, name)
    names = ("tokens", "bytes", "words", "characters")
    counts = dict.fromkeys(names, 0)
    documents = 0
    for entry in store.entries():
        if documents == store.num_documents or entry["tokens"] != store.lengths_D[documents]:
            raise _damaged(store.folder / "offsets.npy", f"document {documents} is cut wrong")
        documents += 1
        for name in names:
            counts[name] += entry[name]
    if any(manifest[name] != count for name, count in {"documents": documents, **counts}.items()):
        raise _damaged(where, "its counts are not those of the documents")


def check_manifest(store: TokenStore) -> None:
    manifest, where = store.manifest, store.folder / "manifest.json"
    hashes, files = manifest["hashes"], files_of(manifest)
    if wrong := {*files} - hashes.keys() or hashes.keys() - {"offsets.npy", *files}:
        raise _damaged(where, f"its hashes and the files of this store differ in {min(wrong)}")
    if manifest["content"] != content_of(manifest):
        raise _damaged(where, "its content is not the hash of tokens.bin")


def check_weights(store: TokenStore, name: str) -> None:
    """Refuses a file of weights with an invalid one; other files pass."""
    if not name.endswith("weights.bin"):
        return
    with open_regular(store.files / name) as file:
        while content := file.read(PIECE * WEIGHT.itemsize):
            if wrong := misfit_of_weights(np.frombuffer(content, WEIGHT)):
                raise _damaged(store.folder / name, wrong)


def check_hashes(folder: AnyPath, hashes: Mapping[str, str], advice: str) -> None:
    size = sum(file_size(folder / name) for name in hashes)
    progress = Progress(f"verifying {folder}, MB", size // 10**6, quiet=size < SHOWN_FROM)
    done = 0
    try:
        for name, expected in hashes.items():
            if file_sha256(folder / name) != expected:
                raise DamagedFile(
                    f"{folder / name} is damaged, as its sha256 is not the one in the manifest: "
                    f"{advice}."
                )
            done += file_size(folder / name)
            progress.update(done // 10**6)
    finally:
        progress.close()


def hashes_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: file_sha256(folder / name) for name in names}


def verify_when_read(store: TokenStore | MixedStore) -> None:
    """Makes a store compare each file before it is first read; a small store at once."""
    for part in store.stores if isinstance(store, MixedStore) else [store]:
        check_manifest(part)
        part.check = functools.cache(functools.partial(_check_file, part, part.check))
        if "offsets.npy" in part.manifest["hashes"]:
            part.file("offsets.npy")
        if part.is_small:
            part.read_all()


def _check_file(store: TokenStore, fetch: Callable[[str], None] | None, name: str) -> None:
    if fetch is not None:
        fetch(name)

    def check() -> None:
        check_hashes(store.files, {name: store.manifest["hashes"][name]}, HOW_TO_REPEAT)
        check_weights(store, name)

    if isinstance(store.files, Path):
        once(store.files, [name], check)


def once(folder: Path, names: Iterable[str], check: Callable[[], None]) -> None:
    """Calls `check()` unless it has passed on this host since the files last changed."""
    records = os.environ.get(VARIABLE, str(user_cache("verified")))
    if not records:
        check()
        return
    folder, names = folder.resolve(), sorted(names)
    key = "\n".join([os.fsdecode(folder), *names]).encode(errors="surrogateescape")
    note = Path(records) / f"{hashlib.sha256(key).hexdigest()}.json"
    with ExitStack() as stack:
        with suppress(OSError):  # without a record the check runs again
            note.parent.mkdir(parents=True, exist_ok=True)
            lock = lock_file(f"{note}.lock")
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of several processes checks
        state = _state(folder, names)
        with suppress(OSError, ValueError):
            if read_json(note, dict, "delete it") == state:
                return
        check()
        if _state(folder, names) == state:  # unchanged meanwhile
            with suppress(OSError):
                replace_json(note.parent, note.name, state)


def _state(folder, names):
    state: dict[str, object] = {"folder": os.fsdecode(folder)}
    for name in names:
        stat = os.stat(folder / name)
        state[name] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    return state


def _damaged(path, what):
    return DamagedFile(f"{path} is damaged, as {what}: {HOW_TO_REPEAT}.")
