"""Says which file could not be written: the system names none when a disk is full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

GOES_ON = "run the same command again, which goes on where it stopped"


@contextmanager
def naming(path: str | os.PathLike, then: str = GOES_ON) -> Iterator[None]:
    """Gives errors of the system inside a sentence that names a file.

    Args:
        path: of what is written.
        then: what to do when there is space again.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.strerror != os.strerror(error.errno):
            raise  # it has a sentence already
        raise type(error)(
            error.errno,
            f"Cannot write {os.fspath(path)} ({error.strerror}): free some space, or check the "
            f"permissions, and {then}.",
        ) from error
