"""Archives of run folders: settings and records, without checkpoints."""

import gzip
import io
import itertools
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, Any

from brt.reporting.runs import STANDS_FOR_FILE
from brt.storage.regular_files import open_regular

KEPT = (
    "config.gin",
    "operative_config.gin",
    "command.txt",
    "environment.json",
    "metrics.jsonl",
    STANDS_FOR_FILE,
    "evaluation_*.json",
    "studies/*.json",
)
"""Files of a run folder that an archive holds."""
ENDING = ".tar.gz"

MOST_BYTES = 2**30
"""Limit of all files of an archive together."""
MOST_MEMBERS, MOST_LETTERS, MOST_DEPTH = 10_000, 256, 8
"""Limits of the number of members, and of the length and depth of a path."""
PIECE = 2**20
"""Bytes that are decompressed at once, and the limit of a single read of a header."""
UNPACK_IT = "unpack it yourself, if you trust it, and name the folder"
DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, RecursionError)
"""Errors of the libraries for damaged archives."""


def pack(run: Path, archive: Path) -> None:
    """Writes a run folder's records as NAME.tar.gz; equal records give equal bytes."""
    if not (run / "config.gin").is_file():
        raise FileNotFoundError(f"{run} is not a run folder: it has no config.gin.")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(path for pattern in KEPT for path in run.glob(pattern)):
            entry = tarfile.TarInfo(path.relative_to(run).as_posix())  # no owner and no time
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(gzip.compress(content.getvalue(), 9, mtime=0))


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks an archive into a new folder below `folder`; returns that run folder."""
    name = archive.name.removesuffix(ENDING)
    if name == archive.name or name in ("", ".", ".."):
        raise ValueError(f"{archive} is no archive of a run: rename it to RUN{ENDING}.")
    run = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with open_regular(archive) as file, tempfile.TemporaryFile(dir=folder, buffering=0) as content:
        try:
            # Decompressed to its end first: the checksum stands there.
            _decompress(file, content)
            content.seek(0)
            reads: Any = _ShortReads(content)
            with tarfile.open(fileobj=reads, mode="r:") as tar:
                tar.extractall(run, _checked(tar), filter="data")
        except (*DAMAGE, _TooLarge) as error:
            advice = "fetch it again" if isinstance(error, DAMAGE) else UNPACK_IT
            raise ValueError(f"{archive} cannot be read ({error}): {advice}.") from error
    return run


def _decompress(file: IO[bytes], content: IO[bytes]) -> None:
    size = 0
    with gzip.GzipFile(fileobj=file) as stream:
        while piece := stream.read(PIECE):
            size += len(piece)
            if size > MOST_BYTES:
                raise _TooLarge(f"it holds more than {MOST_BYTES:,} bytes")
            content.write(piece)


def _checked(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members = list(itertools.islice(tar, MOST_MEMBERS + 1))
    if len(members) > MOST_MEMBERS:
        raise _TooLarge(f"it holds more than {MOST_MEMBERS:,} files")
    # A sparse file is larger than its bytes in the archive.
    if sum(member.size for member in members) > MOST_BYTES:
        raise _TooLarge(f"its files hold more than {MOST_BYTES:,} bytes")
    for member in members:
        if not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r:.60} is neither a file nor a folder")
        if len(member.name) > MOST_LETTERS or member.name.count("/") > MOST_DEPTH:
            raise _TooLarge(f"the path {member.name!r:.60} is too long or too deep")
    return members


class _TooLarge(Exception):
    pass


class _ShortReads:
    """A file that refuses to read a megabyte at once: a header can ask for any number of bytes."""

    def __init__(self, file: IO[bytes]):
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int) -> bytes:
        if not 0 <= size < PIECE:
            raise _TooLarge(f"one of its headers is of {size:,} bytes")
        return self._read(size)
