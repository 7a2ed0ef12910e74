"""Sources that select or change documents of another source; they can be nested."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from absl import logging

from brt.checks import Count, configurable
from brt.data.sources.base import Document, Source, check_source
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary


@dataclass(eq=False)
class Transformed(Source):
    """The documents of a source, each changed by `change`.

    Args:
        source: the inner source.

    Attributes:
        mark: added to the description of the inner source.
    """

    source: Source
    mark: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        check_source(self.source, f"{type(self).__name__}.source")
        if not getattr(self, "vocabulary", None):
            self.vocabulary = self.source.vocabulary
        self.listed = self.source.listed
        self.checks_content = self.source.checks_content

    def change(self, document: Document, split: str) -> Document:
        return document

    def documents(self, split: str) -> Iterator[Document]:
        return (self.change(document, split) for document in self.source.documents(split))

    def parts(self, split: str) -> list[tuple[Any, str]]:
        return [(part, split) for part in self.source.parts(split)]

    def read(self, part: tuple[Any, str]) -> Document:
        return self.change(self.source.read(part[0]), part[1])

    def files(self, part: tuple[Any, str]) -> list[str]:
        return self.source.files(part[0])

    def part_bytes(self, part: tuple[Any, str]) -> int | None:
        return self.source.part_bytes(part[0])

    def split_files(self, split: str) -> list[str] | None:
        return self.source.split_files(split)

    def count(self, split: str) -> int | None:
        return self.source.count(split)

    def description(self, split: str) -> dict:
        return {**self.source.description(split), **self.mark}

    def _text(self, document: Document) -> bytes:
        if document.tokens is not None:
            raise ValueError(
                f"{document.title} has tokens already, which {type(self).__name__} does not "
                f"change: bind {type(self).__name__}.source to a source of text."
            )
        return document.data[:]


@configurable
@dataclass(eq=False)
class FirstDocuments(Transformed):
    """The first documents of some splits.

    Args:
        source: the inner source, which determines the order; in `TextFiles` 10 comes before 9.
    """

    first: dict[str, Count]

    def documents(self, split: str) -> Iterator[Document]:
        self.count(split)  # refuses too few
        yield from islice(self.source.documents(split), self.first.get(split))

    def parts(self, split: str) -> list[tuple[Any, str]]:
        return super().parts(split)[: self.count(split)]

    def count(self, split: str) -> int | None:
        first, available = self.first.get(split), self.source.count(split)
        if first is None or available is None:
            return available
        if available < first:
            raise ValueError(
                f"FirstDocuments.first asks for {first:,} documents of {split!r} and there are "
                f"{available:,}: lower it, or add the documents that are missing."
            )
        return first

    def description(self, split: str) -> dict:
        return {**self.source.description(split), "first_documents": self.first.get(split)}


@configurable
@dataclass(eq=False)
class FirstTokens(Transformed):
    """The first tokens of every document of some splits: the shortest beginning of the text with as
    many tokens.

    Args:
        source: the inner source; labels are kept; answers at positions of a text are refused.
        first: from the name of a split to a number of tokens; other splits stay whole.
    """

    vocabulary: Vocabulary | str = field()
    first: dict[str, Count]

    def change(self, document: Document, split: str) -> Document:
        first = self.first.get(split)
        if first is None:
            return document
        encode = as_vocabulary(self.vocabulary).encode
        title, data, tokens = document.title, document.data[:], document.tokens
        if tokens is None:
            tokens = encode(data, title)
        if len(tokens) <= first:
            return document._replace(tokens=tokens)
        if {"length", "spans"} & (document.annotation or {}).keys():
            raise ValueError(
                f"{title or 'A document'} has answers at positions of its text, which "
                f"FirstTokens.first = {first} would cut: make the texts of its source shorter."
            )
        end = bisect_left(
            range(len(data)),
            first,
            key=lambda end: len(encode(data[: _character_start(data, end)], title)),
        )
        weights = None if document.weights is None else document.weights[:first]
        return document._replace(data=data[:end], tokens=tokens[:first], weights=weights)

    def description(self, split: str) -> dict:
        return {**self.source.description(split), "first_tokens": self.first.get(split)}


@configurable
@dataclass(eq=False)
class UnwrappedLines(Transformed):
    """Texts with one line per paragraph, so that no memory predicts line ends by counting.

    A line break becomes a space, except next to an empty line or before an indented line.
    """

    _LINE_END = re.compile(rb"(?<=\S)[ \t]*\r?\n(?=\S)")  # inside a paragraph

    mark = {"lines": "unwrapped"}

    def change(self, document: Document, split: str) -> Document:
        return document._replace(data=self._LINE_END.sub(b" ", self._text(document)))


@configurable
@dataclass(eq=False)
class GutenbergText(Transformed):
    """Books of Project Gutenberg without header, licence and footer.

    The text is between `*** START OF ... ***` and `*** END OF`; in older books between `*END*THE
    SMALL PRINT!` and `End of (the) Project Gutenberg`. A missing mark is logged.
    """

    _START = re.compile(
        rb"^\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
        rb"[^*\n]*(?:\n[^*\n]+){0,3}\*+[^\n]*\n"  # a long title has several lines
        rb"|^\*END[ *]*THE SMALL PRINT![^\n]*\n",
        re.MULTILINE | re.IGNORECASE,
    )
    _END = re.compile(
        rb"^(?:\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
        rb"|[ ]*End of (?:the |this )?Project Gutenberg)",
        re.MULTILINE | re.IGNORECASE,
    )
    _FOOTER = 1000  # bytes that may contain both forms of the end

    mark = {"gutenberg_marks": "cut"}

    def change(self, document: Document, split: str) -> Document:
        data = self._text(document)
        start = self._START.search(data)
        first = start.end() if start else 0
        ends = [match.start() for match in self._END.finditer(data, first)]
        for mark, name in ((start, "start"), (ends, "end")):
            if not mark:
                title = document.title
                logging.warning("%s has no mark of its %s: nothing is cut there.", title, name)
        # The last end counts, because a collection may contain those of its volumes.
        last = min(end for end in ends if end > ends[-1] - self._FOOTER) if ends else len(data)
        return document._replace(data=data[first:last])


def _character_start(data: bytes, position: int) -> int:
    while 0 < position < len(data) and data[position] & 0xC0 == 0x80:
        position -= 1
    return position
