"""Sources that take a share of another source, or change its text.

First documents, first tokens, the text between marks, paragraphs in one line.

They can be nested, and list their documents without reading them where the inner source does.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import gin
from absl import logging

from brt.checks import Count, configurable
from brt.data.sources.base import Document, Source, check_source
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary


class Transformed(Source):
    """Documents of a source, each changed by a function.

    Args:
        source: the inner source, which also gives parts, files and counts.
        function: from a `Document` to a `Document`; it must be picklable. None changes nothing.
        description: entries that are added to the inner source's description.
    """

    def __init__(
        self,
        source: Source,
        function: Callable[[Document], Document] | None = None,
        description: dict | None = None,
    ):
        check_source(source, f"{type(self).__name__}.source")
        self.source = source
        self.vocabulary = source.vocabulary
        self.listed = source.listed
        self.checks_content = source.checks_content
        self._function = function
        self._description = description or {}

    def documents(self, split: str) -> Iterator[Document]:
        documents = self.source.documents(split)
        yield from map(self._function, documents) if self._function else documents

    def parts(self, split: str) -> list:
        return self.source.parts(split)

    def read(self, part: Any) -> Document:
        document = self.source.read(part)
        return self._function(document) if self._function else document

    def files(self, part: Any) -> list[str]:
        return self.source.files(part)

    def part_bytes(self, part: Any) -> int | None:
        return self.source.part_bytes(part)

    def count(self, split: str) -> int | None:
        return self.source.count(split)

    def description(self, split: str) -> dict:
        return {**self.source.description(split), **self._description}


@configurable
class FirstDocuments(Transformed):
    """The first documents of some splits, in the order of the inner source.

    That is the order of file names for `TextFiles`, so the first 1,250 books of PG19 by name are
    `source=TextFiles("pg19/{split}"), first={"train": 1250}`. Names are compared as text: 10
    comes before 9.

    Args:
        source: what to take them from.
        first: from a split's name to a number of documents; other splits are taken whole.

    Raises:
        ValueError: a number below 1; from `documents`, where there are fewer documents and the
            inner source knows that beforehand.
    """

    def __init__(self, source: Source = gin.REQUIRED, first: dict[str, Count] = gin.REQUIRED):
        super().__init__(source)
        self.first = _positive("FirstDocuments.first", first)

    def documents(self, split: str) -> Iterator[Document]:
        """Yields the first `Document`s of a split."""
        self.count(split)
        yield from islice(self.source.documents(split), self.first.get(split))

    def parts(self, split: str) -> list:
        """Lists the first of the inner source's parts."""
        return self.source.parts(split)[: self.count(split)]

    def count(self, split: str) -> int | None:
        """Returns the number of documents, None where the inner source does not know its own."""
        return self._checked(split, self.source.count(split))

    def description(self, split: str) -> dict:
        """Returns the inner source's, and the number of documents."""
        return {**self.source.description(split), "first_documents": self.first.get(split)}

    def _checked(self, split, there):
        first = self.first.get(split)
        if first is None or there is None:
            return there
        if there < first:
            raise ValueError(
                f"FirstDocuments.first asks for {first:,} documents of {split!r} and there are "
                f"{there:,}: lower it, or add the documents that are missing."
            )
        return first


