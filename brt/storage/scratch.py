"""Folders of this disk that an object works in, and that go with it."""

import shutil
import tempfile
import weakref
from pathlib import Path


def scratch_folder(owner: object, prefix: str) -> Path:
    """Returns a new folder, which is removed with its owner, at the latest when the process ends.

    Args:
        owner: what works in it; can be referred to weakly.
        prefix: of the folder's name.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
