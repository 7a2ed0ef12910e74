"""Gin settings: lines that bind parameters, and the settings of several files."""

from brt.reporting.gin_text import read_gin_file


def bound(owner, **values):
    """Lines of gin that bind parameters of `owner`; a text that begins with @ or % is no string."""
    return tuple(
        f"{owner}.{name} = {value if str(value)[:1] in ('@', '%') else repr(value)}"
        for name, value in values.items()
    )


def read_gin_files(paths):
    settings = {}
    for path in paths:
        settings |= read_gin_file(path)
    return settings
