"""Tells errors that pass (no memory, no free file, a disk that does not answer) from damage."""

import errno
import re

from brt.storage.paths import StorageError

DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP)
"""Numbers of system errors: the file is not there, or not what it was. All others may pass."""


NETWORK = ("aiohttp", "botocore", "gcsfs", "google", "requests")
"""Libraries whose errors say that a bucket did not answer as it should, or let nobody in."""

NOT_THERE = 404
"""Code of such an error if the object is not there."""

BUSY = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED")
"""Beginnings of what TensorStore and XLA say of what may pass."""


def passing_reason(error: BaseException) -> str | None:
    """Returns why a file could not be read just now, None where the file itself is at fault.

    Errors that caused this one, or came before it, are looked at too: libraries wrap what the
    system says in errors of their own.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        if _passes(current):
            return str(current).strip().split("\n")[0][:300] or type(current).__name__
        current = current.__cause__ or current.__context__
    return None


def _passes(error):
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, StorageError | TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in DAMAGE
    if isinstance(error, FileNotFoundError):
        return False
    if type(error).__module__.split(".")[0] in NETWORK:
        return getattr(error, "code", None) != NOT_THERE
    if isinstance(error, OSError):
        return False
    text = str(error)
    # TensorStore reads the arrays, and says in words what the system said; XLA holds them.
    said = re.search(r"OS error (\d+)", text)
    return text.startswith(BUSY) or bool(said and int(said[1]) not in DAMAGE)
