"""Builds a corpus of source code from Debian's source packages, split by package.

    python scripts/corpora/debian.py --output=data/debian --packages=git,sympy,golang-1.19
    python scripts/corpora/debian.py --output=data/debian    # all of debian.csv

A document is a folder with everything below it, if that is at most 1 MiB; of a larger folder each
subfolder, and the files beside them. Documents under 16 KiB are left out. Downloads are kept in
OUTPUT/downloads and checked against the list, and so are the documents of each package.

--mirror=https://snapshot.debian.org/archive/debian/20261129T000000Z serves versions that the
default mirror has no more (not tried).
"""

import argparse
import csv
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

PACKAGES = Path(__file__).with_name("debian.csv")
MIRROR = "http://deb.debian.org/debian"
SUFFIXES = (
    *(".c", ".h", ".cc", ".cpp", ".hpp", ".cxx", ".hxx", ".java", ".py", ".go", ".rs"),
    *(".js", ".ts", ".rb", ".pl", ".R", ".f90", ".S", ".scala", ".kt"),
)
LARGEST_FILE = 2**18
"""Larger files are generated tables."""
LARGEST_DOCUMENT = 2**20
SMALLEST_DOCUMENT = 2**14
HEADER = "# file: {}\n"
ARCHIVES = (".tar.gz", ".tar.xz", ".tar.bz2")


def download(row: dict[str, str], mirror: str, folder: Path) -> Path:
    """Returns the archive of a package, downloaded unless it is there; refuses other contents."""
    file = folder / row["path"].rpartition("/")[2]
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        address = f"{mirror}/{row['path']}"
        try:
            with urllib.request.urlopen(address) as source, open(part, "wb") as to:
                shutil.copyfileobj(source, to, 2**20)
        except urllib.error.URLError as error:
            raise ValueError(
                f"{address}: {error}. Mirrors keep the versions of present releases: --help names "
                "one that keeps all."
            ) from None
        part.rename(file)
    with open(file, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != row["sha256"]:
        raise ValueError(f"{file} has sha256 {found}, not {row['sha256']}: delete it.")
    return file


def sources(archive: IO[bytes]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yields paths, below the archive's one top folder, and contents of files of source code.

    Of archives within the archive too. Contents that came before, links, binary files and text that
    is not UTF-8 are left out.
    """
    seen: set[bytes] = set()
    with tarfile.open(fileobj=archive, mode="r|*") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if not member.isfile() or ".." in path.parts:
                continue
            inside = tar.extractfile(member)
            assert inside is not None
            if path.name.endswith(ARCHIVES) and len(path.parts) == 2:
                yield from sources(inside)
            if path.suffix not in SUFFIXES or not 0 < member.size <= LARGEST_FILE:
                continue
            content = inside.read()
            digest = hashlib.sha256(content).digest()
            if digest in seen or b"\0" in content or not _is_utf8(content):
                continue
            seen.add(digest)
            yield PurePosixPath(*path.parts[1:]), content


def _is_utf8(content):
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def documents(root: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yields the documents of an unpacked package: names and files, in order of their paths."""
    sizes: dict[Path, int] = {}
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for file in files:
        for folder in file.parents:
            sizes[folder] = sizes.get(folder, 0) + file.stat().st_size
            if folder == root:
                break
    chosen: dict[Path, list[Path]] = {}
    for file in files:
        folders = [*reversed(file.relative_to(root).parents)]
        fitting = (root / each for each in folders if sizes[root / each] <= LARGEST_DOCUMENT)
        chosen.setdefault(next(fitting, file.parent), []).append(file)
    for folder, members in sorted(chosen.items()):
        if sum(file.stat().st_size for file in members) >= SMALLEST_DOCUMENT:
            yield "~".join(folder.relative_to(root.parent).parts), members


def build(row: dict[str, str], archive: Path, output: Path) -> dict[str, str]:
    """Writes a package's documents to OUTPUT/SPLIT/PACKAGE~FOLDER.txt; returns what they are.

    Documents of another version of the package are removed.
    """
    folder = output / row["split"]
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / f"{row['package']}.txt", *folder.glob(f"{row['package']}~*.txt")):
        old.unlink(missing_ok=True)
    digest, size, count = hashlib.sha256(), 0, 0
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        root = Path(scratch, row["package"])
        root.mkdir()
        with open(archive, "rb") as opened:
            for path, content in sources(opened):
                file = root / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        for name, members in documents(root):
            text = b"".join(_with_header(file, root) for file in members)
            part = Path(scratch, "part")
            part.write_bytes(text)
            os.replace(part, folder / f"{name}.txt")
            digest.update(text)
            size, count = size + len(text), count + 1
    return {"documents": str(count), "text_bytes": str(size), "text_sha256": digest.hexdigest()}


def _with_header(file, root):
    content = file.read_bytes()
    end = b"" if content.endswith(b"\n") else b"\n"
    return HEADER.format(file.relative_to(root).as_posix()).encode() + content + end


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the three splits")
    parser.add_argument("--packages", default="", help="names of debian.csv; all without it")
    parser.add_argument("--mirror", default=MIRROR)
    flags = parser.parse_args(arguments)
    with open(PACKAGES, encoding="utf-8", newline="") as listed:
        rows = {row["package"]: row for row in csv.DictReader(listed)}
    names = [*filter(None, flags.packages.split(","))] or [*rows]
    if unknown := [name for name in names if name not in rows]:
        parser.error(f"debian.csv has no {', '.join(unknown)}; it has {', '.join(rows)}.")
    status = 0
    for name in names:
        row = rows[name]
        archive = download(row, flags.mirror, flags.output / "downloads")
        built = build(row, archive, flags.output)
        wrong = {key: value for key, value in built.items() if row[key] and row[key] != value}
        print(
            f"{row['split']:10} {name:20} {built['documents']:>6} documents "
            f"{int(built['text_bytes']) / 1e6:8.1f} MB{'  DIFFERS' if wrong else ''}",
            flush=True,
        )
        if wrong or not row["text_sha256"]:
            print(",".join(built.values()))
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError, tarfile.TarError) as error:
        sys.exit(f"Error: {error}")
