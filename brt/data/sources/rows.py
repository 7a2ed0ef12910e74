"""Sources of rows: JSON lines, Parquet tables and saved data sets of Hugging Face `datasets`."""

import abc
import contextlib
import functools
import gzip
import io
import itertools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, ClassVar, NamedTuple

from brt.checks import Name, configurable, shortened
from brt.data.extras import MissingExtra, extra_library
from brt.data.sources.base import Document, FileSource, absolute, matching
from brt.storage.paths import RemotePath, file_size, is_remote
from brt.storage.regular_files import open_regular

NAMED = re.compile(r"(?:^|/)(train|validation|valid|test)[-._/]")
GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Row(NamedTuple):
    """A row of a file, and its share of the file's bytes."""

    file: str
    number: int
    size: int


@dataclass(eq=False)
class RowSource(FileSource):
    """One document per row, in the order of the files' names and of the rows.

    Args:
        path: a file, a pattern such as `data/*.parquet`, or a folder; on disk or of any scheme that
            fsspec knows, such as `hf://datasets/OWNER/NAME`, with `{split}` for the name of the
            split. Without it, files named after a split (`train.jsonl`, `train/`) are that split;
            other rows are all of the split "train", which `SplitByPosition` divides.
        text_key: key (column) of the text.
        title_key: key of the title; None for titles `<file>-<row>`.
        skip_empty: skips empty texts, which are otherwise an error; reads the files twice.
    """

    suffixes: ClassVar[tuple[str, ...]]
    path: Name
    text_key: str = "text"
    title_key: str | None = None
    skip_empty: bool = False

    def __post_init__(self) -> None:
        self.by_name = True
        """Whether file names decide the splits."""
        self._rows_after: tuple[Row | None, Iterator[dict]] = (None, iter(()))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_rows_after": (None, iter(()))}

    @abc.abstractmethod
    def number_of_rows(self, file: str) -> int: ...

    @abc.abstractmethod
    def rows(self, file: str, first: int) -> Iterator[dict]:
        """Yields the rows of a file from row `first` on, at least their text and title."""

    def parts(self, split: str) -> list[Row]:
        return [row for file in self.split_files(split) for row in self._parts_of(file)]

    def read(self, part: Row) -> Document:
        before, rows = self._rows_after
        # Shards are ranges of rows, so the next row is nearly always in the open file.
        skipped = 0
        if before is None or part.file != before.file or part.number <= before.number:
            rows = self.rows(part.file, part.number)
        else:
            skipped = part.number - before.number - 1
        row = next(itertools.islice(rows, skipped, None), None)
        if row is None:
            raise ValueError(f"{part.file} lost row {part.number}: run the same command again.")
        self._rows_after = part, rows
        text = self._text(row, part.file, part.number)
        if not text:
            raise ValueError(
                f"Row {part.number} of {part.file} has an empty {self.text_key!r}: remove it, or "
                f"bind {self.binding}.skip_empty = True."
            )
        return Document(self._title(row, part), text.encode("utf-8", "surrogatepass"))

    def files(self, part: Row) -> list[str]:
        return [part.file]

    def part_bytes(self, part: Row) -> int:
        return part.size

    def _parts_of(self, file: str) -> Iterator[Row]:
        number = self.number_of_rows(file)
        size = max(file_size(file) // max(number, 1), 1)
        indices: Iterator[int] | range = range(number)
        if self.skip_empty:
            rows = enumerate(self.rows(file, 0))
            indices = (index for index, row in rows if self._text(row, file, index))
        return (Row(file, index, size) for index in indices)

    def _text(self, row: dict, file: str, number: int) -> str:
        text = row.get(self.text_key)
        if text is None and self.text_key in row:  # null
            return ""
        if not isinstance(text, str):
            what = "no" if text is None else f"a {type(text).__name__} at"
            raise ValueError(
                f"Row {number} of {file} has {what} {self.text_key!r}: bind "
                f"{self.binding}.text_key to the key of the text, one of "
                f"{', '.join(map(repr, row))}."
            )
        return text

    def _title(self, row: dict, part: Row) -> str:
        if self.title_key is None:
            return f"{os.path.basename(part.file).partition('.')[0]}-{part.number}"
        if self.title_key not in row:
            raise ValueError(
                f"Row {part.number} of {part.file} has no {self.title_key!r}: bind "
                f"{self.binding}.title_key to one of {', '.join(map(repr, row))}."
            )
        return str(row[self.title_key])

    def split_files(self, split: str) -> list[str]:
        path = self.path.replace("{split}", split)
        folder, files = listed(path, self.suffixes)
        if folder and self.by_name and "{split}" not in self.path:
            of_split = named_after(split, files, folder)
            if of_split or split != "train":
                files = of_split
        elif "{split}" not in self.path and split != "train":
            files = []
        if not files:
            raise FileNotFoundError(
                f"{self.binding}.path = {self.path!r} has no files of split {split!r} that "
                f"end in {', '.join(self.suffixes)}: bind it to a path with {{split}}, or divide "
                "one split by @SplitByPosition(), or leave it out of --splits."
            )
        return files


@configurable
@dataclass(eq=False)
class JsonLines(RowSource):
    """One document per line of `.jsonl` files, also compressed (`.gz`, `.zst`)."""

    suffixes = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")

    def number_of_rows(self, file: str) -> int:
        if is_remote(file):
            return sum(1 for _ in self._lines(file))
        status = os.stat(file)
        return _number_of_lines(file, status.st_size, status.st_mtime_ns)

    def rows(self, file: str, first: int) -> Iterator[dict]:
        for number, line in itertools.islice(enumerate(self._lines(file)), first, None):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"Row {number} of {file} is not JSON ({error}): correct or remove it."
                ) from None
            if not isinstance(row, dict):
                raise ValueError(f"Row {number} of {file} is not a JSON object with keys.")
            yield row

    @staticmethod
    def _lines(file: str) -> Iterator[bytes]:
        with open_regular(file) as raw:
            content = _decompressed(raw)
            try:
                yield from filter(bytes.strip, content)
            except Exception as error:  # each compression has its own errors
                raise ValueError(f"{file} is damaged ({error}): copy it again.") from error


