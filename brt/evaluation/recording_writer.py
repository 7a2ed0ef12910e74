"""Makes recordings (`brt.evaluation.recording`).

A document is done once all of it is on disk, so an interrupted recording keeps it.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from brt.data.mixture import MixedStore
from brt.data.stores.own_folders import remove
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentPass
from brt.evaluation.recording import FILES, FORMAT, NAMES, Recording, read_manifest
from brt.evaluation.segment_reader import SegmentReader
from brt.storage.hashes import hashes_of
from brt.storage.paths import RemotePath, download, is_remote, upload
from brt.storage.replaced_files import naming, new_file, replace_json
from brt.storage.scratch import scratch_folder
from brt.training.sharding import to_host

SCORES = ("nats", "entropy", "correct")
IDENTITY = ("step", "parameters", "state", "segment_length", "window")
"""Entries of the manifest that, with the store's content, identify a recording."""
SECONDS = 300.0


class RecordingCopy:
    """A temporary local folder for a recording in a bucket, removed with this object."""

    def __init__(self, remote: RemotePath):
        self.remote = remote
        self.folder = scratch_folder(self, "brt-recording-") / remote.name
        self._last = time.monotonic()

    def fetch(self) -> None:
        download(self.remote, self.folder)

    def publish(self, seconds: float = 0.0) -> None:
        """Copies the recording to the bucket, unless copied in the last `seconds`."""
        if time.monotonic() - self._last < seconds:
            return
        if self.folder.is_dir():
            upload(self.folder, self.remote, last="manifest.json")
        self._last = time.monotonic()


def record(
    folder: str | Path,
    reader: SegmentReader,
    params: Any,
    store: TokenStore | MixedStore,
    run: str,
    step: int,
    window: int,
    state: str = "kept",
    documents: Sequence[int] | np.ndarray | None = None,
    label: str | None = None,
) -> Recording:
    """Records missing documents; all processes of a run call it together.

    Args:
        folder: of the recording; another recording there is replaced.
        reader: one that gives entropies.
        documents: integers; None for all.
    """
    if isinstance(store, MixedStore):
        raise ValueError(
            f"{store.folder} is a mixture, and a recording is of one token store: bind "
            "Trainer.corpus to one of its corpora."
        )
    chosen = np.arange(store.num_documents) if documents is None else np.unique(documents)
    if state == "swapped" and min(len(chosen), reader.rows) < 2:
        raise ValueError(
            "Swapping states needs two documents side by side: record more documents, or bind "
            "Evaluation.tokens_per_step to two segments or more."
        )
    writes = jax.process_index() == 0
    several = jax.process_count() > 1
    copy = RecordingCopy(RemotePath(folder)) if is_remote(folder) else None
    if copy and writes:
        copy.fetch()
    folder = copy.folder if copy else Path(folder)
    manifest = {
        "format": FORMAT,
        "store": {
            "folder": str(store.folder),
            "content": store.manifest["content"],
            "vocabulary": store.manifest["vocabulary"],
        },
        "run": str(run),
        "step": int(step),
        "parameters": fingerprint(params),
        "state": state,
        "segment_length": reader.segment_length,
        "window": window,
        "documents": store.num_documents,
        "tokens": store.num_tokens,
        "complete": False,
    }
    done_D = np.zeros(store.num_documents, bool)
    if writes:
        if not _is_of(folder, manifest):
            _begin(folder, manifest)
        done_D = np.array(Recording(folder).done_D)
    if several:
        done_D = multihost_utils.broadcast_one_to_all(done_D).astype(bool)
    missing = chosen[~done_D[chosen]]
    if state == "swapped" and len(missing):
        missing = chosen  # swapped states depend on all documents that are read
    if len(missing):
        stream = DocumentPass(store, reader.rows, reader.segment_length, documents=missing)
        segments = reader.read(params, stream, state, label=label)
        try:
            _write(folder if writes else None, segments, store, copy)
        finally:
            if copy and writes:  # finished documents are not recorded again
                copy.publish()
    if writes:
        manifest["complete"] = bool(Recording(folder).done_D.all())
        if manifest["complete"]:
            manifest["hashes"] = hashes_of(folder, NAMES)
        with naming(Path(folder) / "manifest.json"):
            replace_json(folder, "manifest.json", manifest)
        if copy:
            copy.publish()
    if several:
        multihost_utils.sync_global_devices("recorded")
    if copy and not writes:
        copy.fetch()
    recording = Recording(folder, store)
    recording.copy = copy
    return recording


def _write(folder, segments, store, copy):
    if folder is None:
        for _ in segments:
            pass
        return
    starts_D = np.cumsum(store.lengths_D) - store.lengths_D
    # Not memory maps: a full disk would end the process by SIGBUS.
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(open(folder / f"{name}.bin", "r+b", buffering=0))
            for name in FILES
        }
        for segment in segments:
            finished = []
            for row, (document, offset) in enumerate(zip(segment.documents_B, segment.offsets_B)):
                if document < 0:
                    continue
                left = int(store.lengths_D[document] - offset)
                length = min(left, segment.nats_BT.shape[1])
                _check_finite(folder, segment.nats_BT[row, :length], document, offset)
                for name in SCORES:
                    values_T = getattr(segment, f"{name}_BT")[row, :length]
                    _put(files[name], starts_D[document] + offset, values_T.astype(FILES[name]))
                if length == left:
                    finished.append(document)
            if finished:
                for name in SCORES:
                    _sync(files[name])
                for document in finished:
                    _put(files["done"], document, np.ones(1, FILES["done"]))
                _sync(files["done"])
                if copy:
                    copy.publish(SECONDS)


def _check_finite(folder, nats_T, document, offset):
    if not (finite_T := np.isfinite(nats_T)).all():
        raise ValueError(
            f"The loss of token {offset + int(np.argmin(finite_T)):,} of document {document} is "
            f"not finite, so the document is not recorded in {folder}. The parameters may have "
            "diverged: evaluate an earlier checkpoint."
        )


def _put(file, first, values):
    with naming(file.name):
        file.seek(int(first) * values.itemsize)
        left = memoryview(values.tobytes())
        while left:  # an unbuffered file may write less
            left = left[file.write(left) :]


def _sync(file):
    with naming(file.name):
        os.fsync(file.fileno())


def _begin(folder, manifest):
    names = (*NAMES, "manifest.json")
    if folder.exists():
        if not _is_recording(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise ValueError(
                f"{folder} is where a recording would be, and is none of this version of brt: "
                "move it elsewhere, or delete it if nobody needs it, and record again. Nothing "
                "was removed."
            )
        remove(folder, names)
    partial = folder.with_name(folder.name + ".partial")
    if partial.exists():  # of a killed process
        remove(partial, names)
    partial.mkdir(parents=True)
    with naming(partial):
        for name, dtype in FILES.items():
            count = manifest["documents" if name == "done" else "tokens"]
            with new_file(partial / f"{name}.bin") as file:
                file.truncate(count * dtype.itemsize)
        replace_json(partial, "manifest.json", manifest)
    os.replace(partial, folder)


def _is_recording(folder):
    try:
        read_manifest(folder)
    except (OSError, ValueError):
        return False
    return True


def _is_of(folder, manifest):
    try:
        existing = Recording(folder).manifest
    except (OSError, ValueError):
        return False
    same_store = existing["store"]["content"] == manifest["store"]["content"]
    return same_store and all(existing[name] == manifest[name] for name in IDENTITY)


def fingerprint(params: Any) -> str:
    """Returns the sha256, in hex, of names, shapes, types and values of a tree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        value = np.ascontiguousarray(to_host(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {value.shape} {value.dtype}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
