"""Recordings: the loss and entropy of every token of a split, on disk; those of two models align.

    manifest.json   what was recorded, of which store, by which parameters
    nats.bin        float32, -log p of each token; token i is token i of the store
    entropy.bin     float32, entropy of the prediction of each token, in nats
    correct.bin     uint8, 1 where the token had the highest logit
    done.bin        uint8, one a document, 1 where the document is recorded

A recording that is complete has the sha256 of these files in its manifest, and is compared with
them when it is opened, once on each host (`brt.data.stores.verification`).

All little-endian. A document counts as done once all of it is on disk, so a recording that was
killed goes on with the others, and one of a few documents can be completed later.
"""

import functools
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from brt.checks import Count, CountFrom0, Many, Name
from brt.data.mixture import MixedStore
from brt.data.stores.own_folders import MARK, claim, remove
from brt.data.stores.token_store import VOCABULARY, TokenStore
from brt.data.stores.verification import check_hashes, hashes_of, once
from brt.data.stores.writer import replace_json, write_json
from brt.data.streams.documents import DocumentPass
from brt.evaluation.reading import SegmentReader, to_host
from brt.evaluation.recording_copy import RecordingCopy
from brt.storage.failed_writes import naming
from brt.storage.file_parts import FileArray
from brt.storage.json_files import DamagedFile, Fields, misfit, read_json
from brt.storage.paths import RemotePath, is_remote
from brt.storage.regular_files import check_inside, check_regular

FORMAT = 1
FILES = {
    "nats": np.dtype("<f4"),
    "entropy": np.dtype("<f4"),
    "correct": np.dtype("u1"),
    "done": np.dtype("u1"),
}
NAMES = tuple(f"{name}.bin" for name in FILES)
SCORES = ("nats", "entropy", "correct")
IDENTITY = ("step", "parameters", "state", "segment_length", "window")
"""Entries of the manifest that decide what is recorded, besides the store's content."""
MANIFEST = Fields(
    {
        "store": Fields({"folder": Name, "content": str, "vocabulary": VOCABULARY}),
        "run": str,
        "step": CountFrom0,
        "parameters": str,
        "state": Name,
        "segment_length": Count,
        "window": CountFrom0,
        "documents": Many,
        "tokens": Many,
        "complete": bool,
    },
    {"hashes": dict[str, str]},
)
"""What every manifest of this format has."""


class DocumentScores(NamedTuple):
    """One document of a recording: float32, float32 and bool (tokens,), read-only."""

    nats_T: np.ndarray
    entropy_T: np.ndarray
    correct_T: np.ndarray


