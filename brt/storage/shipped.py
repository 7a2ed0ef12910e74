"""The folder `configs/`: next to `brt/` in a checkout, inside it in a wheel (setup.py)."""

from pathlib import Path


def configs_root() -> Path:
    """Returns the parent folder of `configs/`."""
    package = Path(__file__).resolve().parents[1]
    return package if (package / "configs").is_dir() else package.parent


def gin_folders() -> tuple[Path, Path]:
    """Returns the search path of gin files: for `configs/quickstart.gin`, and `quickstart.gin`."""
    root = configs_root()
    return root, root / "configs"
