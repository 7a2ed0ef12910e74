"""Compares files with the sha256 of a manifest."""

from brt.storage.json_files import DamagedFile
from brt.storage.paths import AnyPath
from brt.storage.regular_files import file_sha256


def check_hash(path: AnyPath, expected: str, advice: str) -> None:
    """Reads a whole file.

    Args:
        expected: sha256, in hexadecimal digits.
        advice: remedy for a file that is missing or damaged.

    Raises:
        DamagedFile: the file has another hash.
    """
    try:
        found = file_sha256(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} has no {path.name}: {advice}.") from None
    if found != expected:
        raise DamagedFile(
            f"{path} is damaged, as its sha256 is not the one in the manifest: {advice}."
        )
