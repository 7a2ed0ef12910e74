"""Published corpora, read from the files that their authors distribute.

Files of other sizes are refused (packed, incomplete, preprocessed differently).
"""

import functools
import hashlib
import io
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from brt.checks import Name, Seed, configurable
from brt.data.sources.base import Document, FileSource, absolute, check_known_split
from brt.storage.file_parts import FileBytes
from brt.storage.regular_files import open_regular

Item = TypeVar("Item")

FILE_NAMES = {"train": "train", "validation": "valid", "test": "test"}
MATT_MAHONEY = "https://mattmahoney.net/dc/textdata.html ({}.zip)"
WIKITEXT = "https://huggingface.co/datasets/Salesforce/wikitext"


class Extent(NamedTuple):
    """One document: bytes start to stop of a file."""

    title: str
    path: str
    start: int
    stop: int


@dataclass(eq=False)
class PublishedFiles(FileSource):
    """A source whose documents are parts of published files in a folder; one per split by default.

    Attributes:
        page: address of the files.
        file: name of the file; `{split}` and `{form}` are replaced.
        sizes: of the splits train, validation and test, by unit.
    """

    checks_content = True
    page: ClassVar[str]
    file: ClassVar[str]
    sizes: ClassVar[dict[str, tuple[int, int, int]]] = {}
    path: Name

    def read(self, part: Extent) -> Document:
        text = FileBytes(part.path, "Unpack it again.")
        return Document(part.title, text.read(part.start, part.stop - part.start))

    def files(self, part: Extent) -> list[str]:
        return [part.path]

    def part_bytes(self, part: Extent) -> int:
        return part.stop - part.start

    def count(self, split: str) -> int | None:
        return 1

    def _whole(self, name: str) -> Extent:
        path = os.path.join(absolute(self.path), name)
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"No file is at {path}: get {name} from {self.page}, unpack it, and bind "
                f"{type(self).__name__}.path to its folder."
            )
        return Extent(os.path.basename(path), path, 0, os.path.getsize(path))

    def _expect(self, path: str, unit: str, expected: int, size: int) -> None:
        if size != expected:
            raise ValueError(
                f"{path} has {size:,} {unit} and the published file has {expected:,}: unpack the "
                f"file from {self.page} again, or read your own with TextFiles."
            )


@dataclass(eq=False)
class _OneFile(PublishedFiles):
    sizes = {"bytes": (90_000_000, 5_000_000, 5_000_000)}

    def parts(self, split: str) -> list[Extent]:
        check_known_split(self, split, FILE_NAMES)
        path = absolute(self.path)
        if not os.path.isfile(path):
            path = self._whole(self.file).path
        sizes = self.sizes["bytes"]
        self._expect(path, "bytes", sum(sizes), os.path.getsize(path))
        number = list(FILE_NAMES).index(split)
        start = sum(sizes[:number])
        return [Extent(f"{self.file}-{split}", path, start, start + sizes[number])]


@configurable
@dataclass(eq=False)
class Enwik8(_OneFile):
    """The first 10^8 bytes of an English Wikipedia dump: 90M, 5M and 5M bytes, one document each.

    Args:
        path: the unpacked file, or the folder of `enwik8`.
        line_feeds: False removes them, as the code of Transformer-XL does; 204 symbols remain.
    """

    page = MATT_MAHONEY.format("enwik8")
    file = "enwik8"

    line_feeds: bool = True

    def read(self, part: Extent) -> Document:
        document = super().read(part)
        if self.line_feeds:
            return document
        return document._replace(data=document.data[:].replace(b"\n", b""))


@configurable
@dataclass(eq=False)
class Text8(_OneFile):
    """10^8 bytes of Wikipedia in a to z and spaces: 90M, 5M and 5M, one document each.

    Args:
        path: the unpacked file, or the folder of `text8`.
    """

    page = MATT_MAHONEY.format("text8")
    file = "text8"


@dataclass(eq=False)
class _OneFilePerSplit(PublishedFiles):
    form = ""

    def parts(self, split: str) -> list[Extent]:
        check_known_split(self, split, FILE_NAMES)
        whole = self._whole(self.file.format(split=FILE_NAMES[split], form=self.form))
        lines, words = _counted(whole.path, whole.stop, os.stat(whole.path).st_mtime_ns)
        number = list(FILE_NAMES).index(split)
        self._expect(whole.path, "lines", self.sizes["lines"][number], lines)
        if self.form != "raw":  # the raw form has no published count
            expected = self.sizes["tokens"][number]
            self._expect(whole.path, "words and line ends", expected, words + lines)
        return [whole]


