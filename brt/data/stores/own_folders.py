"""Folders that brt fills and removes: marked ones only, and only its own files in them.

A folder contains `MARK` while it grows, and a manifest when it is complete.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from brt.storage.replaced_files import LEFT, lock_file

MARK = ".made_by_brt"


def check_claimable(folder: Path) -> None:
    """Refuses a folder that `claim` would refuse; writes nothing."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise ValueError(
            f"The token store {folder} cannot be made, as {nearest} {what}: bind Corpus.store to a "
            "folder that can be written."
        )
    if nearest == folder and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise _foreign(folder)


def _foreign(folder):
    return ValueError(
        f"{folder} is where brt would write, and contains files that it did not make (it has "
        f"no {MARK}): move it elsewhere, or delete it if nobody needs it, and run the same "
        "command again. Nothing was removed."
    )


def claim(folder: Path, is_own: bool = False) -> None:
    """Makes and marks a folder, or continues a marked, empty or own one."""
    _refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not is_own and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise _foreign(folder)
    os.close(lock_file(folder / MARK))


def remove(folder: Path, files: Iterable[str]) -> None:
    """Removes a folder with these files; refuses one with others."""
    _refuse_link(folder)
    names = [path.name for path in folder.iterdir()]
    files = [*files, MARK, *filter(LEFT.fullmatch, names)]
    if others := sorted({*names} - {*files}):
        raise _not_own(folder, f"holds {', '.join(others[:3])}")
    for name in files:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _refuse_link(folder):
    if folder.is_symlink():
        raise _not_own(folder, "is a link")


def _not_own(folder, reason):
    return ValueError(
        f"{folder} {reason}, which is not brt's to remove: move it elsewhere and run the same "
        "command again. Nothing was removed."
    )
