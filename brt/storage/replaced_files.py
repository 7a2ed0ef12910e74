"""Writes files that appear, or replace others, once all of their content is on the disk.

Folders may come from strangers, so the growing file is new, has a random name, and is not opened
through a link.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from brt.storage.paths import AnyPath, RemotePath
from brt.storage.regular_files import check_replaceable

LEFT = re.compile(r"\.brt-[0-9a-f]{16}\.new")
"""Names of unfinished files of killed processes."""


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Adds the path to errors of the system, which lack it when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.strerror != os.strerror(error.errno):
            raise  # it has a message already
        raise type(error)(
            error.errno,
            f"Cannot write {os.fspath(path)} ({error.strerror}): free some space, or check the "
            "permissions, and run the same command again, which resumes where it stopped.",
        ) from error


def new_file(path: str | os.PathLike) -> BinaryIO:
    """Creates a file for writing; raises if it exists; follows no link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def lock_file(path: str | os.PathLike) -> int:
    """Opens, or creates, a file to lock; follows no link, and keeps the content."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yields a file that replaces `path` at the end, or is removed after an error.

    Only a regular file, or a link, is replaced.
    """
    check_replaceable(path)
    grows = os.path.join(os.path.dirname(path), f".brt-{secrets.token_hex(8)}.new")
    try:
        with new_file(grows) as file:
            yield file
            sync(file)
        os.replace(grows, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(grows)
        if isinstance(error, OSError) and error.filename == grows:
            error.filename, error.filename2 = os.fspath(path), None
        raise


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def replace_file(folder: AnyPath, name: str, data: bytes) -> None:
    """Writes or replaces a file of a folder, or an object of a bucket."""
    if isinstance(folder, RemotePath):
        (folder / name).write_bytes(data)
        return
    with replacing(folder / name) as file:
        file.write(data)


def replace_json(folder: AnyPath, name: str, content: Any) -> None:
    replace_file(folder, name, json.dumps(content, indent=2).encode() + b"\n")
