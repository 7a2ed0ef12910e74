"""Folders that brt fills and removes: marked ones only, and of these only its own files.

A folder contains `MARK` while it grows, and a manifest when it is complete.
"""

from collections.abc import Iterable
from pathlib import Path

MARK = ".made_by_brt"


def claim(folder: Path, is_own: bool = False) -> None:
    """Makes and marks a folder, or continues with one that is marked, empty or `is_own`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not is_own and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} is where brt would write, and contains files that it did not make (it has "
            f"no {MARK}): move it elsewhere, or delete it if nobody needs it, and run the same "
            "command again. Nothing was removed."
        )
    (folder / MARK).touch()


def remove(folder: Path, files: Iterable[str]) -> None:
    """Removes a folder with these files, as far as they exist; refuses one with others."""
    files = (*files, MARK)
    others = sorted(path.name for path in folder.iterdir() if path.name not in files)
    if others or folder.is_symlink():
        reason = f"holds {', '.join(others[:3])}" if others else "is a link"
        raise ValueError(
            f"{folder} {reason}, which is not brt's to remove: move it elsewhere and run the same "
            "command again. Nothing was removed."
        )
    for name in files:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()
