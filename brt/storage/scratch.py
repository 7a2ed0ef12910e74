"""Temporary folders."""

import shutil
import tempfile
import weakref
from pathlib import Path


def scratch_folder(owner: object, prefix: str) -> Path:
    """Returns a new folder, removed with its owner or at the end of the process."""
    folder = tempfile.mkdtemp(prefix=prefix)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
