"""Readers of published corpora, for the files that their makers distribute.

Each knows the sizes its files should have and refuses others before the first document, because
a wrong file (still packed, cut short, preprocessed by someone else) would give figures that
cannot be compared. Nothing is downloaded: the message for a missing file says where it is.
Documents are the files' bytes; what a line end stands for is for the vocabulary to say.
"""

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import gin

from brt.checks import Name, Seed, configurable
from brt.data.sources.base import Document, FileSource, absolute, check_known_split
from brt.storage.file_parts import FileBytes
from brt.storage.regular_files import open_regular

Item = TypeVar("Item")

NAMES = {"train": "train", "validation": "valid", "test": "test"}
"""The splits as they are called here, and in the names of files."""


class Extent(NamedTuple):
    """One document: bytes start to stop of a file."""

    title: str
    path: str
    start: int
    stop: int


class PublishedFiles(FileSource):
    """A source that knows the files its makers distribute, and refuses others.

    Args:
        path: the folder that holds them; `~` and environment variables are expanded.

    Attributes:
        page: where the files are to be had.
    """

    checks_content = True
    page: str

    def __init__(self, path: Name = gin.REQUIRED):
        self.path = path

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents, with `path` as it was given."""
        return {"source": type(self).__name__, "split": split, "path": self.path}

    def _found(self, name: str) -> str:
        """Path of the file of that name in the folder `path`."""
        path = os.path.join(absolute(self.path), name)
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"No file is at {path}: get {name} from {self.page}, unpack it, and bind "
                f"{type(self).__name__}.path to its folder."
            )
        return path

    def _expect(self, path: str, unit: str, expected: int, found: int) -> None:
        """Refuses a file whose size is not the published one."""
        if found != expected:
            raise ValueError(
                f"{path} has {found:,} {unit} and {type(self).__name__}'s own file has "
                f"{expected:,}: unpack the file from {self.page} again, or read one of your own "
                "with TextFiles."
            )


class _Extents(PublishedFiles):
    """The sources whose documents are extents."""

    def read(self, part: Extent) -> Document:
        """Reads the bytes of an extent."""
        text = FileBytes(part.path, "Unpack it again.")
        return Document(part.title, text.read(part.start, part.stop - part.start))

    def files(self, part: Extent) -> list[str]:
        """Returns the file of an extent."""
        return [part.path]

    def part_bytes(self, part: Extent) -> int:
        """Returns the length of an extent."""
        return part.stop - part.start

    def count(self, split: str) -> int | None:
        """Returns 1: a split is one document."""
        return 1


class _Cut(_Extents):
    """One file of known size, cut into the splits."""

    file: str
    lengths: dict[str, int]  # bytes of each split, in their order in the file

    def parts(self, split: str) -> list[Extent]:
        """Lists the split's range of the file, whose size is checked."""
        check_known_split(self, split, NAMES)
        path = absolute(self.path)
        if not os.path.isfile(path):
            path = self._found(self.file)
        self._expect(path, "bytes", sum(self.lengths.values()), os.path.getsize(path))
        names = list(self.lengths)
        start = sum(self.lengths[name] for name in names[: names.index(split)])
        return [Extent(f"{self.file}-{split}", path, start, start + self.lengths[split])]


