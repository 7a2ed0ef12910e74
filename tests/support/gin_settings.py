"""Settings of several gin files."""

from brt.reporting.gin_text import read_gin_file


def read_gin_files(paths):
    settings = {}
    for path in paths:
        settings |= read_gin_file(path)
    return settings
