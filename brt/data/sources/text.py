"""The source of `--text=PATH`: text in any form."""

import functools
import glob
import os
from dataclasses import dataclass
from typing import Any

from brt.checks import Name, configurable
from brt.data.sources.base import Document, FileSource, Source
from brt.data.sources.by_position import SplitByPosition
from brt.data.sources.files import TextFiles
from brt.data.sources.rows import (
    NAMED,
    JsonLines,
    Parquet,
    RowSource,
    SavedDataset,
    listed,
    named_after,
)
from brt.host.progress import say

ROWS: tuple[type[RowSource], ...] = (SavedDataset, Parquet, JsonLines)
EXAMPLES = ("train", "validation", "valid", "test", "*")
"""Splits of which the first that has files tells their kind."""


@dataclass(eq=False)
class _NamedTextFiles(TextFiles):
    folder: str = ""

    def parts(self, split: str) -> list[str]:
        files = named_after(split, super().parts("train"), self.folder)
        if not files:
            raise FileNotFoundError(
                f"Text.path = {self.folder!r} (--text) has no {self.suffix} file named after "
                f"split {split!r}, only after others: name one so, or leave it out of --splits."
            )
        return files


@configurable
@dataclass(eq=False)
class Text(FileSource):
    """Documents of a file or folder: plain text, JSON lines, Parquet, or a saved data set.

    Splits are `{split}` in the path, or files named after train and another split (`train/` and
    `test/`, `train.jsonl` and `valid.jsonl`); without either, the first 90 %, the next 5 % and the
    last 5 % (`SplitByPosition`).

    Args:
        path: of a file, or of a folder with any subfolders; on disk or in a bucket.
        text_key: key (column) of the text, in JSON lines and tables.
        skip_empty: skips empty files and rows, which are otherwise an error.
    """

    path: Name
    text_key: str = "text"
    suffix: str = ".txt"
    skip_empty: bool = False

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        if not self.skip_empty:
            del settings["skip_empty"]  # as in stores of earlier versions
        return settings

    def parts(self, split: str) -> list:
        source, names = self._divided
        return source.parts(names.get(split, split))

    def read(self, part: Any) -> Document:
        return self._source.read(part)

    def files(self, part: Any) -> list[str]:
        return self._source.files(part)

    def part_bytes(self, part: Any) -> int | None:
        return self._source.part_bytes(part)

    def split_files(self, split: str) -> list[str] | None:
        source, names = self._divided
        return source.split_files(names.get(split, split))

    @property
    def _source(self) -> Source:
        return self._divided[0]

    @functools.cached_property
    def _divided(self) -> tuple[Source, dict[str, str]]:
        is_divided = "{split}" in self.path
        paths = (self.path.replace("{split}", split) for split in EXAMPLES)
        listings = (listed(path, ("",)) for path in paths)
        folder, files = next((found for found in listings if found[1]), ("", []))
        if not files:
            raise FileNotFoundError(
                f"Text.path = {self.path!r} (--text) leads to no file: name a file or a folder."
            )
        inside = [file.removeprefix(folder).lstrip("/") for file in files]
        texts, notes = (
            sum(file.endswith(ending) for file in inside) for ending in (self.suffix, ".json")
        )
        # Fewer .json files than texts describe the texts.
        rows_in = [file for file in inside if notes >= texts or not file.endswith(".json")]
        kind = next((k for k in ROWS if any(f.endswith(k.suffixes) for f in rows_in)), None)
        if folder and kind is None and not texts:
            raise FileNotFoundError(
                f"Text.path = {self.path!r} (--text) has no {self.suffix} files and no rows to "
                f"read, but {inside[0]}: decompress such files, or bind Text.suffix to the ending "
                "of plain text."
            )
        endings = kind.suffixes if kind else (self.suffix,)
        read = [file for file in inside if file.endswith(endings)]
        found = {matched[1] for matched in map(NAMED.search, read) if matched}
        named = bool(folder) and not is_divided and "train" in found and len(found) > 1
        names = {"validation": "valid"} if named and "validation" not in found else {}
        if named:
            read = [file for file in read if NAMED.search(file)]
        known = self.suffix, *(kind or JsonLines).suffixes
        if left := sorted({f for f in inside if f.endswith(known)} - {*read}) if folder else []:
            say(f"{self.path} has {len(left):,} files that are not read, such as {left[0]}.")
        pattern = os.path.join(glob.escape(self.path), f"**/*{self.suffix}")
        source: FileSource
        if kind is not None:
            rows = source = kind(self.path, self.text_key, skip_empty=self.skip_empty)
            rows.by_name = named
        elif named:
            source = _NamedTextFiles(pattern, self.skip_empty, self.suffix, folder)
        else:
            path = pattern if folder else self.path
            source = TextFiles(path, self.skip_empty, self.suffix)
        source.binding = "Text"
        if is_divided:
            return source, {}
        if named:
            say(f"{self.path} is divided by its names of splits: {', '.join(sorted(found))}.")
            return source, names
        say(f"{self.path} is cut into train (90 %), validation (5 %) and test (5 %).")
        return SplitByPosition(source), {}
