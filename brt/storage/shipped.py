"""Files next to `brt/` in a checkout, inside of it in a wheel (setup.py)."""

import os
from pathlib import Path


def configs_root() -> Path:
    package = Path(__file__).resolve().parents[1]
    return package if (package / "configs").is_dir() else package.parent


def gin_folders() -> tuple[Path, Path]:
    """Returns the search path of gin files: for `configs/quickstart.gin`, and `quickstart.gin`."""
    root = configs_root()
    return root, root / "configs"


def user_cache(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "brt" / name


def install_command(extra: str) -> str:
    in_checkout = (configs_root() / "setup.py").is_file()
    return f'pip install -e ".[{extra}]"' if in_checkout else f'pip install "brt[{extra}]"'
