"""Names the file in errors of writing; the system names none when a disk is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

RESUMES = "run the same command again, which resumes where it stopped"


@contextmanager
def naming(path: str | os.PathLike, then: str = RESUMES) -> Iterator[None]:
    """Names the file `path` in errors of the system; `then` tells what to do with space again."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.strerror != os.strerror(error.errno):
            raise  # it has a message already
        raise type(error)(
            error.errno,
            f"Cannot write {os.fspath(path)} ({error.strerror}): free some space, or check the "
            f"permissions, and {then}.",
        ) from error
