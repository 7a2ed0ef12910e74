"""Where documents come from: folders of text files; trees of source code or of LaTeX.

A source gives whole documents in a fixed order. Building one is cheap and opens nothing; files
are looked at when documents are asked for. Sources that yield bytes leave `tokens` to the
vocabulary; a source may also make tokens itself.

The readers of published corpora are in `published_corpora`, those of TensorFlow Datasets and
seqio in `tfds_source` and `seqio_source`, and sources that take a share of another source in
`selections`.
"""

import glob
import hashlib
import mmap
import os
import sysconfig
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import gin
import numpy as np
from absl import logging

MAPPED = 2**27
"""A file of more bytes is not read but mapped into memory."""


class Document(NamedTuple):
    """One document, whole.

    title: names it in messages, and in the store.
    data: its bytes, or a file mapped into memory.
    tokens: its token ids, integers (tokens,), where the source makes tokens itself.
    weights: float32 (tokens,), what each token counts for in the loss; None means 1 each.
    """

    title: str
    data: bytes = b""
    tokens: np.ndarray | None = None
    weights: np.ndarray | None = None


class Source(Protocol):
    """What the rest of brt asks of a source. It can be pickled until it is iterated.

    A source of files may also have three methods, which let other processes read its documents:

        parts(split) -> list        a handle of each document, in order; handles can be pickled,
                                    take little memory, and their repr says all that they do
        read(part) -> Document      the document of a handle
        files(part) -> list[str]    the files it is read from; a handle of some bytes of a file
                                    has `start` and `stop`, numbers of bytes

    `documents(split)` then gives `map(read, parts(split))`. What is checked before the first
    document is checked by `parts`.
    """

    def documents(self, split: str) -> Iterator[Document]:
        """The documents of a split, in the same order every time."""

    def description(self, split: str) -> dict:
        """What identifies the documents of a split: the settings, fit for JSON. Reads no file."""

    def count(self, split: str) -> int | None:
        """Number of documents of a split, None where it is not known beforehand."""


@gin.configurable
class TextFiles:
    """One document a file.

    Args:
        path: a folder, whose files with the given suffix are read in order of their names; or one
            file, or a pattern such as `books/**/*.md`, whose matches are read in order of their
            paths. `{split}` in it stands for the split's name; without it every split has the
            same documents. `~` and environment variables are expanded.
        skip_empty: leave empty files out. Without it an empty file is an error.
        suffix: which files of a folder are read; hidden ones never are.

    Titles are file names without their last suffix.

    Raises:
        FileNotFoundError, PermissionError, ValueError: from `documents`, before the first one, for
            a path that holds no file, that may not be read, or that holds empty files.
    """

    def __init__(self, path: str = gin.REQUIRED, skip_empty: bool = False, suffix: str = ".txt"):
        self.path = path
        self.skip_empty = skip_empty
        self.suffix = suffix

    def documents(self, split: str) -> Iterator[Document]:
        """Yields a `Document` a file; all files are looked at before the first one."""
        return map(self.read, self.parts(split))

    def parts(self, split: str) -> list[str]:
        """The paths of the files, all of which are looked at."""
        if split != "train" and "{split}" not in self.path:
            logging.warning(
                "TextFiles.path = %r has no {split}: %r reads the same files as every other split",
                self.path,
                split,
            )
        return self._files(split)

    def read(self, part: str) -> Document:
        """The document of one path; a file of more than `MAPPED` bytes is mapped into memory."""
        return Document(os.path.splitext(os.path.basename(part))[0], _read(part))

    def files(self, part: str) -> list[str]:
        """The path itself."""
        return [part]

    def description(self, split: str) -> dict:
        """The settings, with `path` as it was given: the same on machines with other homes."""
        return {
            "source": "TextFiles",
            "split": split,
            "path": self.path,
            "suffix": self.suffix,
            "skip_empty": self.skip_empty,
        }

    def count(self, split: str) -> int:
        """Number of files that `documents` would read."""
        return len(self._files(split))

    def _files(self, split):
        path = expanded(self.path.replace("{split}", split))
        if os.path.isdir(path):
            what = f"{self.suffix} files in folder {path}"
            paths = [e.path for e in _entries(path) if e.name.endswith(self.suffix)]
        else:
            what = f"files at {path}"
            paths = glob.glob(path, recursive=True)
        paths = sorted(p for p in paths if not os.path.isdir(p))
        if not paths:
            raise FileNotFoundError(
                f"no {what}; bind TextFiles.path (now {self.path!r}) to a folder that holds some, "
                "or TextFiles.suffix to how their names end"
            )
        sizes = []
        for path in paths:
            try:
                sizes.append(os.stat(path).st_size)
            except FileNotFoundError:
                raise FileNotFoundError(
                    f"{path} is a link to a file that is gone; remove it"
                ) from None
            if not os.access(path, os.R_OK):
                raise _may_not_read(path)
        empty = [p for p, size in zip(paths, sizes) if size == 0]
        if empty and not self.skip_empty:
            more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
            raise ValueError(
                f"empty files: {', '.join(empty[:5])}{more}; remove them, or bind "
                "TextFiles.skip_empty = True"
            )
        return [p for p, size in zip(paths, sizes) if size > 0]


