r"""Shows texts of others on a terminal, which control characters would command.

Such a text could set the window's title, clear the screen or fill the clipboard.
"""

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All controls but line feed and tab; and those that reverse or isolate what follows."""


def shown(text: str) -> str:
    r"""Returns a text of several lines with control characters as escapes, such as `\x1b`."""
    return CONTROLS.sub(lambda match: _escape(match[0]), text)


def printable(text: str) -> str:
    """Returns a text as one line, with all characters escaped that are not printable."""
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
    """Makes standard output and error a `Terminal` each, where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty() and not isinstance(stream, Terminal):
            setattr(sys, name, Terminal(stream))


def plain(stream: TextIO) -> TextIO:
    return stream.plain if isinstance(stream, Terminal) else stream