@configurable
class FirstTokens(Transformed):
    """The first tokens of every document of some splits.

    A document is encoded whole before it is cut, so its tokens are those it has in full. Its
    bytes, which the counts of bytes and words in a store's manifest come from, become the
    shortest beginning of the text, in whole characters, that has as many tokens.

    Args:
        source: what to take them from.
        vocabulary: what tokens are, or its name (`named_vocabulary`); the corpus then takes its
            vocabulary from here.
        first: from a split's name to a number of tokens; other splits are taken whole.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(
        self,
        source: Source = gin.REQUIRED,
        vocabulary: Vocabulary | str = gin.REQUIRED,
        first: dict[str, Count] = gin.REQUIRED,
    ):
        super().__init__(source)
        self._cutter = as_vocabulary(vocabulary)
        self.vocabulary = self._cutter
        self.first = _positive("FirstTokens.first", first)

    def documents(self, split: str) -> Iterator[Document]:
        """Yields the beginning of each `Document`."""
        for document in self.source.documents(split):
            yield self._cut(document, self.first.get(split))

    def parts(self, split: str) -> list[tuple[Any, int | None]]:
        """Lists (part of the inner source, number of tokens or None) for each document."""
        return [(part, self.first.get(split)) for part in self.source.parts(split)]

    def read(self, part: tuple[Any, int | None]) -> Document:
        """Reads the beginning of the document of a part."""
        inner, first = part
        return self._cut(self.source.read(inner), first)

    def files(self, part: tuple[Any, int | None]) -> list[str]:
        """Returns the files that the document of a part is read from."""
        return self.source.files(part[0])

    def part_bytes(self, part: tuple[Any, int | None]) -> int | None:
        """Returns the bytes of the inner part, all of which are read."""
        return self.source.part_bytes(part[0])

    def description(self, split: str) -> dict:
        """Returns the inner source's, and the number of tokens."""
        return {**self.source.description(split), "first_tokens": self.first.get(split)}

    def _cut(self, document: Document, first: int | None) -> Document:
        if first is None:
            return document
        encode = self._cutter.encode
        data = document.data[:]
        tokens = document.tokens
        if tokens is None:
            tokens = encode(data, document.title)
        if len(tokens) <= first:
            return document._replace(tokens=tokens)
        weights = None if document.weights is None else document.weights[:first]
        end = bisect_left(
            range(len(data)),
            first,
            key=lambda end: len(encode(data[: _border(data, end)], document.title)),
        )
        return Document(document.title, data[:end], tokens[:first], weights)


@configurable
class GutenbergText(Transformed):
    """Books of Project Gutenberg without its header, licence and footer.

    A book is cut after the line (or lines) `*** START OF ... ***` and before `*** END OF`; where
    it is older, after `*END*THE SMALL PRINT!` and before `End of (the) Project Gutenberg`. Where
    it has no mark, nothing is cut and a warning names it. What editors wrote inside the marks
    (who scanned it, notes) is kept. PG19's own files are without the licence already.

    Args:
        source: what gives the books.
    """

    def __init__(self, source: Source = gin.REQUIRED):
        super().__init__(source, _between_marks, {"gutenberg_marks": "cut"})


@configurable
class UnwrappedLines(Transformed):
    """Texts whose paragraphs are one line each.

    Books are kept with lines of some 70 characters. Where the next line ends is then a matter of
    counting, which a memory does well and which says nothing of the text: tokenizers without a line
    break, as T5's, never see it. A line break becomes a space, but for one beside an empty line or
    before a line that is indented (verse, tables).

    Args:
        source: what gives the texts.
    """

    def __init__(self, source: Source = gin.REQUIRED):
        super().__init__(source, _unwrapped, {"lines": "unwrapped"})


_WRAPPED = re.compile(rb"(?<=\S)[ \t]*\r?\n(?=\S)")
"""The end of a line that the next one goes on from."""


def _unwrapped(document):
    return document._replace(data=_WRAPPED.sub(b" ", document.data))


_START = re.compile(
    rb"^\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
    rb"[^*\n]*(?:\n[^*\n]+){0,3}\*+[^\n]*\n"  # a long title goes on in the next lines
    rb"|^\*END[ *]*THE SMALL PRINT![^\n]*\n",
    re.MULTILINE | re.IGNORECASE,
)
_END = re.compile(
    rb"^(?:\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
    rb"|[ ]*End of (?:the |this )?Project Gutenberg)",
    re.MULTILINE | re.IGNORECASE,
)
_FOOTER = 1000
"""Bytes in which both forms of the end stand, one above the other."""


def _between_marks(document):
    data = document.data[:]
    start = _START.search(data)
    first = start.end() if start else 0
    ends = [match.start() for match in _END.finditer(data, first)]
    for found, name in ((start, "start"), (ends, "end")):
        if not found:
            logging.warning("%s has no mark of its %s: nothing is cut there.", document.title, name)
    # A collection may hold the ends of its volumes, so the last one counts.
    last = min(end for end in ends if end > ends[-1] - _FOOTER) if ends else len(data)
    return document._replace(data=data[first:last])


def _border(data, position):
    """The last start of a UTF-8 character at or before `position`."""
    while 0 < position < len(data) and data[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _positive(name, first):
    for split, number in first.items():
        if number < 1:
            raise ValueError(f"{name} of {split!r} is {number}: bind it to 1 or more.")
    return dict(first)