@functools.lru_cache
def _number_of_lines(file: str, size: int, time: int) -> int:
    """Counts once, because a preparation lists its source several times."""
    return sum(1 for _ in JsonLines._lines(file))


@dataclass(eq=False)
class TableSource(RowSource):
    @abc.abstractmethod
    def batches(self, file: IO[bytes], first: int) -> Iterator[tuple[int, Any]]:
        """Yields (number of the first row, record batch), from the one with row `first` on."""

    def rows(self, file: str, first: int) -> Iterator[dict]:
        with open_regular(file) as raw, _explained(file):
            for start, batch in self.batches(raw, first):
                names = [n for n in (self.text_key, self.title_key) if n in batch.schema.names]
                if twice := [name for name in names if batch.schema.names.count(name) > 1]:
                    raise ValueError(
                        f"{file} has several columns {twice[0]!r}: rename all but one, or bind "
                        f"{self.binding}.text_key or .title_key to another column."
                    )
                columns = batch.select(names) if self.text_key in names else batch
                columns.validate(full=True)  # damaged offsets would end the process
                yield from columns.slice(max(first - start, 0)).to_pylist()


@configurable
@dataclass(eq=False)
class Parquet(TableSource):
    """One document per row of Parquet files."""

    suffixes = (".parquet",)

    def number_of_rows(self, file: str) -> int:
        with open_regular(file) as raw, _explained(file):
            return self._open(raw).metadata.num_rows

    def batches(self, file: IO[bytes], first: int) -> Iterator[tuple[int, Any]]:
        table = self._open(file)
        names = [n for n in (self.text_key, self.title_key) if n in table.schema_arrow.names]
        columns = names if self.text_key in names else None
        start = 0
        for group in range(table.num_row_groups):
            end = start + table.metadata.row_group(group).num_rows
            if end > first:
                for batch in table.iter_batches(256, [group], columns):
                    yield start, batch
                    start += batch.num_rows
            start = end

    def _open(self, raw: IO[bytes]) -> Any:
        return extra_library("pyarrow.parquet", "Parquet", "tables").ParquetFile(raw)


@configurable
@dataclass(eq=False)
class SavedDataset(TableSource):
    """One document per row of a folder that `save_to_disk` of `datasets` wrote."""

    suffixes = (".arrow",)

    def split_files(self, split: str) -> list[str]:
        # `map` and `filter` of datasets leave their results, as cache-*.arrow, in the folder.
        names = ((file, os.path.basename(file)) for file in super().split_files(split))
        return [file for file, name in names if not name.startswith("cache-")]

    def number_of_rows(self, file: str) -> int:
        with open_regular(file) as raw, _explained(file):
            return sum(batch.num_rows for _, batch in self.batches(raw, 0))

    def batches(self, file: IO[bytes], first: int) -> Iterator[tuple[int, Any]]:
        start = 0
        for batch in extra_library("pyarrow", "SavedDataset", "tables").ipc.open_stream(file):
            if start + batch.num_rows > first:
                yield start, batch
            start += batch.num_rows


@contextlib.contextmanager
def _explained(file: str) -> Iterator[None]:
    try:
        yield
    except MissingExtra:
        raise
    except Exception as error:
        if file in str(error):
            raise
        raise ValueError(
            f"{file} is damaged, or no table ({shortened(str(error))}): copy it again."
        ) from error


def listed(path: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
    """Returns the folder at a path ("" for a file or a pattern) and the sorted files below it."""
    if is_remote(path):
        remote = RemotePath(path)
        if "*" in path or remote.is_file():
            return "", sorted(remote.stamps()) if "*" in path else [path]
        files = [str(file) for file in remote.files()]
    else:
        path = absolute(path)
        if not os.path.isdir(path):
            return "", matching(path)
        tree = os.walk(path)
        files = [os.path.join(at, name) for at, _, names in tree for name in names]
    inside = [(file, file.removeprefix(path)) for file in files if file.endswith(suffixes)]
    return path, sorted(file for file, name in inside if "/." not in name)


def named_after(split: str, files: list[str], folder: str) -> list[str]:
    """Returns the files below a folder whose first name of a split is `split`."""
    named = re.compile(NAMED.pattern.replace("(train", f"({re.escape(split)}|train"))
    found = ((file, named.search(file.removeprefix(folder).lstrip("/"))) for file in files)
    return [file for file, matched in found if matched and matched[1] == split]


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    head = file.read(4)
    file.seek(0)
    if head.startswith(GZIP):
        return gzip.open(file)  # type: ignore[return-value]
    if head == ZSTANDARD:
        pyarrow = extra_library("pyarrow", "JsonLines", "tables")
        return io.BufferedReader(pyarrow.input_stream(file, compression="zstd"), 2**16)
    return file
