"""Sources of files: folders of text; trees of source code or of LaTeX."""

import collections
import glob
import hashlib
import itertools
import os
import sysconfig
from collections.abc import Iterable

import gin
from absl import logging

from brt.checks import Name, Share, configurable
from brt.data.sources.base import Document, FileSource, absolute, check_known_split
from brt.data.sources.plain_text import HEAD, NotPlainText, check_plain_text
from brt.storage.file_parts import FileBytes
from brt.storage.paths import RemotePath, is_remote

WHOLE = 2**22
"""A file of more bytes is read part by part."""
CHECKED_FIRST = 1000
"""So many files are checked for plain text before the first is read; all are when they are read."""


@configurable
class TextFiles(FileSource):
    """One document a file.

    Args:
        path: a folder, whose files with the given suffix are read in order of their names; or one
            file, or a pattern such as `books/**/*.md`, whose matches are read in order of their
            paths. `{split}` in it stands for the split's name; without it every split has the
            same documents. `~` and environment variables are expanded. In a bucket it is a folder,
            an object or a pattern with `*`: `gs://bucket/books/{split}`. A file that exists is
            read whatever characters its name has.
        skip_empty: leave empty files out. Without it an empty file is an error.
        suffix: which files of a folder are read; hidden ones never are.

    Titles are file names without their last suffix.

    Raises:
        FileNotFoundError, PermissionError, ValueError: from `documents`, before the first one, for
            a path that holds no file, that may not be read, or that holds empty files.
        brt.data.sources.plain_text.NotPlainText: from `documents`, for a file that is compressed,
            a table, JSON lines, UTF-16 or binary.
    """

    def __init__(self, path: Name = gin.REQUIRED, skip_empty: bool = False, suffix: str = ".txt"):
        self.path = path
        self.skip_empty = skip_empty
        self.suffix = suffix

    def parts(self, split: str) -> list[str]:
        """Lists the paths of the files, which are checked: none is missing, unreadable or empty."""
        if split != "train" and "{split}" not in self.path:
            logging.warning(
                "TextFiles.path = %r has no {split}: %r reads the same files as every other split.",
                self.path,
                split,
            )
        return self._files(split)

    def read(self, part: str) -> Document:
        """Reads one file; one of more than `WHOLE` bytes part by part."""
        return Document(os.path.splitext(os.path.basename(part))[0], _read(part, "TextFiles"))

    def files(self, part: str) -> list[str]:
        """Returns the path itself."""
        return [part]

    def description(self, split: str) -> dict:
        """Returns the settings, `path` as it was given: the same on machines with other homes."""
        return {
            "source": "TextFiles",
            "split": split,
            "path": self.path,
            "suffix": self.suffix,
            "skip_empty": self.skip_empty,
        }

    def count(self, split: str) -> int:
        """Returns the number of files that `documents` would read."""
        return len(self._files(split))

    def _files(self, split):
        path = self.path.replace("{split}", split)
        sizes = self._objects(RemotePath(path)) if is_remote(path) else self._on_disk(path)
        empty = [path for path, size in sizes.items() if size == 0]
        if empty and not self.skip_empty:
            more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
            raise ValueError(
                f"TextFiles found empty files, {', '.join(empty[:5])}{more}: remove them, or bind "
                "TextFiles.skip_empty = True."
            )
        full = [path for path, size in sizes.items() if size > 0]
        _check_first(full, "TextFiles")
        return full

    def _objects(self, path: RemotePath) -> dict[str, int]:
        """The sizes of the objects that a path in a bucket leads to, in order of their paths."""
        if path.is_file():
            return {str(path): path.size()}
        try:
            stamps = path.stamps()
        except FileNotFoundError:
            stamps = {}
        if "*" in str(path):
            found = {name: size for name, (size, _) in stamps.items()}
        else:
            found = {
                str(path / name): size
                for name, (size, _) in stamps.items()
                if name.endswith(self.suffix) and not name.startswith(".")
            }
        if not found:
            raise FileNotFoundError(
                f"TextFiles.path = {self.path!r} leads to no objects, {self.suffix} ones in a "
                "folder: bind it to a folder with some, or TextFiles.suffix to how their names end."
            )
        return dict(sorted(found.items()))

    def _on_disk(self, path: str) -> dict[str, int]:
        """The sizes of the files that a path leads to, in order of their paths."""
        path = absolute(path)
        if os.path.isdir(path):
            entries = [e for e in _entries(path) if not e.is_dir()]
            paths = [e.path for e in entries if e.name.endswith(self.suffix)]
            if not paths:
                raise FileNotFoundError(
                    f"TextFiles.path = {self.path!r} leads to no {self.suffix} files in folder "
                    f"{path}: {self._advice(path, sorted(e.path for e in entries))}"
                )
        elif os.path.lexists(path):
            paths = [path]
        else:
            paths = [p for p in glob.glob(path, recursive=True) if not os.path.isdir(p)]
            if not paths:
                raise FileNotFoundError(
                    f"TextFiles.path = {self.path!r} leads to no files at {path}: bind it to a "
                    "folder, a file, or a pattern such as books/**/*.md."
                )
        paths = sorted(paths)
        sizes = {}
        for path in paths:
            try:
                sizes[path] = os.stat(path).st_size
            except FileNotFoundError:
                raise FileNotFoundError(
                    f"{path} is a link to a file that is gone: remove the link."
                ) from None
            if not os.access(path, os.R_OK):
                raise _may_not_read(path)
        return sizes

    def _advice(self, folder: str, paths: list[str]) -> str:
        """Says what to bind where a folder has no files of the suffix, only those of `paths`.

        Raises:
            NotPlainText: what it holds is no text.
        """
        if any(os.path.basename(p) in ("dataset_info.json", "dataset_dict.json") for p in paths):
            raise NotPlainText(
                f"{folder} was written by `save_to_disk` of datasets, and TextFiles reads plain "
                "text: write the text of each row to a text file of its own, or write a source of "
                "your own (docs/data.md)."
            )
        suffixes = collections.Counter(os.path.splitext(path)[1] for path in paths)
        suffixes.pop("", None)
        if not suffixes:
            return "bind it to a folder with some, or to a pattern such as books/**/*.txt."
        suffix, count = suffixes.most_common(1)[0]
        _check_first([path for path in paths if path.endswith(suffix)], "TextFiles")
        return f'bind TextFiles.suffix = "{suffix}" to read its {count:,} {suffix} files.'


