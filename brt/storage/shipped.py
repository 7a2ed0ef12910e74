"""The configs that brt ships: beside `brt/` in a checkout, inside of it where installed.

A wheel holds `configs/` as `brt/configs/` (setup.py copies it there).
"""

from pathlib import Path


def configs_root() -> Path:
    """Returns the folder that holds `configs/`."""
    package = Path(__file__).resolve().parents[1]
    return package if (package / "configs").is_dir() else package.parent


def gin_folders() -> tuple[Path, Path]:
    """Returns where gin files are looked up after the working directory.

    `configs/quickstart.gin` is found in the first, `quickstart.gin` in the second.
    """
    root = configs_root()
    return root, root / "configs"
