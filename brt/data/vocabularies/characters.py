"""Vocabularies of bytes or characters.

The file has one symbol per line, in the order of the ids, with its count: `0x20 13519824` for a
byte, `U+0020 13519824` for a character, `<unk> 0` for all others.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import configurable
from brt.data.sources.base import Document
from brt.data.vocabularies.base import (
    FileVocabulary,
    checked_ids,
    read_vocabulary_file,
    utf8_lines,
    utf8_text,
)

UNKNOWN = "<unk>"
PREFIXES = {"byte": "0x", "character": "U+"}
CODES = {"byte": 2**8, "character": 0x110000}


class _SymbolList(NamedTuple):
    symbols: list[str]  # as written, by id
    unit: str  # "byte" or "character"
    pieces: list[bytes]  # the bytes of each, by id
    ids_of_codes: np.ndarray  # int32, the id of every code of the unit; -1 for none


@configurable
class CharacterVocabulary(FileVocabulary):
    """Bytes or characters that are listed in a file, such as enwik8's 204 and text8's 27."""

    kind = "characters"

    @property
    def size(self) -> int:
        return len(self._list.symbols)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(" ".join(["symbols", *self._list.symbols]).encode()).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        return {} if self.unknown_id is None else {UNKNOWN: self.unknown_id}

    @property
    def unknown_id(self) -> int | None:
        symbols = self._list.symbols
        return symbols.index(UNKNOWN) if UNKNOWN in symbols else None

    @property
    def cuts_after(self) -> bytes:
        return b"" if self._list.unit == "byte" else b"\n"

    def encode(self, data: bytes, title: str) -> np.ndarray:
        unit = self._list.unit
        codes = _codes(data, unit, title)
        ids = self._list.ids_of_codes[codes]
        if self.unknown_id is None and (ids < 0).any():
            position = int(np.argmax(ids < 0))
            symbol = _symbol(int(codes[position]), unit)
            raise ValueError(
                f"Document {title!r} has {symbol} at {unit} {position}, which {self.file} does not "
                "list: count over this split too (SymbolCounting.splits), or count with "
                "SymbolCounting.unknown = True."
            )
        return ids

    def decode(self, ids: ArrayLike) -> str:
        pieces = self._list.pieces
        checked = checked_ids(ids, self.size, self.name)
        return b"".join(pieces[i] for i in checked).decode("utf-8", errors="replace")

    @functools.cached_property
    def _list(self) -> _SymbolList:
        binding = "CharacterVocabulary.file"
        data = read_vocabulary_file(self.file, "symbol list", binding)
        symbols = [line.split()[0] for line in utf8_lines(data, self.file) if line.strip()]
        try:
            unit = next(u for u, prefix in PREFIXES.items() if symbols[0].startswith(prefix))
            codes = [None if s == UNKNOWN else _code(s, PREFIXES[unit]) for s in symbols]
            pieces = ["\ufffd".encode() if c is None else _bytes(c, unit) for c in codes]
            known = np.array([c for c in codes if c is not None])
            if len(set(symbols)) < len(symbols) or len(symbols) - len(known) > 1:
                raise ValueError
        except (IndexError, StopIteration, ValueError, OverflowError):
            raise ValueError(
                f"{self.file} is not a list of symbols, each once, as 0x20 or as U+0020: make one "
                f"with `brt.prepare --train_vocabulary`, or bind {binding} to one."
            ) from None
        default = codes.index(None) if None in codes else -1
        ids_of_codes = np.full(CODES[unit], default, np.int32)
        ids_of_codes[known] = [i for i, c in enumerate(codes) if c is not None]
        return _SymbolList(symbols, unit, pieces, ids_of_codes)


def symbol_list(documents: Iterable[Document], unit: str, unknown: bool = False) -> bytes:
    """Returns the file of their "byte"s or "character"s by decreasing count, then by code; unknown
    last.
    """
    counts = np.zeros(CODES[unit], np.int64)
    for document in documents:
        codes, times = np.unique(_codes(document.data[:], unit, document.title), return_counts=True)
        counts[codes] += times
    codes = np.flatnonzero(counts)
    order = codes[np.argsort(-counts[codes], kind="stable")]
    lines = [f"{_symbol(code, unit)} {counts[code]}\n" for code in order.tolist()]
    return "".join([*lines, *([f"{UNKNOWN} 0\n"] if unknown else [])]).encode()


def _codes(data, unit, title):
    if unit == "byte":
        return np.frombuffer(data, np.uint8)
    return np.frombuffer(utf8_text(data, title).encode("utf-32-le"), "<u4")


def _symbol(code, unit):
    return f"0x{code:02x}" if unit == "byte" else f"U+{code:04X}"


def _code(symbol, prefix):
    if not symbol.startswith(prefix):
        raise ValueError
    return int(symbol.removeprefix(prefix), 16)


def _bytes(code, unit):
    return bytes([code]) if unit == "byte" else chr(code).encode()