@configurable
class SourceTree(FileSource):
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
        path: Name = gin.REQUIRED,
        suffixes: tuple[str, ...] = (".py",),
        exclude: tuple[str, ...] = (
            "site-packages",
            "__pycache__",
            "test",
            "tests",
            "idlelib",
            "turtledemo",
        ),
        held_out: Share = 0.05,
        header: str = "# file: {path}",
    ):
        if not 0 < held_out < 0.5:
            raise ValueError(
                f"SourceTree.held_out = {held_out} must be above 0 and below 0.5: test and "
                "validation each take that share."
            )
        self.path = path
        self.suffixes = tuple(suffixes)
        self.exclude = frozenset(exclude)
        self.held_out = held_out
        self.header = header

    def parts(self, split: str) -> list[tuple[str, str, list[str]]]:
        """Lists the title, the tree's root and the paths of the files of each entry, by title."""
        root, trees = self._split(split)
        _check_first(itertools.chain.from_iterable(trees.values()), "SourceTree")
        return [(title, root, files) for title, files in trees.items()]

    def read(self, part: tuple[str, str, list[str]]) -> Document:
        """Reads the files of one entry, each after its header."""
        title, root, files = part
        pieces: list[bytes] = []
        for path in files:
            if pieces and pieces[-1][-1:] != b"\n":
                pieces.append(b"\n")
            if self.header:
                relative = os.path.relpath(path, root).replace(os.sep, "/")
                pieces.append(os.fsencode(self.header.replace("{path}", relative)) + b"\n")
            pieces.append(_read(path, "SourceTree")[:])
        return Document(title, b"".join(pieces))

    def files(self, part: tuple[str, str, list[str]]) -> list[str]:
        """Returns the paths of the entry's files."""
        return part[2]

    def description(self, split: str) -> dict:
        """Returns the settings, with `path` as it was given."""
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
        """Returns the number of entries in the split."""
        return len(self._split(split)[1])

    def _split(self, split):
        """The tree's root and, for each title of the split, the paths of its files."""
        path = sysconfig.get_path("stdlib") if self.path == "stdlib" else self.path
        root = absolute(path.replace("{split}", split))
        trees = {}
        for entry in _entries(root):
            files = sorted(self._source_files(entry))
            if any(os.path.getsize(file) for file in files):
                trees[entry.name] = files
        if "{split}" in path:
            if not trees:
                raise ValueError(
                    f"{root} has no entry with source: bind SourceTree.path to a tree that does, "
                    f"or SourceTree.suffixes (now {self.suffixes}) to its files."
                )
            return root, dict(sorted(trees.items()))
        ranked = sorted(trees, key=lambda t: hashlib.sha256(f"split:{t}".encode()).hexdigest())
        share = max(1, round(self.held_out * len(ranked)))
        if len(ranked) < 2 * share + 1:
            raise ValueError(
                f"{root} has {len(ranked)} entries with source, too few for train, validation and "
                "test: bind SourceTree.path to a larger tree, or SourceTree.suffixes to its files."
            )
        parts = {
            "test": ranked[:share],
            "validation": ranked[share : 2 * share],
            "train": ranked[2 * share :],
        }
        check_known_split(self, split, parts)
        return root, {title: trees[title] for title in sorted(parts[split])}

    def _source_files(self, entry):
        if entry.name.startswith(".") or entry.name in self.exclude or entry.is_symlink():
            return
        if entry.is_dir():
            for inner in _entries(entry.path):
                yield from self._source_files(inner)
        elif entry.name.endswith(self.suffixes):
            yield entry.path


def _entries(folder):
    """Entries of a folder that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No folder is at {folder}: bind the source's path to one that exists."
        ) from None
    except NotADirectoryError:
        raise NotADirectoryError(
            f"{folder} is not a folder: bind the source's path to one."
        ) from None
    except PermissionError:
        raise _may_not_read(folder) from None


def _check_first(paths: Iterable[str], source: str) -> None:
    """Refuses a file among the first ones that is no plain text; of a bucket only the first."""
    for number, path in enumerate(itertools.islice(paths, CHECKED_FIRST)):
        if not is_remote(path):
            check_plain_text(_opened(path), path, source)
        elif number == 0:
            with RemotePath(path).open("rb") as file:
                check_plain_text(file.read(HEAD), path, source)


def _read(path: str, source: str) -> bytes | FileBytes:
    """Returns the bytes of a file of plain text."""
    data = RemotePath(path).read_bytes() if is_remote(path) else _opened(path)
    check_plain_text(data, path, source)
    return data if len(data) > WHOLE else data[:]


def _opened(path: str) -> FileBytes:
    try:
        return FileBytes(path, "Run the same command again when nobody writes to it any more.")
    except PermissionError:
        raise _may_not_read(path) from None


def _may_not_read(path):
    return PermissionError(f"{path} may not be read: change its mode, or run as its owner.")
