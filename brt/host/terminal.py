r"""Escapes control characters in untrusted texts before a terminal shows them.

Such characters could set the window's title, clear the screen or fill the clipboard.
"""

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All controls but line feed and tab, and bidirectional overrides and isolates."""


def shown(text: str) -> str:
    r"""Returns a text of several lines, control characters escaped, as in `\x1b`."""
    return CONTROLS.sub(lambda match: _escape(match[0]), text)


def printable(text: str) -> str:
    """Returns a text as one line, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character):
    return character.encode("unicode_escape").decode()


class Terminal:
    """A text stream to a terminal that shows control characters as escapes.

    plain: the stream without escapes, for what brt itself draws.
    """

    def __init__(self, plain: TextIO):
        self.plain = plain

    def write(self, text: str) -> int:
        self.plain.write(shown(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def guard_streams() -> None:
    """Wraps standard output and error in a `Terminal` where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty() and not isinstance(stream, Terminal):
            setattr(sys, name, Terminal(stream))


def plain(stream: TextIO) -> TextIO:
    return stream.plain if isinstance(stream, Terminal) else stream
