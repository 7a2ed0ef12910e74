"""Names the file in errors of writing; the system does not when a disk is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Names the file `path` in errors of the system."""
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
