"""Folders that brt fills and removes, and only its own files in them."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from brt.data.stores.layout import NOTE
from brt.storage.replaced_files import LEFT

UNFINISHED = re.compile(rf"[0-9a-f]{{32}}{re.escape(NOTE)}|{LEFT.pattern}")
"""Names of notes (`Run.key`) and of files that killed processes left, in a store's folder."""
GROWING = re.compile(r"shard-\d{5,}\.[0-9a-f]{12}\.growing")


def check_claimable(folder: Path) -> None:
    """Refuses a folder that `claim` would refuse; writes nothing."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "cannot be written to" if nearest.is_dir() else "is not a folder"
        raise ValueError(
            f"The token store {folder} cannot be made, as {nearest} {what}: bind Corpus.store to a "
            "folder that can be written."
        )
    if nearest == folder:
        claim(folder)


def claim(folder: Path) -> None:
    """Makes the folder of a store, or continues one that is empty or that brt began."""
    folder.mkdir(parents=True, exist_ok=True)
    names = os.listdir(folder)
    began = any(UNFINISHED.fullmatch(name) or GROWING.fullmatch(name) for name in names)
    began = began or any(folder.glob("shard-*/shard.json"))
    _refuse(folder, [] if began else names)


def remove(folder: Path, files: Iterable[str]) -> None:
    """Removes a folder with these files; refuses one with others."""
    names = os.listdir(folder)
    files = [*files, *filter(LEFT.fullmatch, names)]
    _refuse(folder, {*names} - {*files})
    for name in files:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _refuse(folder: Path, others: Iterable[str]) -> None:
    """Refuses a link, and a folder with files of others."""
    if others or folder.is_symlink():
        what = f"holds {', '.join(sorted(others)[:3])}" if others else "is a link"
        raise ValueError(
            f"{folder} {what}, which brt did not make: move it elsewhere, or delete it if nobody "
            "needs it, and run the same command again. Nothing was removed."
        )
