"""Recordings: the loss and entropy of every token of a split, in a folder or a bucket.

    manifest.json   store, parameters and settings
    NUMBER.npz      of each recorded document, a value for each token: nats (float32, -log p),
                    entropy (float32, of the prediction, in nats), correct (bool, whether the token
                    had the highest logit)

A document is recorded if its file exists.
"""

import functools
import io
import os
import re
from typing import Annotated, Any, NamedTuple

import numpy as np

from brt.checks import Count, CountFrom0, Name, Range
from brt.data.stores.layout import token_difference
from brt.data.stores.token_store import VOCABULARY, TokenStore
from brt.storage.json_files import DamagedFile, Fields, misfit, read_json
from brt.storage.paths import AnyPath, as_path, is_remote
from brt.storage.regular_files import check_links, read_bytes

FORMAT = 2
MANIFEST_FILE = "manifest.json"
OF_DOCUMENT = re.compile(r"(0|[1-9]\d*)\.npz")
"""Names of the files of documents."""
SCORES = {"nats": np.dtype("<f4"), "entropy": np.dtype("<f4"), "correct": np.dtype(bool)}
CACHED = 8
"""Documents that a recording keeps in memory; studies read parts of them in any order."""
MANIFEST = Fields(
    {
        "store": Fields({"folder": Name, "content": str, "vocabulary": VOCABULARY}),
        "run": str,
        "step": CountFrom0,
        "parameters": str,
        "state": Name,
        "segment_length": Count,
        "window": CountFrom0,
        "documents": Annotated[int, Range("a whole number from 1 to 2^31", 1, 2**31)],
    },
    {"settings": str},
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
        done_D: bool (documents,).
    """

    def __init__(self, folder: str | os.PathLike, store: TokenStore | None = None):
        self.folder = as_path(folder)
        check_links(self.folder)
        self.manifest = read_manifest(self.folder)
        names = [OF_DOCUMENT.fullmatch(path.name) for path in self.folder.iterdir()]
        done = {int(match[1]) for match in names if match}
        self.done_D = np.zeros(self.manifest["documents"], bool)
        self.done_D[[number for number in done if number < len(self.done_D)]] = True
        self._store = None if store is None else self._checked(store)
        self._scores = functools.lru_cache(CACHED)(self._read)

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

    def _checked(self, store):
        if store.manifest["content"] != self.manifest["store"]["content"]:
            raise ValueError(
                f"{self.folder} is a recording of {self.manifest['store']['folder']}, whose "
                f"tokens are not those of {store.folder}: record the run on this store."
            )
        return store

    def document(self, number: int, start: int = 0, stop: int | None = None) -> DocumentScores:
        """Returns the scores of tokens start to stop of a document, fewer where it ends."""
        if not self.done_D[number]:
            raise ValueError(
                f"Document {number} is not in {self.folder} yet: record it with "
                "`python -m brt.evaluate --record`, which goes on where it stopped."
            )
        return DocumentScores(*(array_T[start:stop] for array_T in self._scores(int(number))))

    def _read(self, number):
        path = self.folder / f"{number}.npz"
        wrong = "it has no score for each token"
        try:
            with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as file:
                arrays = [file[name] for name in SCORES]
            forms = [(array.dtype, array.shape) for array in arrays]
        except Exception as error:  # NumPy, zipfile and zlib raise their own kinds
            forms, wrong = [], str(error)
        length = int(self.store.lengths_D[number])
        if forms != [(dtype, (length,)) for dtype in SCORES.values()]:
            raise DamagedFile(f"{path} is damaged ({wrong}): delete it and record again.")
        for array in arrays:
            array.flags.writeable = False
        return arrays


def check_aligned(first: Recording, second: Recording) -> None:
    if why := token_difference(first.manifest["store"], second.manifest["store"]):
        raise ValueError(f"{first.folder} and {second.folder} {why}, and record again.")


def read_manifest(folder: AnyPath) -> dict[str, Any]:
    path = folder / MANIFEST_FILE
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