@gin.configurable
class SourceTree:
    """One document for each entry at the top of a tree: a package, a repository, an article.

    A document is the entry's files in order of their paths, as they are, each after a header
    line. An entry that is itself a file is a document of one file. Symbolic links are not
    followed. Entries without a byte of source are left out.

    Where `path` has no `{split}`, the splits are shares of the entries ordered by
    sha256("split:" + title): the first for test, the next for validation, the rest for train. An
    entry that comes or goes moves few others.

    Args:
        path: the tree; `stdlib` is the standard library of the running Python. `{split}` in it
            stands for the split's name, for trees that are divided already. `~` and environment
            variables are expanded.
        suffixes: which files are source.
        exclude: names of files and folders left out at any depth; hidden ones always are.
        held_out: share of the entries in test, and again in validation; at least one each. Of no
            effect where `path` has `{split}`.
        header: the line before each file, `{path}` in it the file's path in the tree; "" for none.

    Raises:
        ValueError: `held_out` is not between 0 and 0.5; from `documents`, a split that is none of
            the three, or too few entries.
        FileNotFoundError: from `documents`, when the tree is missing.
    """

    def __init__(
        self,
        path: str = gin.REQUIRED,
        suffixes: tuple[str, ...] = (".py",),
        exclude: tuple[str, ...] = (
            "site-packages",
            "__pycache__",
            "test",
            "tests",
            "idlelib",
            "turtledemo",
        ),
        held_out: float = 0.05,
        header: str = "# file: {path}",
    ):
        if not 0 < held_out < 0.5:
            raise ValueError(
                f"SourceTree.held_out = {held_out} must be above 0 and below 0.5: test and "
                "validation each take that share"
            )
        self.path = path
        self.suffixes = tuple(suffixes)
        self.exclude = frozenset(exclude)
        self.held_out = held_out
        self.header = header

    def documents(self, split: str) -> Iterator[Document]:
        """Yields a `Document` an entry, in order of their titles."""
        return map(self.read, self.parts(split))

    def parts(self, split: str) -> list[tuple]:
        """The title, the tree's root and the paths of the files of each entry."""
        root, trees = self._split(split)
        return [(title, root, files) for title, files in trees.items()]

    def read(self, part: tuple) -> Document:
        """The document of one entry."""
        title, root, files = part
        pieces = []
        for path in files:
            if pieces and pieces[-1][-1:] != b"\n":
                pieces.append(b"\n")
            if self.header:
                relative = os.path.relpath(path, root).replace(os.sep, "/")
                pieces.append(os.fsencode(self.header.replace("{path}", relative)) + b"\n")
            pieces.append(_read(path))
        return Document(title, b"".join(pieces))

    def files(self, part: tuple) -> list[str]:
        """The paths of the entry's files."""
        return part[2]

    def description(self, split: str) -> dict:
        """The settings, with `path` as it was given."""
        return {
            "source": "SourceTree",
            "split": split,
            "path": self.path,
            "suffixes": list(self.suffixes),
            "exclude": sorted(self.exclude),
            "held_out": self.held_out,
            "header": self.header,
        }

    def count(self, split: str) -> int:
        """Number of entries in the split."""
        return len(self._split(split)[1])

    def _split(self, split):
        """The tree's root and, for each title of the split, the paths of its files."""
        path = sysconfig.get_path("stdlib") if self.path == "stdlib" else self.path
        root = expanded(path.replace("{split}", split))
        trees = {}
        for entry in _entries(root):
            files = sorted(self._source_files(entry))
            if any(os.path.getsize(file) for file in files):
                trees[entry.name] = files
        if "{split}" in path:
            if not trees:
                raise ValueError(
                    f"{root} has no entry with source; bind SourceTree.path to a tree that does, "
                    f"or SourceTree.suffixes (now {self.suffixes}) to its files"
                )
            return root, dict(sorted(trees.items()))
        ranked = sorted(trees, key=lambda t: hashlib.sha256(f"split:{t}".encode()).hexdigest())
        share = max(1, round(self.held_out * len(ranked)))
        if len(ranked) < 2 * share + 1:
            raise ValueError(
                f"{root} has {len(ranked)} entries with source, too few for train, validation and "
                "test; bind SourceTree.path to a larger tree, or SourceTree.suffixes to its files"
            )
        parts = {
            "test": ranked[:share],
            "validation": ranked[share : 2 * share],
            "train": ranked[2 * share :],
        }
        if split not in parts:
            raise ValueError(
                f"SourceTree has no split {split!r}; it has train, validation and test"
            )
        return root, {title: trees[title] for title in sorted(parts[split])}

    def _source_files(self, entry):
        if entry.name.startswith(".") or entry.name in self.exclude or entry.is_symlink():
            return
        if entry.is_dir():
            for inner in _entries(entry.path):
                yield from self._source_files(inner)
        elif entry.name.endswith(self.suffixes):
            yield entry.path


def expanded(path: str) -> str:
    """An absolute path, with `~` and environment variables expanded."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))


def _entries(folder):
    """Entries of a folder that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no folder {folder}; bind the source's path to one that exists"
        ) from None
    except NotADirectoryError:
        raise NotADirectoryError(
            f"{folder} is not a folder; bind the source's path to one"
        ) from None
    except PermissionError:
        raise _may_not_read(folder) from None


def _read(path):
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MAPPED:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return file.read()
    except PermissionError:
        raise _may_not_read(path) from None


def _may_not_read(path):
    return PermissionError(f"no permission to read {path}; change its mode, or run as its owner")
