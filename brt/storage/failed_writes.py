"""Names the file in errors of writing; the system names none when a disk is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

GOES_ON = "run the same command again, which goes on where it stopped"


@contextmanager
def naming(path: str | os.PathLike, then: str = GOES_ON) -> Iterator[None]:
    """Names the file `path` in errors of the system; `then` says what to do when there is space."""
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
