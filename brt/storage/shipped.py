"""What lies next to `brt/` in a checkout; a wheel has `configs/` inside (setup.py)."""

from pathlib import Path


def configs_root() -> Path:
    package = Path(__file__).resolve().parents[1]
    return package if (package / "configs").is_dir() else package.parent


def gin_folders() -> tuple[Path, Path]:
    """Returns the search path of gin files: for `configs/quickstart.gin`, and `quickstart.gin`."""
    root = configs_root()
    return root, root / "configs"


def install_command(extra: str) -> str:
    """Returns the command that installs an extra, in a checkout or without one."""
    in_checkout = (configs_root() / "setup.py").is_file()
    return f'pip install -e ".[{extra}]"' if in_checkout else f'pip install "brt[{extra}]"'
