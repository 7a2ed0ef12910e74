"""Tells errors that pass (no memory, no free file, a disk that does not answer) from damage."""

import errno
import re

DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP)
"""Numbers of system errors: the file is not there, or not what it was. All others may pass."""


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
    if isinstance(error, OSError):
        return error.errno is not None and error.errno not in DAMAGE
    text = str(error)
    # TensorStore reads the arrays, and says in words what the system said; XLA holds them.
    said = re.search(r"OS error (\d+)", text)
    return text.startswith("RESOURCE_EXHAUSTED") or bool(said and int(said[1]) not in DAMAGE)
