"""Reads regular files only: a FIFO would block, and a device never end."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

from brt.storage.paths import RemotePath, is_remote

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def printable(text: str) -> str:
    """Returns a text for a terminal, with control characters escaped."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


class NotRegular(OSError): ...


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """Opens a regular file or an object of a bucket; follows links."""
    if is_remote(path):
        return cast(BinaryIO, RemotePath(path).open("rb"))
    # Without O_NONBLOCK the call waits for a writer of a FIFO.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_regular(path, stat.S_IFSOCK) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise _not_regular(path, kind)
    return os.fdopen(descriptor, "rb")


def _not_regular(path: str | os.PathLike, kind: int) -> OSError:
    error = IsADirectoryError if kind == stat.S_IFDIR else NotRegular
    return error(
        f"{os.fspath(path)} is {KINDS.get(kind, 'something else')}, and a regular file is "
        "expected: move it out of the way, or correct the path."
    )


def check_regular(path: str | os.PathLike) -> None:
    if not is_remote(path):
        open_regular(path).close()
    elif not RemotePath(path).is_file():
        raise FileNotFoundError(f"There is no {os.fspath(path)}.")


def check_size(path: Path, expected: int, advice: str) -> None:
    """Refuses a regular file that is missing or has another number of bytes."""
    try:
        check_regular(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} has no {path.name}: {advice}.") from None
    if (size := os.path.getsize(path)) != expected:
        raise ValueError(
            f"{path} should have {expected} bytes and has {size}, as when it was cut short or "
            f"changed: {advice}."
        )


def check_inside(folder: Path, names: Iterable[str]) -> None:
    """Refuses links to files outside of their folder."""
    root = os.path.realpath(folder)
    for name in names:
        if os.path.commonpath([root, os.path.realpath(folder / name)]) != root:
            raise ValueError(
                f"{folder / name} is a link to a file outside of {folder}: copy the folder with "
                "its files, as cp -rL does."
            )


def read_bytes(path: str | os.PathLike) -> bytes:
    if is_remote(path):
        return RemotePath(path).read_bytes()
    with open_regular(path) as file:
        return file.read()


def file_sha256(path: str | os.PathLike) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while data := file.read(2**20):
            digest.update(data)
    return digest.hexdigest()


def read_text(path: str | os.PathLike) -> str:
    """Returns the content of a regular UTF-8 file without a byte order mark."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{os.fspath(path)} is not UTF-8 text, from byte {error.start} on: write it as UTF-8."
        ) from None
