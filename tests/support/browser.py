"""A real browser for pages of the report: the Chromium of PyQt6-WebEngine, in a process apart."""

import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BROWSE = Path(__file__).with_name("browse.py")


def open_page(url: str, folder: Path, width: int = 1200) -> str:
    """Returns a page as text, after its scripts ran; skips the test where no browser starts.

    Args:
        url: `file://...`.
        folder: for page.png, an image of the window, and page.html; made.
        width: of the window, pixels.
    """
    if reason := missing():
        pytest.skip(reason)
    folder.mkdir(exist_ok=True)
    _browse(url, folder, width, 2400).check_returncode()
    return (folder / "page.html").read_text(encoding="utf-8")


@functools.cache
def missing() -> str | None:
    """Returns why there is no browser here, None where one starts."""
    if importlib.util.find_spec("PyQt6") is None:
        return 'no browser: pip install -e ".[browser]"'
    with tempfile.TemporaryDirectory() as folder:
        found = _browse("data:text/html,<p>here</p>", Path(folder), 100, 100)
    if found.returncode:
        last = found.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"PyQt6-WebEngine does not start here: {' '.join(last)}"
    return None


def _browse(url, folder, width, height):
    command = [sys.executable, BROWSE, url, folder, width, height]
    return subprocess.run(list(map(str, command)), capture_output=True, timeout=300, check=False)
