"""Distinguishes transient errors (memory, open files, network) from damage."""

import errno
import re

from brt.storage.paths import StorageError

DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP)
"""System errors of damage: the file is missing, or of another kind."""
NETWORK = ("aiohttp", "botocore", "gcsfs", "google", "requests")
"""Libraries whose errors are about access to a bucket."""
NOT_THERE = 404
BUSY = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED")
"""Beginnings of transient errors of TensorStore and XLA."""


def transient_reason(error: BaseException) -> str | None:
    """Returns why a file could not be read just now; None if the file itself is damaged.

    Follows the causes of the error, because libraries wrap the errors of the system.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        if _is_transient(current):
            return first_line(current) or type(current).__name__
        current = current.__cause__ or current.__context__
    return None


def first_line(error: BaseException) -> str:
    while type(error) is Exception and error.__cause__:
        error = error.__cause__  # of Orbax's, which begin with the whole TensorStore specification
    return str(error).strip().split("\n")[0][:300]


def _is_transient(error):
    if isinstance(error, MemoryError | StorageError | TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in DAMAGE
    if type(error).__module__.split(".")[0] in NETWORK:
        return getattr(error, "code", None) != NOT_THERE
    if isinstance(error, OSError):
        return False
    text = str(error)
    # TensorStore's text has the number of the system's error.
    number = re.search(r"OS error (\d+)", text)
    return text.startswith(BUSY) or bool(number and int(number[1]) not in DAMAGE)
