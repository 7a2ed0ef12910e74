"""A vocabulary of symbols, for synthetic tasks."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from brt.data.vocabularies.base import Frame, Vocabulary, checked_ids


class SymbolVocabulary(Vocabulary):
    """Ids of symbols: positions in a list; `encode` takes the first of equal ones.

    Args:
        name: for messages and manifests.
        identity: text whose sha256 is the fingerprint; None for the symbols as JSON.
        separator: between symbols; "" if each is one character.
    """

    is_text = False
    name = fingerprint = ""
    special_ids: dict[str, int] = {}
    frame = Frame()

    def __init__(
        self,
        name: str,
        symbols: Sequence[str],
        special_ids: dict[str, int],
        identity: str | None = None,
        separator: str = " ",
        frame: Frame = frame,
    ):
        self.name = name
        self.symbols = symbols
        self.special_ids = special_ids
        identity = json.dumps(symbols) if identity is None else identity
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        self.separator = separator
        self.frame = frame

    @property
    def size(self) -> int:
        return len(self.symbols)

    def encode(self, data: bytes, title: str) -> np.ndarray:
        ids = {symbol: i for i, symbol in reversed(list(enumerate(self.symbols)))}
        words = data.decode("utf-8", errors="replace").split()
        symbols = words if self.separator else list("".join(words))
        if unknown := [symbol for symbol in symbols if symbol not in ids]:
            raise ValueError(
                f"Document {title!r} has {unknown[0]!r}, and the symbols of {self.name} are "
                f"{self.separator.join(dict.fromkeys(self.symbols))}: write only these."
            )
        return np.array([ids[symbol] for symbol in symbols], np.int32)

    def decode(self, ids: ArrayLike) -> str:
        checked = checked_ids(ids, self.size, self.name)
        return self.separator.join(self.symbols[i] for i in checked)