@configurable
class Enwik8(_Cut):
    """The first 10^8 bytes of an English Wikipedia dump: 90M, 5M and 5M bytes, one document each.

    Args:
        path: the unpacked file, or the folder that holds it as `enwik8`.
        line_feeds: False leaves line feeds out, as the loader of Transformer-XL does by taking
            them for the ends of its lines. Its 204 symbols are the bytes without the line feed.

    Raises:
        FileNotFoundError, ValueError: from `documents`, for a missing file or one of another size.
    """

    file = "enwik8"
    page = "https://mattmahoney.net/dc/textdata.html (enwik8.zip)"
    lengths = {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}

    def __init__(self, path: Name = gin.REQUIRED, line_feeds: bool = True):
        super().__init__(path)
        self.line_feeds = line_feeds

    def read(self, part: Extent) -> Document:
        """Reads the bytes of a split, with or without its line feeds."""
        document = super().read(part)
        if self.line_feeds:
            return document
        return document._replace(data=document.data[:].replace(b"\n", b""))

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents, with `path` as it was given."""
        return {**super().description(split), "line_feeds": self.line_feeds}


@configurable
class Text8(_Cut):
    """10^8 bytes of Wikipedia in 26 letters and the space: 90M, 5M and 5M, one document each.

    Args:
        path: the unpacked file, or the folder that holds it as `text8`.

    Raises:
        FileNotFoundError, ValueError: from `documents`, for a missing file or one of another size.
    """

    file = "text8"
    page = "https://mattmahoney.net/dc/textdata.html (text8.zip)"
    lengths = {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}


class _Lines(_Extents):
    """One file a split, of known numbers of lines and of tokens (words and line ends)."""

    lines: dict[str, int]
    tokens: dict[str, int]  # empty where no count is published

    def _checked(self, split, name):
        """The extent of a split's whole file, whose lines and words are counted first."""
        path = self._found(name)
        status = os.stat(path)
        lines, words = _counted(path, status.st_size, status.st_mtime_ns)
        self._expect(path, "lines", self.lines[split], lines)
        if self.tokens:
            self._expect(path, "words and line ends", self.tokens[split], words + lines)
        return Extent(os.path.basename(path), path, 0, os.path.getsize(path))


@configurable
class PennTreebank(_Lines):
    """Mikolov's Penn Treebank: lower case, 10,000 words, `<unk>` and `N`. One document a split.

    Args:
        path: the folder of `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`.

    Raises:
        FileNotFoundError, ValueError: from `documents`, for a missing file or one with other
            numbers of lines or words.
    """

    page = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz (its folder data)"
    lines = {"train": 42_068, "validation": 3_370, "test": 3_761}
    tokens = {"train": 929_589, "validation": 73_760, "test": 82_430}

    def parts(self, split: str) -> list[Extent]:
        """Lists the split's file, whose lines and words are counted."""
        check_known_split(self, split, NAMES)
        return [self._checked(split, f"ptb.{NAMES[split]}.txt")]


