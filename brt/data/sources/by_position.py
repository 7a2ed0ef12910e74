"""Splits by position: the first 90 %, the next 5 %, the last 5 %."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from brt.checks import configurable
from brt.data.sources.base import Document, FileSource, Source, check_source
from brt.storage.file_parts import FileBytes
from brt.storage.paths import file_size

WHOLE_DOCUMENTS = 100
"""With fewer, documents are cut, so that a split of one book is not empty."""
NEAR = 100
"""A cut moves to the next line end within 1 / 100 of the document."""
DEFAULT = {"train": "train[:90%]", "validation": "train[90%:95%]", "test": "train[95%:]"}
SLICE = re.compile(r"(\w[\w\-]*)\[(\d*)%?:(\d*)%?\]")


class Piece(NamedTuple):
    """Bytes `start` to `end` of the `size` bytes of a document."""

    part: Any
    start: int
    end: int
    size: int


@configurable
@dataclass(eq=False)
class SplitByPosition(FileSource):
    """Slices of a split as splits, such as the last tenth of one large file.

    From 100 documents on a slice has whole documents; with fewer it is a part of all bytes, cut at
    line ends. `validation[:10%]` names a part of a split.

    Args:
        source: the inner source, which lists its documents.
        splits: from the name of a split to a slice, in whole percent, of a split of `source`.
    """

    source: Source
    splits: dict[str, str] | None = None

    def __post_init__(self) -> None:
        check_source(self.source, "SplitByPosition.source")
        self.vocabulary = self.source.vocabulary
        if not self.source.listed:
            raise ValueError(
                f"SplitByPosition.source = {type(self.source).__name__} does not list its "
                "documents: bind it to a source of files, or bind the splits of that source."
            )

    def parts(self, split: str) -> list[Piece]:
        name, first, last = self._slice(split)
        parts = self.source.parts(name)
        if len(parts) >= WHOLE_DOCUMENTS:
            start, end = (int(len(parts) * share) for share in (first, last))
            return [Piece(part, 0, 1, 1) for part in parts[start:end]]
        sizes = [self._size(part) for part in parts]
        start, end = (int(sum(sizes) * share) for share in (first, last))
        pieces = []
        for part, size in zip(parts, sizes, strict=True):
            if max(start, 0) < min(end, size):
                pieces.append(Piece(part, max(start, 0), min(end, size), size))
            start, end = start - size, end - size
        return pieces

    def read(self, part: Piece) -> Document:
        document = self.source.read(part.part)
        if (part.start, part.end) == (0, part.size):
            return document
        if document.tokens is not None:
            raise ValueError(
                f"{document.title} has tokens and no text, and SplitByPosition cuts text only: "
                f"give it {WHOLE_DOCUMENTS} documents or more."
            )
        length = len(document.data)
        start, end = (
            _line_start(document.data, max(length * position // part.size, min(position, 1)))
            for position in (part.start, part.end)
        )
        if start == end:
            raise ValueError(
                f"{document.title} has too little text for a slice: bind SplitByPosition.splits to "
                "larger ones."
            )
        data = document.data
        piece = data.part(start, end) if isinstance(data, FileBytes) else data[start:end]
        return document._replace(data=piece)

    def files(self, part: Piece) -> list[str]:
        return self.source.files(part.part)

    def part_bytes(self, part: Piece) -> int:
        return self._size(part.part) * (part.end - part.start) // part.size

    def split_files(self, split: str) -> list[str] | None:
        return self.source.split_files(self._slice(split)[0])

    def description(self, split: str) -> dict:
        name, first, last = self._slice(split)
        percent = [float(100 * share) for share in (first, last)]
        percent = [int(number) if number.is_integer() else number for number in percent]
        of = {} if name == "train" else {"of": name}  # as in stores of earlier versions
        return {**self.source.description(name), "split": split, "percent": percent, **of}

    def _size(self, part: Any) -> int:
        size = self.source.part_bytes(part)
        return sum(map(file_size, self.source.files(part))) if size is None else size

    def _slice(self, split: str) -> tuple[str, Fraction, Fraction]:
        splits = self.splits or DEFAULT
        slices = {name: found for name, text in splits.items() if (found := _parsed(text))}
        if split in slices:
            return slices[split]
        inner = _parsed(split)
        known = slices | {name: (name, Fraction(0), Fraction(1)) for name, *_ in slices.values()
                          if name not in splits}  # fmt: skip
        if inner is None or inner[0] not in known:
            raise ValueError(
                f"SplitByPosition.splits has no slice {split!r}: write one such as "
                f"{{{split!r}: 'train[90%:]'}}; it has {', '.join(splits)}."
            )
        name, start, end = known[inner[0]]
        return name, start + (end - start) * inner[1], start + (end - start) * inner[2]


def _parsed(text: str) -> tuple[str, Fraction, Fraction] | None:
    if not (matched := SLICE.fullmatch(text)):
        return None
    start, end = Fraction(matched[2] or "0") / 100, Fraction(matched[3] or "100") / 100
    return (matched[1], start, end) if start < end <= 1 else None


def _line_start(data: bytes | FileBytes, position: int) -> int:
    """Returns the first start of a line at or after a position; of a character if none is near.

    Neither part is empty if the document has two characters.
    """
    if position in (0, len(data)):
        return position
    window = data[position - 1 : position + len(data) // NEAR]
    line_end = window.find(b"\n")
    if line_end >= 0 and position + line_end < len(data):
        return position + line_end
    first = max(position - 3, 1)  # a character has at most 4 bytes
    near = enumerate(data[first : position + 4], first)
    starts = [at for at, byte in near if byte & 0xC0 != 0x80]
    return min(starts, key=lambda at: (at < position, abs(at - position)), default=position)
