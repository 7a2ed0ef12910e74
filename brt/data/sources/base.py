"""Base classes of all sources."""

import abc
import dataclasses
import functools
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.data.vocabularies.base import Vocabulary, expanded
from brt.storage.file_parts import FileBytes


class Document(NamedTuple):
    """One whole document.

    title: names it in messages and in the store.
    data: its bytes, or a file that is read in parts.
    tokens: integers (tokens,), if the source and not the vocabulary makes them.
    weights: float32 (tokens,), the weight of each token in the loss; None for 1.
    annotation: JSON, such as a label or answers (`brt.data.sources.labelled`).
    """

    title: str
    data: bytes | FileBytes = b""
    tokens: np.ndarray | None = None
    weights: np.ndarray | None = None
    annotation: dict[str, Any] | None = None


class Source(abc.ABC):
    """The documents of each split: a dataclass, whose fields are its settings.

    Attributes:
        vocabulary: of the tokens, if the source makes them; else None.
        classes: names of the classes of labelled documents.
        listed: whether the source is a `FileSource`.
        checks_content: whether `parts` compares whole files with the published ones.
        input_length: tokens that a model reads of a document, if all are samples of one length.
    """

    vocabulary: Vocabulary | str | None = None
    classes: Sequence[str] | None = None
    listed = False
    checks_content = False
    input_length: int | None = None

    @abc.abstractmethod
    def documents(self, split: str) -> Iterator[Document]:
        """Yields the documents of a split, always in the same order."""

    def original_split(self, split: str) -> str:
        return (getattr(self, "splits", None) or {}).get(split, split)

    def settings(self) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "vocabulary"}

    def description(self, split: str) -> dict[str, Any]:
        """Returns a JSON value that determines the documents of a split; reads no file."""
        return {"source": type(self).__name__, "split": split, **self.settings()}

    def count(self, split: str) -> int | None:
        """Returns the number of documents, or None if unknown."""
        return None

    def parts(self, split: str) -> list:
        """Lists the documents of a split, in order, after a check of their files.

        A part is a small, picklable identifier of one document, with a unique repr.
        """
        raise NotImplementedError

    def read(self, part: Any) -> Document:
        raise NotImplementedError

    def files(self, part: Any) -> list[str]:
        raise NotImplementedError

    def part_bytes(self, part: Any) -> int | None:
        """None for whole files."""
        return None

    def split_files(self, split: str) -> list[str] | None:
        """Returns the files of a split if `parts` would read them; else None."""
        return None


class FileSource(Source):
    """A source with `parts`, `read` and `files`, which several processes can read."""

    listed = True

    @functools.cached_property
    def binding(self) -> str:
        """The class whose bindings messages name."""
        return type(self).__name__

    def documents(self, split: str) -> Iterator[Document]:
        return map(self.read, self.parts(split))

    def count(self, split: str) -> int | None:
        return len(self.parts(split))


def check_source(source: Any, binding: str) -> None:
    if not isinstance(source, Source):
        raise ValueError(
            f"{binding} = {source!r} is not a source: bind it to one, with its brackets, such as "
            "@TextFiles(); a class of your own derives from brt.data.sources.base.Source."
        )


def check_known_split(source: Source, split: str, known: Iterable[str]) -> None:
    if split not in known:
        raise ValueError(
            f"{type(source).__name__} has no split {split!r}: ask for one of {', '.join(known)}."
        )


def absolute(path: str) -> str:
    return os.path.abspath(expanded(path))


def matching(pattern: str) -> list[str]:
    """Returns the sorted paths of a glob pattern; `**` follows links, each folder once.

    A path that exists is no pattern, whatever its name.
    """
    if os.path.lexists(pattern):
        return [pattern]
    found: set[str] = set()
    before, *after = re.split(r"(?:(?<=/)|^)\*\*(?:/|$)", pattern, maxsplit=1)
    if not after:
        return sorted(glob.glob(pattern))
    for root in glob.glob(before or os.curdir):
        entered = {os.path.realpath(root)}
        for folder, names, _ in os.walk(root, followlinks=True):
            inside = sorted(os.path.join(folder, name) for name in names if name[0] != ".")
            names.clear()
            for path in sorted(inside, key=os.path.islink):  # links last
                if (real := os.path.realpath(path)) not in entered:
                    entered.add(real)
                    names.append(os.path.basename(path))
            found.update(matching(os.path.join(glob.escape(folder), after[0] or "*")))
    return sorted(found)