class Recording:
    """A recording, open for reading.

    Args:
        folder: of one recording.
        store: the token store it is of; None opens the one the manifest names when a document is
            asked for.

    Attributes:
        folder: `pathlib.Path`.
        manifest: a dict.
        nats, entropy: float32 (tokens,), read by parts; entries of documents that are not done
            mean nothing.
        correct: bool (tokens,), read by parts.
        done_D: bool (documents,).
        copy: of a recording in a bucket, the folder of this disk that is read; it is removed with
            this.

    Raises:
        FileNotFoundError: there is no recording, or a file of it is missing.
        ValueError: a file of the wrong size, another format, or another store than the one given.
    """

    def __init__(self, folder: str | Path, store: TokenStore | None = None):
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self.nats = self._read("nats")
        self.entropy = self._read("entropy")
        self.correct = self._read("correct")
        self.done_D = self._read("done")[:]
        self._verify()
        self._store = None if store is None else self._checked(store)
        self.copy: RecordingCopy | None = None

    @property
    def store(self) -> TokenStore:
        """The token store this is a recording of.

        Raises:
            FileNotFoundError, ValueError: it is not where it was, or holds other tokens.
        """
        if self._store is None:
            folder = self.manifest["store"]["folder"]
            if is_remote(folder):
                raise ValueError(
                    f"{self.folder}/manifest.json names its store at {folder}, and no URL is "
                    "opened because a file names it: give the store as the second argument."
                )
            self._store = self._checked(TokenStore(folder))
        return self._store

    @functools.cached_property
    def _ends_D(self):
        return np.cumsum(self.store.lengths_D)

    def _checked(self, store):
        if store.manifest["content"] != self.manifest["store"]["content"]:
            raise ValueError(
                f"{self.folder} is a recording of {self.manifest['store']['folder']}, whose "
                f"tokens are not those of {store.folder}: record the run on this store."
            )
        return store

    def _verify(self):
        """Compares the files with the hashes, which only a complete recording has."""
        hashes = self.manifest.get("hashes")
        if hashes is None:
            return
        again = f"delete {self.folder} and record again"
        if hashes.keys() != set(NAMES):
            raise DamagedFile(
                f"{self.folder / 'manifest.json'} has hashes of other files: {again}."
            )
        once(
            self.folder,
            ("manifest.json", *NAMES),
            lambda: check_hashes(self.folder, hashes, again),
        )

    def _read(self, name):
        count = self.manifest["documents" if name == "done" else "tokens"]
        check_inside(self.folder, [f"{name}.bin"])
        path, expected = self.folder / f"{name}.bin", count * FILES[name].itemsize
        try:
            check_regular(path)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.folder} has no {name}.bin: delete it and record again."
            ) from None
        if path.stat().st_size != expected:
            raise ValueError(
                f"{path} should have {expected} bytes and has {path.stat().st_size}: it was cut "
                f"short or changed. Delete {self.folder} and record again."
            )
        dtype = np.dtype(bool) if FILES[name].itemsize == 1 else FILES[name]
        return FileArray(path, dtype, f"Delete {self.folder} and record again.")

    def document(self, number: int, start: int = 0, stop: int | None = None) -> DocumentScores:
        """Returns the scores of tokens start to stop of a document, fewer where it ends.

        Raises:
            ValueError: it is not recorded; or as `store`.
        """
        if not self.done_D[number]:
            raise ValueError(
                f"Document {number} is not in {self.folder} yet: record it with "
                "`python -m brt.evaluate --record`, which goes on where it stopped."
            )
        end = int(self._ends_D[number])
        first = end - int(self.store.lengths_D[number])
        part = slice(first + start, end if stop is None else min(first + stop, end))
        return DocumentScores(self.nats[part], self.entropy[part], self.correct[part])


