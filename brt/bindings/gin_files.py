"""Which text gin is given: regular files, and imports of modules that were allowed.

Gin can run any code: an `import` line runs a module, and dynamic registration calls any function
of it. A config is read under `--dry_run`, and out of run folders of other people. So every file and
binding passes through here before gin sees it.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import TextIO

from gin import config_parser

from brt.storage.regular_files import read_text

OWN = "brt"


class NotAllowed(ValueError):
    """A gin text would run code, or read a file, that nobody has allowed."""


def is_allowed(module: str, allow_imports: Sequence[str]) -> bool:
    """Tells whether a module is one of brt's, or is named or lies in a package that is named."""
    return any(f"{module}.".startswith(f"{name}.") for name in (OWN, *allow_imports))


def check_module(module: str, what: str, allow_imports: Sequence[str]) -> None:
    """Refuses to import a module that nobody has allowed.

    Args:
        module: its name.
        what: asks for it: a line, or a binding.
        allow_imports: names of modules and packages that may be imported.

    Raises:
        NotAllowed: with the flag that allows it.
    """
    if not is_allowed(module, allow_imports):
        raise NotAllowed(
            f"{what} runs the code of {module}, which is no part of brt: if you trust it, add "
            f"--allow_imports={','.join([*allow_imports, module])}."
        )


def check_statements(text: str, allow_imports: Sequence[str]) -> None:
    """Refuses a gin text whose lines import what is not allowed.

    Raises:
        NotAllowed: naming the line.
        SyntaxError, ValueError: it is not gin, as gin itself says.
    """
    for statement in config_parser.ConfigParser(text, _Nothing()):
        if not isinstance(statement, config_parser.ImportStatement):
            continue
        line = f"`{statement.format()}`"
        if statement.module.split(".")[0] == "__gin__":
            raise NotAllowed(
                f"{line} would let the file call any function there is: leave it out, and mark "
                "what is to be bound with @gin.configurable."
            )
        check_module(statement.module, line, allow_imports)


class _Nothing(config_parser.ParserDelegate):
    """References stand for nothing here."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return None

    def macro(self, macro_name):
        return None


def read_gin_text(path: str | os.PathLike, included: bool = False) -> str:
    """Returns the content of a gin file.

    Args:
        path: of a regular UTF-8 file. What is named .gin may not be a link to another kind of file.
        included: by another gin file, which may only name files that end in .gin.

    Raises:
        NotAllowed: an included file, or what a link leads to, has another ending; it is not opened.
        OSError, ValueError: as `brt.storage.regular_files.read_text`.
    """
    path = os.fspath(path)
    if (included or path.endswith(".gin")) and not _is_gin(path):
        raise NotAllowed(f"{path} was not read, because gin files end in .gin: rename it.")
    return read_text(path)


def _is_gin(path):
    return path.endswith(".gin") and os.path.realpath(path).endswith(".gin")


class GinReader:
    """Opens files for gin's parser: the ones that are given, and those that they include.

    Args:
        allow_imports: names of modules and packages whose import is allowed.
    """

    def __init__(self, allow_imports: Sequence[str] = ()):
        self.allow_imports = tuple(allow_imports)
        self._open: list[str] = []

    @contextlib.contextmanager
    def __call__(self, path: str) -> Iterator[TextIO]:
        """Yields the text of a file, checked.

        Raises:
            NotAllowed: as `read_gin_text` and `check_statements`; or the file includes itself.
        """
        text = read_gin_text(path, included=bool(self._open))
        known = os.path.realpath(path)
        if known in self._open:
            raise NotAllowed(f"{path} includes itself: leave one of the `include` lines out.")
        check_statements(text, self.allow_imports)
        self._open.append(known)
        try:
            yield io.StringIO(text, newline=None)
        finally:
            self._open.pop()
