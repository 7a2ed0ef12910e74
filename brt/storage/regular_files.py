"""Reads regular files only: a FIFO would block, and a device never ends."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

from brt.storage.paths import AnyPath, RemotePath, file_size, is_remote

MOST_BYTES = 2**31
"""Bytes of a file that is read whole; a sparse file may have any number."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegular(OSError): ...


def open_regular(path: str | os.PathLike, most: int | None = None) -> BinaryIO:
    """Opens a regular file or an object of a bucket; follows links.

    most: bytes of the largest file on a disk that is opened.
    """
    if is_remote(path):
        return cast(BinaryIO, RemotePath(path).open("rb"))
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_regular(path, stat.S_IFSOCK) from None
        raise
    status = os.fstat(descriptor)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise _not_regular(path, kind)
    if most is not None and status.st_size > most:
        os.close(descriptor)
        raise ValueError(
            f"{os.fspath(path)} has {status.st_size:,} bytes, and such a file at most {most:,}: "
            "correct the path, or copy the file again."
        )
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


def check_size(path: AnyPath, expected: int, advice: str) -> None:
    try:
        check_regular(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} has no {path.name}: {advice}.") from None
    if (size := file_size(path)) != expected:
        raise ValueError(
            f"{path} should have {expected} bytes and has {size}, as when it was cut short or "
            f"changed: {advice}."
        )


def check_replaceable(path: str | os.PathLike) -> None:
    """Refuses the path of a folder, device, FIFO or socket, or of a link to one."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError:  # nothing is there, or writing raises its own error
        return
    if kind != stat.S_IFREG:
        raise _not_regular(path, kind)


def check_inside(folder: str | os.PathLike, names: Iterable[str]) -> None:
    _check_inside(os.path.realpath(folder), (os.path.join(folder, name) for name in names))


def check_links(folder: AnyPath, siblings: Iterable[str] = ()) -> None:
    """Refuses links, anywhere in a folder, that lead out of it; the folder may be one itself.

    siblings: names that may be links to the same name in a folder next to it, as `../other/NAME`.
    """
    if isinstance(folder, RemotePath):
        return
    allowed = {os.path.join(folder, name) for name in siblings if _is_sibling(folder, name)}
    links = (link for link in _links(folder) if link not in allowed)
    _check_inside(os.path.realpath(folder), links)


def _is_sibling(folder, name):
    path = os.path.join(folder, name)
    if not os.path.islink(path) or not re.fullmatch(r"\.\./[^/]+/" + name, os.readlink(path)):
        return False
    beside = os.path.dirname(os.path.realpath(folder))
    return os.path.dirname(os.path.dirname(os.path.realpath(path))) == beside


def _check_inside(root, paths):
    for path in paths:
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise ValueError(
                f"{path} is a link to a file outside of {os.path.dirname(path)}: remove it, or "
                "copy the folder with its files, as cp -rL does."
            )


def _links(folder: str | os.PathLike) -> Iterator[str]:
    folders = [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                found = list(entries)
        except (FileNotFoundError, NotADirectoryError):  # another process may have removed it
            continue
        yield from (entry.path for entry in found if entry.is_symlink())
        folders += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]


def read_bytes(path: str | os.PathLike, most: int = MOST_BYTES) -> bytes:
    if is_remote(path):
        return RemotePath(path).read_bytes()
    with open_regular(path, most) as file:
        return file.read()


def file_sha256(path: str | os.PathLike) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def read_text(path: str | os.PathLike, most: int = MOST_BYTES) -> str:
    """Returns the content of a regular UTF-8 file; skips a byte order mark."""
    content = read_bytes(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{os.fspath(path)} is not UTF-8 text, from byte {error.start} on: write it as UTF-8."
        ) from None
