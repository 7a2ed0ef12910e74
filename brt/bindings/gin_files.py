"""Which text gin is given: regular files, and imports of modules that were allowed.

Gin can run any code: an `import` line runs a module, and dynamic registration calls any function
of it. A config is read under `--dry_run`, and out of run folders of other people. So every file and
binding passes through here before gin sees it. Gin parses the very text that was checked: its line
ends are translated first, and characters that end lines for some readers only are refused.
"""

import contextlib
import filecmp
import importlib
import importlib.util
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from absl import logging
from gin import config_parser

from brt.bindings.registration import modules, register
from brt.storage.paths import is_remote
from brt.storage.regular_files import open_regular

OWN = "brt"

LARGEST_FILE = 2**20
"""Bytes of a gin file. The largest one of configs/ has 1,500."""
MOST_FILES = 1_000
"""Files that one config includes, counted as often as they are read."""
DEEPEST_INCLUDE = 32
MOST_STRINGS = 1_000
"""Strings side by side, which gin joins one by one, each time from the first."""

REFUSED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"  # control characters and line separators
    "\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"  # marks of direction, half pairs
)
"""Characters that show another text than gin parses. Any of them may stand in a string, escaped."""


class NotAllowed(ValueError):
    """A gin text would run code, or read a file, that nobody has allowed."""


def is_allowed(module: str, allow_imports: Sequence[str]) -> bool:
    """Tells whether a module is one of brt's, or is named or lies in a package that is named."""
    return any(f"{module}.".startswith(f"{name}.") for name in (OWN, *allow_imports))


def stands_in(module: str) -> bool:
    """Puts a module of brt in the place of a file that has moved into brt, for old run folders.

    A config names the file that a class was in when its run was trained. Where Python finds no such
    file, or one of the same content, the module of brt with its name is imported instead of it.
    Nothing outside brt is run.

    Returns:
        Whether there is such a module.
    """
    if "." in module:
        return False
    own = {
        name
        for name in (*modules(), *sys.modules)
        if re.fullmatch(rf"{OWN}(\.\w+)*\.{module}", name)
    }
    if len(own) != 1:
        return False
    (name,) = own
    stand_in = importlib.import_module(name)
    if sys.modules.get(module) is not stand_in:
        if module in sys.modules:
            return False
        found = importlib.util.find_spec(module)
        if found is not None and not _is_copy(found, stand_in):
            return False
        sys.modules[module] = stand_in
        logging.warning("import %s: it is read as %s, which has its name.", module, name)
    return True


def _is_copy(found, module):
    try:
        return filecmp.cmp(str(found.origin), str(module.__file__), shallow=False)
    except OSError:
        return False


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


def gin_text(text: str, where: str = "") -> str:
    """Returns a text as gin parses it: line ends are line feeds, other control characters none.

    where: the file, for the message.

    Raises:
        NotAllowed: a control character, with its line.
    """
    text = text.replace("\r\n", "\n")
    if found := REFUSED.search(text):
        character, line = found[0], text.count("\n", 0, found.start()) + 1
        raise NotAllowed(
            f"{where and where + ', '}line {line} has the character U+{ord(character):04X}, which "
            f"can hide text: remove it, or write {ascii(character)[1:-1]} for it in a string."
        )
    return text


def statements(text: str, delegate: config_parser.ParserDelegate) -> Iterator[Any]:
    """Yields what gin's parser finds in a text that `gin_text` has returned.

    delegate: makes the values of references and macros.

    Raises:
        NotAllowed: an `include` of a URL, or of a file that does not end in .gin; or brackets or
            strings without number.
        SyntaxError, ValueError: it is not gin, as gin itself says.
    """
    for statement in _parsed(text, delegate):
        if isinstance(statement, config_parser.IncludeStatement):
            name = statement.filename
            if is_remote(name):
                raise NotAllowed(
                    f"`include {name!r}` names a URL, which only a flag may: give it as another "
                    "--gin_file, or include a copy of the file."
                )
            if not name.endswith(".gin"):
                raise NotAllowed(f"{name} was not read, because gin files end in .gin: rename it.")
        yield statement


def _parsed(text, delegate):
    try:
        yield from _Parser(text, delegate)
    except (RecursionError, tokenize.TokenError) as error:
        if isinstance(error, tokenize.TokenError) and "nested" not in str(error):
            raise  # from Python 3.12 on, the tokenizer refuses 200 brackets
        raise NotAllowed("brackets lie too deep in one another.") from None