def check_aligned(first: Recording, second: Recording) -> None:
    """Refuses recordings that are not of the same tokens.

    Raises:
        ValueError: naming the folders, and the tokenizers where these differ.
    """
    ours, theirs = first.manifest["store"], second.manifest["store"]
    if ours["content"] == theirs["content"]:
        return
    one, two = ours["vocabulary"], theirs["vocabulary"]
    if one["fingerprint"] != two["fingerprint"]:
        raise ValueError(
            f"{first.folder} and {second.folder} have different tokenizers, {one['name']} of size "
            f"{one['size']} and {two['name']} of size {two['size']}, so their tokens cannot be "
            "compared: compare the runs by bits per byte instead."
        )
    raise ValueError(
        f"{first.folder} is of the documents in {ours['folder']} and {second.folder} of those in "
        f"{theirs['folder']}, which differ: bind Corpus.store and Evaluation.split to the same "
        "ones and record again."
    )


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
    """Records documents that are not recorded yet; all processes of a run call it together.

    Args:
        folder: of the recording. One of other parameters, another store or another segment
            length is begun anew.
        reader: one that gives entropies.
        params: parameters on the mesh.
        store: of the documents.
        run, step: go into the manifest.
        window: W in tokens, of the model.
        state: one of `reading.STATE_ABLATIONS`.
        documents: record these, integers; None for all.
        label: shows progress.

    Raises:
        ValueError: a mixture of stores, "swapped" with a single document or row, or a loss that
            is not finite.
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
    if jax.process_count() > 1:
        done_D = multihost_utils.broadcast_one_to_all(done_D).astype(bool)
    missing = chosen[~done_D[chosen]]
    if state == "swapped" and len(missing):
        missing = chosen  # whose states meet depends on all that are read
    if len(missing):
        stream = DocumentPass(store, reader.rows, reader.segment_length, documents=missing)
        segments = reader.read(params, stream, state, label=label)
        try:
            _write(folder if writes else None, segments, store, copy)
        finally:
            if copy and writes:  # what is done need not be done again, whatever happened
                copy.publish()
    if writes:
        manifest["complete"] = bool(Recording(folder).done_D.all())
        if manifest["complete"]:
            manifest["hashes"] = hashes_of(folder, NAMES)
        with naming(Path(folder) / "manifest.json"):
            replace_json(folder, "manifest.json", manifest)
        if copy:
            copy.publish()
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("recorded")
    if copy and not writes:
        copy.fetch()
    recording = Recording(folder, store)
    recording.copy = copy
    return recording


def _write(folder, segments, store, copy=None):
    """Writes what is read; a document is done when its last segment is on disk.

    copy: what takes the files to a bucket, or None.
    """
    if folder is None:
        for _ in segments:
            pass
        return
    starts_D = np.cumsum(store.lengths_D) - store.lengths_D
    # Not through maps of the files: a full disk would kill the process without a word.
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
                first = int(starts_D[document] + offset)
                _check_finite(folder, segment.nats_BT[row, :length], document, offset)
                for name in SCORES:
                    values_T = getattr(segment, f"{name}_BT")[row, :length]
                    _put(files[name], first, values_T.astype(FILES[name]))
                if length == left:
                    finished.append(document)
            if finished:
                for name in SCORES:
                    _sync(files[name])
                for document in finished:
                    _put(files["done"], document, np.ones(1, FILES["done"]))
                _sync(files["done"])
                if copy:
                    copy.publish_if_due()


def _check_finite(folder, nats_T, document, offset):
    if not (finite_T := np.isfinite(nats_T)).all():
        raise ValueError(
            f"The loss of token {offset + int(np.argmin(finite_T)):,} of document {document} is "
            f"not finite, so the document is not recorded in {folder}. The parameters may have "
            "diverged: evaluate an earlier checkpoint."
        )


def _put(file, first, values):
    """Writes values from the number `first` on, which counts values, not bytes."""
    with naming(file.name):
        file.seek(int(first) * values.itemsize)
        left = memoryview(values.tobytes())
        while left:  # an unbuffered file may take less than it is given
            left = left[file.write(left) :]


def _sync(file):
    with naming(file.name):
        os.fsync(file.fileno())


def _begin(folder, manifest):
    names = (*(f"{name}.bin" for name in FILES), "manifest.json.new", "manifest.json")
    if folder.exists():
        _check_is_recording(folder)
        remove(folder, names)
    partial = folder.with_name(folder.name + ".partial")
    claim(partial, is_own=_is_recording(partial))
    remove(partial, names)  # of one that was killed while it began
    claim(partial)
    for name, dtype in FILES.items():
        count = manifest["documents" if name == "done" else "tokens"]
        with naming(partial / f"{name}.bin"), open(partial / f"{name}.bin", "wb") as file:
            file.truncate(count * dtype.itemsize)
    with naming(partial / "manifest.json"):
        write_json(partial, "manifest.json", manifest)
    (partial / MARK).unlink()
    os.replace(partial, folder)


def _check_is_recording(folder):
    if not _is_recording(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(
            f"{folder} is where a recording would be, and is none of this version of brt: move it "
            "elsewhere, or delete it if nobody needs it, and record again. Nothing was removed."
        )


def _is_recording(folder):
    """Tells whether a folder has the manifest of a recording, whatever its other files are."""
    try:
        _read_manifest(folder)
    except (OSError, ValueError):
        return False
    return True


def _is_of(folder, manifest):
    """Tells whether there is a recording of just this, to go on with."""
    try:
        found = Recording(folder).manifest
    except (OSError, ValueError):
        return False
    same_store = found["store"]["content"] == manifest["store"]["content"]
    return same_store and all(found[name] == manifest[name] for name in IDENTITY)


def _read_manifest(folder):
    path = folder / "manifest.json"
    check_inside(folder, ["manifest.json"])
    again = f"delete {folder} and record again"
    try:
        manifest = read_json(path, Fields({"format": int}), again)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no recording at {folder}: make it with `python -m brt.evaluate --record`."
        ) from None
    if manifest["format"] != FORMAT:
        raise ValueError(
            f"{path} has recording format {manifest['format']}, and this version of brt reads "
            f"{FORMAT}: {again}."
        )
    if wrong := misfit(MANIFEST, manifest):
        raise DamagedFile(f"{path} is damaged, as {wrong}: {again}.")
    return manifest


def fingerprint(params: Any) -> str:
    """Returns the sha256, in hex, of a tree of arrays: names, shapes, types and values."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        value = np.ascontiguousarray(to_host(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {value.shape} {value.dtype}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
