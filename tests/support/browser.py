"""A real browser for pages of the report: the Chromium of PyQt6-WebEngine, in a process apart."""

import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

BROWSE = Path(__file__).with_name("browse.py")


class OpenedPage(NamedTuple):
    """A page as a browser shows it.

    dom: the document as text, after its scripts ran. image: path of a PNG of the window.
    """

    dom: str
    image: Path


def open_page(url: str, folder: Path, width: int = 1200) -> OpenedPage:
    """Opens a page; skips the test where there is no browser that starts.

    Args:
        url: `file://...`.
        folder: for the page's two files; made.
        width: of the window, pixels.
    """
    if reason := missing():
        pytest.skip(reason)
    folder.mkdir(exist_ok=True)
    _browse(url, folder, width, 2400).check_returncode()
    return OpenedPage((folder / "page.html").read_text(encoding="utf-8"), folder / "page.png")


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
