"""Sources of files: folders of text, and trees of source code or LaTeX."""

import collections
import hashlib
import itertools
import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from absl import logging

from brt.checks import Name, Range, configurable
from brt.data.sources.base import Document, FileSource, absolute, check_known_split, matching
from brt.data.sources.plain_text import HEAD, NotPlainText, check_plain_text
from brt.storage.file_parts import FileBytes
from brt.storage.paths import RemotePath, is_remote
from brt.storage.regular_files import check_regular

WHOLE = 2**22
"""Larger files are read in parts."""
CHECKED_FIRST = 1000
"""Files checked for plain text before the first is read."""
AGAIN = "Run the same command again when nobody writes to it any more."
EXCLUDED = ("site-packages", "__pycache__", "test", "tests", "idlelib", "turtledemo")
HELD_OUT = Range(
    "a number above 0 and below 0.5, the share of test and of validation", 1e-9, 0.5 - 1e-9
)


@configurable
@dataclass(eq=False)
class TextFiles(FileSource):
    """One document per file of plain text, its title the name without the suffix.

    Args:
        path: a folder, a file, or a pattern such as `books/**/*.md`, on a disk or in a bucket, with
            `{split}` for the name of the split; without it all splits are equal.
        suffix: of the files of a folder that are read; hidden files are not.
    """

    path: Name
    skip_empty: bool = False
    suffix: str = ".txt"

    def parts(self, split: str) -> list[str]:
        if "{split}" not in self.path and split != "train":
            warning = f"TextFiles.path = {self.path!r} has no {{split}}: its splits are equal."
            logging.log_first_n(logging.WARNING, warning, 1)
        path = self.path.replace("{split}", split)
        sizes = self._objects(RemotePath(path)) if is_remote(path) else self._on_disk(path)
        empty = [path for path, size in sizes.items() if size == 0]
        if empty and not self.skip_empty:
            raise ValueError(
                f"TextFiles found {len(empty)} empty files, such as {empty[0]}: remove them, or "
                f"bind {self.binding}.skip_empty = True."
            )
        full = [path for path, size in sizes.items() if size > 0]
        _check_first(full, "TextFiles")
        return full

    def read(self, part: str) -> Document:
        return Document(os.path.splitext(os.path.basename(part))[0], _read(part, "TextFiles"))

    def files(self, part: str) -> list[str]:
        return [part]

    def _objects(self, path: RemotePath) -> dict[str, int]:
        if path.is_file():
            return {str(path): path.size()}
        try:
            stamps = path.stamps()
        except FileNotFoundError:
            stamps = {}
        is_pattern = "*" in str(path)
        sizes = {
            name if is_pattern else str(path / name): size
            for name, (size, _) in sorted(stamps.items())
            if is_pattern or (name.endswith(self.suffix) and not name.startswith("."))
        }
        if not sizes:
            raise self._nothing(str(path), [*stamps])
        return sizes

    def _on_disk(self, path: str) -> dict[str, int]:
        path = absolute(path)
        files = []
        if os.path.isdir(path):
            files = sorted(entry.path for entry in _entries(path) if not entry.is_dir())
            paths = [file for file in files if file.endswith(self.suffix)]
        else:
            paths = [path for path in matching(path) if not os.path.isdir(path)]
        if not paths:
            raise self._nothing(path, files)
        sizes = {path: os.stat(path).st_size for path in paths}
        for path in sizes:
            if sizes[path] == 0:
                check_regular(path)  # FIFOs and devices have no size either
        return sizes

    def _nothing(self, path: str, others: list[str]) -> FileNotFoundError:
        if any(os.path.basename(p) in ("dataset_info.json", "dataset_dict.json") for p in others):
            raise NotPlainText(
                f"{path} was written by `save_to_disk` of datasets, and TextFiles reads plain "
                "text: read it with @Text() or @SavedDataset()."
            )
        advice = f"a file, a pattern such as books/**/*.md, or a folder of {self.suffix} files."
        suffixes = collections.Counter(filter(None, (os.path.splitext(p)[1] for p in others)))
        for suffix, count in suffixes.most_common(1):
            _check_first([file for file in others if file.endswith(suffix)], "TextFiles")
            advice += f' {self.binding}.suffix = "{suffix}" reads its {count:,} {suffix} files.'
        return FileNotFoundError(
            f"{self.binding}.path = {self.path!r} leads to no files at {path}: bind it to {advice}"
        )


@configurable
@dataclass(eq=False)
class SourceTree(FileSource):
    """One document per entry at the top of a tree: a package, a repository, an article.

    A document joins the files of an entry in the order of their paths; links are not followed. If
    `path` has no `{split}`, sha256("split:" + title) orders the entries: the first share is test,
    the next validation, the rest train.

    Args:
        path: the tree; `stdlib` is the standard library of Python.
        suffixes: of source files.
        exclude: names of files and folders to skip at any depth, as hidden ones.
        held_out: share of the entries in test, and again in validation, at least one each.
        header: line before each file, with its path for `{path}`; "" for none.
    """

    path: Name
    suffixes: tuple[str, ...] = (".py",)
    exclude: tuple[str, ...] = EXCLUDED
    held_out: Annotated[float, HELD_OUT] = 0.05
    header: str = "# file: {path}"

    def parts(self, split: str) -> list[tuple[str, str, list[str]]]:
        root, trees = self._split(split)
        _check_first(itertools.chain.from_iterable(trees.values()), "SourceTree")
        return [(title, root, files) for title, files in trees.items()]

    def read(self, part: tuple[str, str, list[str]]) -> Document:
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
        return part[2]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "exclude": sorted(self.exclude)}

    def _split(self, split: str) -> tuple[str, dict[str, list[str]]]:
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
        ranked = sorted(trees, key=lambda t: hashlib.sha256(os.fsencode(f"split:{t}")).hexdigest())
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
        elif entry.name.endswith(tuple(self.suffixes)):
            yield entry.path


def _entries(folder):
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No folder is at {folder}: bind the source's path to one that exists."
        ) from None


def _check_first(paths: Iterable[str], source: str) -> None:
    for number, path in enumerate(itertools.islice(paths, CHECKED_FIRST)):
        if not is_remote(path):
            check_plain_text(FileBytes(path, AGAIN), path, source)
        elif number == 0:
            with RemotePath(path).open("rb") as file:
                check_plain_text(file.read(HEAD), path, source)


def _read(path: str, source: str) -> bytes | FileBytes:
    data = RemotePath(path).read_bytes() if is_remote(path) else FileBytes(path, AGAIN)
    check_plain_text(data, path, source)
    return data if len(data) > WHOLE else data[:]
