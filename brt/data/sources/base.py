"""The bases of all sources: what `prepare` asks of where documents come from.

A source gives whole documents in a fixed order. Building one is cheap and opens nothing: files are
opened when documents are asked for. Sources that yield bytes leave `tokens` to the vocabulary; a
source may also make tokens itself.
"""

import abc
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from brt.data.vocabularies.base import Vocabulary
from brt.storage.file_parts import FileBytes


class Document(NamedTuple):
    """One document, whole.

    title: names it in messages, and in the store.
    data: its bytes, or a file that is read part by part.
    tokens: its token ids, integers (tokens,), where the source makes tokens itself.
    weights: float32 (tokens,), the weight of each token in the loss; None for 1 each.
    annotation: what is to be told of the document, as JSON; `brt/data/sources/labelled.py` says
        what is in it. None where there is nothing but its text.
    """

    title: str
    data: bytes | FileBytes = b""
    tokens: np.ndarray | None = None
    weights: np.ndarray | None = None
    annotation: dict[str, Any] | None = None


class Source(abc.ABC):
    """Gives the documents of each split. It can be pickled until it is iterated.

    Attributes:
        vocabulary: of the tokens, where the source makes tokens itself; else None, and the corpus
            says how documents are encoded.
        listed: whether `parts`, `read` and `files` give the documents one by one, so that several
            processes can read them. `FileSource` describes the three.
        checks_content: whether `parts` reads whole files and refuses others than the published
            ones. Later changes of such files are not looked for.
        input_length: tokens a model reads of a sample, where all documents are samples of one
            length; else None.
    """

    vocabulary: Vocabulary | None = None
    listed: bool = False
    checks_content: bool = False
    input_length: int | None = None

    @abc.abstractmethod
    def documents(self, split: str) -> Iterator[Document]:
        """Yields the documents of a split, in the same order every time."""

    @abc.abstractmethod
    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents of a split, as JSON. Reads no file."""

    def count(self, split: str) -> int | None:
        """Returns the number of documents of a split, None where it is not known beforehand."""
        return None

    def parts(self, split: str) -> list:
        """Lists the documents of a split; see `FileSource`."""
        raise NotImplementedError(f"{type(self).__name__} does not list its documents.")

    def read(self, part: Any) -> Document:
        """Reads one document of the list; see `FileSource`."""
        raise NotImplementedError(f"{type(self).__name__} does not list its documents.")

    def files(self, part: Any) -> list[str]:
        """Returns the files of one document of the list; see `FileSource`."""
        raise NotImplementedError(f"{type(self).__name__} does not list its documents.")

    def part_bytes(self, part: Any) -> int | None:
        """Returns how many bytes a document of the list is of a file; None for whole files."""
        return None


class FileSource(Source):
    """A source that lists its documents without reading them, so that several processes can.

    A part stands for one document: it can be pickled, takes little memory, and its repr says all
    that it does.
    """

    listed = True

    def documents(self, split: str) -> Iterator[Document]:
        """Yields the split's `Document`s; its files are checked before the first one."""
        return map(self.read, self.parts(split))

    @abc.abstractmethod
    def parts(self, split: str) -> list:
        """Lists a part for each document, in order. What is checked beforehand is checked here."""

    @abc.abstractmethod
    def read(self, part: Any) -> Document:
        """Reads the document of a part."""

    @abc.abstractmethod
    def files(self, part: Any) -> list[str]:
        """Returns the files that the document of a part is read from."""


def check_source(source: Any, binding: str) -> None:
    """Refuses what is no `Source`.

    Args:
        source: what is bound.
        binding: the name it is bound by, for the message.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(source, Source):
        raise ValueError(
            f"{binding} = {source!r} is no source: bind it to one, with its brackets, such as "
            "@TextFiles(); a class of your own derives from brt.data.sources.base.Source."
        )


def check_known_split(source: Source, split: str, known: Iterable[str]) -> None:
    """Refuses a split that a source does not have.

    Raises:
        ValueError: naming the source and the splits it has.
    """
    if split not in known:
        raise ValueError(
            f"{type(source).__name__} has no split {split!r}: ask for one of {', '.join(known)}."
        )


def absolute(path: str) -> str:
    """Returns an absolute path, with `~` and environment variables replaced."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))
