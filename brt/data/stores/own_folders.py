"""Folders that brt fills, and removes again: only those it marked, and of them only its own files.

A folder that grows carries the file `MARK` from its first moment to its last; a finished one, its
manifest. What has neither is somebody else's, whatever its name.
"""

from collections.abc import Iterable
from pathlib import Path

MARK = ".made_by_brt"
"""Name of the file that says that a folder is brt's to fill and to remove."""


def claim(folder: Path, is_own: bool = False) -> None:
    """Makes a folder and marks it, or takes up one that carries the mark or is empty.

    Args:
        folder: what brt is going to write to; folders above it are made too.
        is_own: something else shows that brt made it, such as a manifest.

    Raises:
        ValueError: there is a folder that is not brt's.
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not is_own and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} is where brt would write, and holds what it did not make (there is no "
            f"{MARK} in it): move it elsewhere, or delete it if nobody needs it, and run the same "
            "command again. Nothing was removed."
        )
    (folder / MARK).touch()


def remove(folder: Path, files: Iterable[str]) -> None:
    """Removes a folder that brt made, with these files in it and no others.

    Args:
        folder: one that is marked, or lies in one that is.
        files: names of all files brt writes there; those that are not there do not matter.

    Raises:
        ValueError: something else is in it, or it is a link; then nothing is removed.
        OSError: it cannot be removed.
    """
    files = (*files, MARK)
    strange = sorted(path.name for path in folder.iterdir() if path.name not in files)
    if strange or folder.is_symlink():
        what = f"holds {', '.join(strange[:3])}" if strange else "is a link"
        raise ValueError(
            f"{folder} {what}, which is not brt's to remove: move it elsewhere and run the same "
            "command again. Nothing was removed."
        )
    for name in files:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()