class _WikiText(_Lines):
    """WikiText as distributed, one document a split or an article.

    Args:
        path: the folder of `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`.
        articles: cut at the titles of articles, so that each is a document.
        raw: read the raw form, `wiki.train.raw` and so on, which has no `<unk>`.

    An article's title is a line ` = Title = ` between two blank lines: single equality signs also
    open lines inside tables and formulas. The articles of a split joined are its file.

    Raises:
        FileNotFoundError, ValueError: from `documents`, for a missing file, or one with another
            number of lines or, in the form of tokens, of words.
    """

    page = "https://huggingface.co/datasets/Salesforce/wikitext"

    def __init__(self, path: Name = gin.REQUIRED, articles: bool = False, raw: bool = False):
        super().__init__(path)
        self.articles = articles
        self.raw = raw
        if raw:  # words are counted differently there, and no count is published
            self.tokens = {}

    def parts(self, split: str) -> list[Extent]:
        """Lists the split's file or its articles; its lines and words are counted first."""
        check_known_split(self, split, NAMES)
        whole = self._checked(split, f"wiki.{NAMES[split]}.{'raw' if self.raw else 'tokens'}")
        return _articles(whole.path) if self.articles else [whole]

    def count(self, split: str) -> int | None:
        """Returns 1; None for articles, because counting them takes a pass over the file."""
        return None if self.articles else 1

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents, with `path` as it was given."""
        return {**super().description(split), "articles": self.articles, "raw": self.raw}


@configurable
class WikiText103(_WikiText):
    __doc__ = _WikiText.__doc__

    lines = {"train": 1_801_350, "validation": 3_760, "test": 4_358}
    tokens = {"train": 103_227_021, "validation": 217_646, "test": 245_569}


@configurable
class WikiText2(_WikiText):
    __doc__ = _WikiText.__doc__

    lines = {"train": 36_718, "validation": 3_760, "test": 4_358}
    tokens = {"train": 2_088_628, "validation": 217_646, "test": 245_569}


@configurable
class OneBillionWord(PublishedFiles):
    """One Billion Word Benchmark: sentences, one a line; one document a shard of 300,000.

    Sentences stand in no order of meaning. Those of training come in an order that the seed
    decides, first of the shards, then of the sentences of each. Validation and test both are
    held-out shard 0 as it is, as in the code of Transformer-XL, which takes it for both.

    Args:
        path: the folder `1-billion-word-language-modeling-benchmark-r13output`.
        seed: decides the order of training.

    Raises:
        FileNotFoundError, ValueError: from `documents`, for a missing shard, or a held-out shard
            with another number of sentences.
    """

    page = "https://www.statmt.org/lm-benchmark/"
    train = "training-monolingual.tokenized.shuffled/news.en-{:05}-of-00100"
    shards = range(1, 100)
    held_out = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
    held_out_lines = 6_075

    def __init__(self, path: Name = gin.REQUIRED, seed: Seed = 0):
        super().__init__(path)
        self.seed = seed

    def parts(self, split: str) -> list[tuple[str, bool]]:
        """Lists (path, whether its sentences are to be shuffled) for each shard of the split."""
        check_known_split(self, split, NAMES)
        if split == "train":
            paths = [self._found(self.train.format(shard)) for shard in self.shards]
            return [(path, True) for path in _shuffled(paths, f"{self.seed}")]
        path = self._found(self.held_out)
        with open_regular(path) as file:
            self._expect(path, "lines", self.held_out_lines, sum(1 for _ in file))
        return [(path, False)]

    def read(self, part: tuple[str, bool]) -> Document:
        """Reads the sentences of a shard, each with its line end."""
        path, shuffle = part
        name = os.path.basename(path)
        with open_regular(path) as file:
            sentences = file.readlines()
        if shuffle:
            sentences = _shuffled(sentences, f"{self.seed}:{name}")
        return Document(name, b"".join(sentences))

    def files(self, part: tuple[str, bool]) -> list[str]:
        """Returns the path of a shard."""
        return [part[0]]

    def count(self, split: str) -> int:
        """Returns the number of shards."""
        return len(self.shards) if split == "train" else 1

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents, with `path` as it was given."""
        seed = {"seed": self.seed} if split == "train" else {}
        return {**super().description(split), **seed}


@functools.lru_cache
def _counted(path, size, time):
    """Lines and words of a file; asked again, it is counted again only if it has changed."""
    lines = words = 0
    with open_regular(path) as file:
        for line in file:
            lines += 1
            words += len(line.decode("utf-8", "replace").split())
    return lines, words


TITLE = re.compile(rb" = (?!= )([^\n]*)(?<! =) = \n")
"""A line between two blank ones that begins an article."""


def _articles(path):
    """An extent for each article; what stands before the first title belongs to the first."""
    found: list[tuple[int, str]] = []
    end = 0
    after_blank = True
    candidate: tuple[int, str] | None = None  # a title, if a blank line follows
    with open_regular(path) as file:
        for line in file:
            is_blank = not line.strip()
            if candidate and is_blank:
                found.append(candidate)
            match = TITLE.fullmatch(line) if after_blank else None
            candidate = (end, match[1].decode("utf-8", "replace")) if match else None
            after_blank = is_blank
            end += len(line)
    if candidate:  # nothing follows, not even a blank
        found.append(candidate)
    if not found:
        raise ValueError(
            f"{path} has no line such as ' = Title = ' to cut articles at: bind the source's "
            "articles = False."
        )
    borders = [0, *(start for start, _ in found[1:]), end]
    return [
        Extent(name, path, start, stop)
        for (_, name), start, stop in zip(found, borders, borders[1:])
    ]


def _shuffled(items: Sequence[Item], key: str) -> list[Item]:
    """The items in an order that only `key` decides, the same with every version of Python."""
    ranks = [hashlib.sha256(f"{key}:{number}".encode()).digest() for number in range(len(items))]
    return [items[number] for number in sorted(range(len(items)), key=ranks.__getitem__)]