@configurable
@dataclass(eq=False)
class PennTreebank(_OneFilePerSplit):
    """Mikolov's Penn Treebank: lower case, 10,000 words, `<unk>` and `N`. One document per split.

    Args:
        path: the folder of `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`.
    """

    page = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz (its folder data)"
    file = "ptb.{split}.txt"
    sizes = {"lines": (42_068, 3_370, 3_761), "tokens": (929_589, 73_760, 82_430)}


@dataclass(eq=False)
class _WikiText(_OneFilePerSplit):
    """WikiText as distributed, one document per split or per article.

    Args:
        path: the folder of `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`.
        articles: one document per article, from a line ` = Title = ` between two blank lines.
        raw: read the raw form, `wiki.train.raw` and so on, without `<unk>`.
    """

    page = WIKITEXT
    file = "wiki.{split}.{form}"

    articles: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        self.form = "raw" if self.raw else "tokens"

    def parts(self, split: str) -> list[Extent]:
        (whole,) = super().parts(split)
        return _articles(whole.path) if self.articles else [whole]

    def count(self, split: str) -> int | None:
        return None if self.articles else 1


@configurable
@dataclass(eq=False)
class WikiText103(_WikiText):
    __doc__ = _WikiText.__doc__

    sizes = {"lines": (1_801_350, 3_760, 4_358), "tokens": (103_227_021, 217_646, 245_569)}


@configurable
@dataclass(eq=False)
class WikiText2(_WikiText):
    __doc__ = _WikiText.__doc__

    sizes = {"lines": (36_718, 3_760, 4_358), "tokens": (2_088_628, 217_646, 245_569)}


@configurable
@dataclass(eq=False)
class OneBillionWord(PublishedFiles):
    """One Billion Word Benchmark: one sentence per line, one document per shard of 300,000.

    Validation and test are both held-out shard 0, as in the code of Transformer-XL.

    Args:
        path: the folder `1-billion-word-language-modeling-benchmark-r13output`.
        seed: of the order of training, of the shards and of their sentences.
    """

    page = "https://www.statmt.org/lm-benchmark/"
    file = "training-monolingual.tokenized.shuffled/news.en-{:05}-of-00100"
    shards = range(1, 100)
    held_out = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
    held_out_lines = 6_075

    seed: Seed = 0

    def parts(self, split: str) -> list[Extent]:
        check_known_split(self, split, FILE_NAMES)
        if split == "train":
            shards = [self._whole(self.file.format(shard)) for shard in self.shards]
            return _shuffled(shards, f"{self.seed}")
        whole = self._whole(self.held_out)
        with open_regular(whole.path) as file:
            self._expect(whole.path, "lines", self.held_out_lines, sum(1 for _ in file))
        return [whole]

    def read(self, part: Extent) -> Document:
        document = super().read(part)
        if part.title == os.path.basename(self.held_out):
            return document
        sentences = _shuffled(io.BytesIO(document.data[:]).readlines(), f"{self.seed}:{part.title}")
        return document._replace(data=b"".join(sentences))

    def count(self, split: str) -> int:
        return len(self.shards) if split == "train" else 1

    def description(self, split: str) -> dict[str, Any]:
        description = super().description(split)
        seed = description.pop("seed")
        return description | ({"seed": seed} if split == "train" else {})


@functools.lru_cache
def _counted(path: str, size: int, time: int) -> tuple[int, int]:
    lines = words = 0
    with open_regular(path) as file:
        for line in file:
            lines += 1
            words += len(line.decode("utf-8", "replace").split())
    return lines, words


TITLE = re.compile(rb" = (?!= )([^\n]*)(?<! =) = \n")


def _articles(path: str) -> list[Extent]:
    """Returns the extent of each article; text before the first title belongs to it."""
    starts: list[tuple[int, str]] = []
    lines: tuple[bytes, bytes] = b"", b""  # the last two
    end = 0
    with open_regular(path) as file:
        for line in itertools.chain(file, [b""]):
            title = TITLE.fullmatch(lines[1])
            if title and not lines[0].strip() and not line.strip():
                starts.append((end - len(lines[1]), title[1].decode("utf-8", "replace")))
            lines = lines[1], line
            end += len(line)
    if not starts:
        raise ValueError(
            f"{path} has no line such as ' = Title = ' to cut articles at: bind the source's "
            "articles = False."
        )
    cuts = [0, *(start for start, _ in starts[1:]), end]
    return [Extent(name, path, *cut) for (_, name), cut in zip(starts, itertools.pairwise(cuts))]


def _shuffled(items: Sequence[Item], key: str) -> list[Item]:
    ranks = [hashlib.sha256(f"{key}:{number}".encode()).digest() for number in range(len(items))]
    return [items[number] for number in sorted(range(len(items)), key=ranks.__getitem__)]
