"""Fabricated recordings, written file by file in the documented format, and books with planted
names."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import ByteVocabulary
from brt.evaluation.recording import Recording


def fabricate(folder, store, nats_by_document, done=None, **manifest) -> Recording:
    """A recording of `store` with the given nats, one array a document."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    for number, nats in enumerate(nats_by_document):
        if done is None or done[number]:
            nats = np.asarray(nats, "<f4")
            np.savez(folder / f"{number}.npz", nats=nats, entropy=nats / 2, correct=nats < 1)
    content = {
        "format": 2,
        "store": {
            "folder": str(store.folder),
            "content": store.manifest["content"],
            "vocabulary": store.manifest["vocabulary"],
        },
        "run": "runs/made_up",
        "step": 7,
        "parameters": "0" * 64,
        "state": "kept",
        "segment_length": 64,
        "window": 16,
        "documents": store.num_documents,
    }
    (folder / "manifest.json").write_text(json.dumps({**content, **manifest}))
    return Recording(folder, store)


class Book(NamedTuple):
    """A book of filler words with a name planted now and then.

    text: ASCII, so that a byte is a character.
    planted: {character at which a later occurrence begins: characters since the last one}.
    title: characters at which the title's two words begin at the end, and their distance.
    """

    text: str
    planted: dict[int, int]
    title: tuple[int, int, int]


def planted_book(name: str, title: str, seed: int, gaps=(40, 150, 700, 1500)) -> Book:
    """A title page, filler with `name` at growing distances, and the title once more.

    Args:
        title: two capitalised words.
        gaps: least characters between occurrences of the name.
    """
    rng = np.random.default_rng(seed)
    # Drawn without repeating soon, in lower case: the names are all that is capitalised.
    fillers = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(40)]

    def filler(length):
        words = []
        while sum(map(len, words)) + len(words) < length:
            words.append(fillers[rng.integers(len(fillers))])
        return " ".join(words) + " "

    text, planted, positions = f"{title}\n\nby someone\n\n", {}, []
    for gap in (20, *gaps):
        text += filler(gap)
        if positions:
            planted[len(text)] = len(text) - positions[-1]
        positions.append(len(text))
        text += f"{name} "
    text += filler(300)
    text += "end of "
    begins = len(text)
    text += f"{title} "
    return Book(text, planted, (begins, begins + title.index(" ") + 1, begins))


def make_store(folder, texts) -> TokenStore:
    """A store of bytes, one document a text."""
    documents = [Document(f"text {n}", text.encode()) for n, text in enumerate(texts)]
    write_store(folder, documents, ByteVocabulary(), {}, quiet=True)
    return TokenStore(folder)