class _Parser(config_parser.ConfigParser):
    """Gin's parser, with an end to strings that are joined."""

    _strings = 0

    def _advance_one_token(self):
        super()._advance_one_token()
        if self.current_token.type == tokenize.STRING:
            self._strings += 1
            if self._strings > MOST_STRINGS:
                raise NotAllowed(
                    f"line {self.current_token.start[0]} is the end of more than "
                    f"{MOST_STRINGS:,} strings side by side: write them as one."
                )
        elif self.current_token.type not in (tokenize.NL, tokenize.COMMENT):
            self._strings = 0


def check_statements(text: str, allow_imports: Sequence[str]) -> list[str]:
    """Refuses a gin text whose lines import what is not allowed; returns the names that it binds.

    Modules of brt whose configurables the text names are imported.

    text: as `gin_text` returns it.

    Raises:
        NotAllowed: naming the line; or as `statements`.
        SyntaxError, ValueError: it is not gin, as gin itself says.
    """
    bound = []
    register(text)
    for statement in statements(text, _Nothing()):
        if isinstance(statement, config_parser.BindingStatement):
            bound.append(name_of(statement))
        if not isinstance(statement, config_parser.ImportStatement):
            continue
        line = f"`{statement.format()}`"
        if statement.module.split(".")[0] == "__gin__":
            raise NotAllowed(
                f"{line} would let the file call any function there is: leave it out, and mark "
                "what is to be bound with @gin.configurable."
            )
        if not stands_in(statement.module):
            check_module(statement.module, line, allow_imports)
    return bound


def name_of(binding: config_parser.BindingStatement) -> str:
    """Returns the name that a line binds, modules left out: `evaluation/RecurrentCell.gate`."""
    name = binding.selector.rsplit(".", 1)[-1]
    name = f"{binding.scope}/{name}" if binding.scope else name
    return f"{name}.{binding.arg_name}" if binding.arg_name else name


class _Nothing(config_parser.ParserDelegate):
    """References stand for nothing here."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return None

    def macro(self, macro_name):
        return None


def read_gin_text(path: str | os.PathLike) -> str:
    """Returns the content of a gin file, as `gin_text`.

    Args:
        path: of a regular UTF-8 file. What is named .gin may not be a link to another kind of file.

    Raises:
        NotAllowed: what a link leads to has another ending; it is not opened.
        OSError, ValueError: as `brt.storage.regular_files.read_text`; or the file is too large.
    """
    path = os.fspath(path)
    if path.endswith(".gin") and not _real(path).endswith(".gin"):
        raise NotAllowed(f"{path} was not read, because gin files end in .gin: rename it.")
    with open_regular(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise NotAllowed(f"{path} has more than {LARGEST_FILE:,} bytes, and is no gin file.")
    try:
        return gin_text(content.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text, from byte {error.start} on: write it as UTF-8."
        ) from None


def _real(path):
    return os.path.realpath(path.removeprefix("file://"))


class GinReader:
    """Opens files for gin's parser: the ones that are given, and those that they include.

    Args:
        allow_imports: names of modules and packages whose import is allowed.
    """

    def __init__(self, allow_imports: Sequence[str] = ()):
        self.allow_imports = tuple(allow_imports)
        self._open: list[str] = []
        self._read = 0

    @contextlib.contextmanager
    def opened(self, path: str | os.PathLike) -> Iterator[str]:
        """Yields the text of a file, while what it includes is read.

        Raises:
            NotAllowed: the file includes itself, or it is one too many.
            OSError, ValueError: as `read_gin_text`.
        """
        known = _real(os.fspath(path))
        if known in self._open:
            raise NotAllowed(f"{path} includes itself: leave one of the `include` lines out.")
        if len(self._open) > DEEPEST_INCLUDE:
            raise NotAllowed(
                f"{path} is included by a file that is included, more than {DEEPEST_INCLUDE} "
                "times over: put the bindings into fewer files."
            )
        if self._open:
            self._read += 1
        if self._read > MOST_FILES:
            raise NotAllowed(
                f"{path} is one of more than {MOST_FILES:,} files that are included: put the "
                "bindings into fewer files."
            )
        text = read_gin_text(path)
        self._open.append(known)
        try:
            yield text
        finally:
            self._open.pop()

    @contextlib.contextmanager
    def __call__(self, path: str) -> Iterator[TextIO]:
        """Yields the text of a file, checked.

        Raises:
            NotAllowed: as `opened` and `check_statements`.
        """
        with self.opened(path) as text:
            check_statements(text, self.allow_imports)
            yield io.StringIO(text)
