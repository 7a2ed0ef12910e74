"""Makes recordings (`brt.evaluation.recording`).

The file of a document is written once all of it is read, so an interrupted recording keeps it.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentPass
from brt.evaluation.recording import (
    FORMAT,
    MANIFEST_FILE,
    OF_DOCUMENT,
    SCORES,
    Recording,
    read_manifest,
)
from brt.evaluation.segment_reader import SegmentReader
from brt.storage.paths import as_path
from brt.storage.replaced_files import LEFT, naming, replace_file, replace_json
from brt.training.sharding import to_host

IDENTITY = ("step", "parameters", "settings", "state", "segment_length", "window")
"""Entries of the manifest that, with the store's content, identify a recording."""


def record(
    folder: str | os.PathLike,
    reader: SegmentReader,
    params: Any,
    store: TokenStore | MixedStore,
    run: str,
    step: int,
    window: int,
    state: str = "kept",
    documents: Sequence[int] | np.ndarray | None = None,
    label: str | None = None,
    settings: str = "",
) -> Recording:
    """Records missing documents; all processes of a run call it together.

    Args:
        folder: of the recording; another recording there is replaced.
        reader: one that gives entropies.
        settings: a hash of those of the model.
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
    folder = as_path(folder)
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
        "settings": settings,
        "state": state,
        "segment_length": reader.segment_length,
        "window": window,
        "documents": store.num_documents,
    }
    done_D = np.zeros(store.num_documents, bool)
    if writes:
        if not _is_of(folder, manifest):
            _begin(folder, manifest)
        done_D = Recording(folder).done_D
    if several:
        done_D = multihost_utils.broadcast_one_to_all(done_D).astype(bool)
    missing = chosen[~done_D[chosen]]
    if state == "swapped" and len(missing):
        missing = chosen  # swapped states depend on all documents that are read
    if len(missing):
        stream = DocumentPass(store, reader.rows, reader.segment_length, documents=missing)
        segments = reader.read(params, stream, state, label=label)
        for document, scores in _whole_documents(folder, segments, store):
            if writes:
                np.savez(file := io.BytesIO(), **scores)
                name = f"{document}.npz"
                with naming(folder / name):
                    replace_file(folder, name, file.getvalue())
    if several:
        multihost_utils.sync_global_devices("recorded")
    return Recording(folder, store)


def _whole_documents(folder, segments, store):
    """Yields the number of each document at its last segment, and its scores by name."""
    begun: dict[int, list[tuple]] = {}
    for segment in segments:
        places = zip(segment.documents_B.tolist(), segment.offsets_B.tolist())
        for row, (document, offset) in enumerate(places):
            if document < 0:
                continue
            left = int(store.lengths_D[document]) - offset
            scores = segment.nats_BT, segment.entropy_BT, segment.correct_BT
            # Copies: views would keep the scores of all batch elements.
            parts = tuple(scores_BT[row, :left].copy() for scores_BT in scores)
            _check_finite(folder, parts[0], document, offset)
            begun.setdefault(document, []).append(parts)
            if left <= segment.nats_BT.shape[1]:
                of_all = zip(SCORES.items(), zip(*begun.pop(document)))
                joined = {name: np.concatenate(x, dtype=dtype) for (name, dtype), x in of_all}
                yield document, joined


def _check_finite(folder, nats_T, document, offset):
    if not (finite_T := np.isfinite(nats_T)).all():
        raise ValueError(
            f"The loss of token {offset + int(np.argmin(finite_T)):,} of document {document} is "
            f"not finite, so the document is not recorded in {folder}. The parameters may have "
            "diverged: evaluate an earlier checkpoint."
        )


def _begin(folder, manifest):
    """Makes the folder of a recording, or removes another recording from it."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    documents = set(filter(OF_DOCUMENT.fullmatch, names))
    left = set(filter(LEFT.fullmatch, names))
    if foreign := sorted(names - {MANIFEST_FILE} - documents - left):
        raise ValueError(
            f"{folder} is where a recording would be, and holds {foreign[0]}, which is not part of "
            "one of this version of brt: move it elsewhere, or delete it if nobody needs it, and "
            "record again. Nothing was removed."
        )
    # Without a manifest, no document counts as recorded.
    for name in sorted(names, key=lambda name: name != MANIFEST_FILE):
        (folder / name).unlink()
    with naming(folder / MANIFEST_FILE):
        folder.mkdir(parents=True, exist_ok=True)
        replace_json(folder, MANIFEST_FILE, manifest)


def _is_of(folder, manifest):
    try:
        existing = read_manifest(folder)
    except (OSError, ValueError):
        return False
    same_store = existing["store"]["content"] == manifest["store"]["content"]
    return same_store and all(existing.get(name) == manifest[name] for name in IDENTITY)


def fingerprint(params: Any) -> str:
    """Returns the sha256, in hex, of names, shapes, types and values of a tree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        value = np.ascontiguousarray(to_host(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {value.shape} {value.dtype}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
