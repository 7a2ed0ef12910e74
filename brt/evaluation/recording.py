"""Recordings: the loss and entropy of every token of a split, on disk.

    manifest.json   store, parameters and settings
    nats.bin        float32, -log p of each token; token i is token i of the store
    entropy.bin     float32, entropy of the prediction of each token, in nats
    correct.bin     uint8, 1 where the token had the highest logit
    done.bin        uint8, one a document, 1 where the document is recorded

All little-endian. The manifest of a complete recording has the sha256 of these files.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from brt.checks import Count, CountFrom0, Many, Name
from brt.data.stores.layout import token_difference
from brt.data.stores.token_store import VOCABULARY, TokenStore
from brt.storage.file_parts import FileArray
from brt.storage.hashes import check_hash
from brt.storage.json_files import DamagedFile, Fields, misfit, read_json
from brt.storage.paths import is_remote
from brt.storage.regular_files import check_inside, check_size

FORMAT = 1
FILES: dict[str, np.dtype] = {
    "nats": np.dtype("<f4"),
    "entropy": np.dtype("<f4"),
    "correct": np.dtype("u1"),
    "done": np.dtype("u1"),
}
NAMES = tuple(f"{name}.bin" for name in FILES)
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


class DocumentScores(NamedTuple):
    """One document of a recording: float32, float32 and bool (tokens,), read-only."""

    nats_T: np.ndarray
    entropy_T: np.ndarray
    correct_T: np.ndarray


class Recording:
    """A recording, open for reading.

    store: the token store of the recording; None opens the one the manifest names when needed.

    Attributes:
        nats, entropy, correct: float32, float32 and bool (tokens,), read by parts; meaningless for
            documents that are not done.
        done_D: bool (documents,).
        copy: owner of the local folder of a recording in a bucket.
    """

    def __init__(self, folder: str | Path, store: TokenStore | None = None):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.nats, self.entropy = self._read("nats"), self._read("entropy")
        self.correct = self._read("correct")
        self.done_D = self._read("done")[:]
        self._verify()
        self._store = None if store is None else self._checked(store)
        self.copy: Any = None

    @property
    def store(self) -> TokenStore:
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
        if (hashes := self.manifest.get("hashes")) is None:
            return
        again = f"delete {self.folder} and record again"
        if hashes.keys() != set(NAMES):
            raise DamagedFile(f"{self.folder}/manifest.json has hashes of other files: {again}.")
        for name, expected in hashes.items():
            check_hash(self.folder / name, expected, again)

    def _read(self, name):
        count = self.manifest["documents" if name == "done" else "tokens"]
        path = self.folder / f"{name}.bin"
        check_inside(self.folder, [path.name])
        again = f"delete {self.folder} and record again"
        check_size(path, count * FILES[name].itemsize, again)
        dtype = np.dtype(bool) if FILES[name].itemsize == 1 else FILES[name]
        return FileArray(path, dtype, f"To repair it, {again}.")

    def document(self, number: int, start: int = 0, stop: int | None = None) -> DocumentScores:
        """Returns the scores of tokens start to stop of a document, fewer where it ends."""
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
    if why := token_difference(first.manifest["store"], second.manifest["store"]):
        raise ValueError(f"{first.folder} and {second.folder} {why}, and record again.")


def read_manifest(folder: Path) -> dict[str, Any]:
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
