"""Checks the text that gin reads: regular files, and imports of allowed modules only.

Gin can run any code: an `import` line runs a module, and dynamic registration calls any function
in it. Configs may come from run folders of other people, so every file and binding is checked here
before gin parses the same text.
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
from brt.checks import shortened
from brt.storage.paths import is_remote
from brt.storage.regular_files import open_regular

PACKAGE = "brt"

LARGEST_FILE = 2**20
"""Bytes of a gin file. The largest one of configs/ has 1,500."""
MOST_FILES = 1_000
MOST_LINES = 10_000
"""Of all files together, and so of their statements, which gin parses slowly."""
DEEPEST_INCLUDE = 32
DEEPEST_SCOPE = 32
"""Scopes of a name, `a/b/NAME`: gin's time and memory grow with their square."""
MOST_STRINGS = 1_000
"""Adjacent strings, which gin joins in quadratic time."""

REFUSED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"  # control characters and line separators
    "\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"  # bidirectional marks, surrogates
)
"""Characters that show another text than gin parses. In a string they may be written escaped."""


class NotAllowed(ValueError):
    """A gin text would run code, or read a file, without permission."""


def is_allowed(module: str, allow_imports: Sequence[str]) -> bool:
    """Returns whether a module is one of brt's, or in one of the named modules and packages."""
    return any(f"{module}.".startswith(f"{name}.") for name in (PACKAGE, *allow_imports))


def stands_in(module: str) -> bool:
    """Imports a module of brt for a file of its name that has moved into brt since a run was made.

    Only where Python finds no such file, or one of the same content. Returns whether it did.
    """
    if "." in module:
        return False
    own = {
        name
        for name in (*modules(), *sys.modules)
        if re.fullmatch(rf"{PACKAGE}(\.\w+)*\.{module}", name)
    }
    if len(own) != 1:
        return False
    (name,) = own
    stand_in = importlib.import_module(name)
    if sys.modules.get(module) is not stand_in:
        if module in sys.modules:
            return False
        spec = importlib.util.find_spec(module)
        if spec is not None and not _is_copy(spec, stand_in):
            return False
        sys.modules[module] = stand_in
        logging.warning("import %s: it is read as %s, which has its name.", module, name)
    return True


def _is_copy(spec, module):
    try:
        return filecmp.cmp(str(spec.origin), str(module.__file__), shallow=False)
    except OSError:
        return False


def check_module(module: str, what: str, allow_imports: Sequence[str]) -> None:
    if not is_allowed(module, allow_imports):
        raise NotAllowed(
            f"{what} runs the code of {module}, which is not part of brt: if you trust it, add "
            f"--allow_imports={','.join([*allow_imports, module])}."
        )


def gin_text(text: str, where: str = "") -> str:
    """Returns a text with line feeds as line ends; refuses other control characters.

    where: the file, for the message.
    """
    text = text.replace("\r\n", "\n")
    if match := REFUSED.search(text):
        character, line = match[0], text.count("\n", 0, match.start()) + 1
        raise NotAllowed(
            f"{where and where + ', '}line {line} has the character U+{ord(character):04X}, which "
            f"can hide text: remove it, or write {ascii(character)[1:-1]} for it in a string."
        )
    return text


def statements(text: str, delegate: config_parser.ParserDelegate) -> Iterator[Any]:
    """Yields the statements of a text of `gin_text`; refuses includes of URLs and of other files.

    delegate: makes the values of references and macros.
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

    def _parse_selector(self, *args, **kwargs):
        line = self.current_token.start[0]
        selector = super()._parse_selector(*args, **kwargs)
        if selector.count("/") > DEEPEST_SCOPE:
            raise NotAllowed(
                f"line {line} has a name in more than {DEEPEST_SCOPE} scopes, "
                f"{shortened(selector, 60)}: use fewer."
            )
        return selector


def check_statements(text: str, allow_imports: Sequence[str]) -> list[str]:
    """Refuses imports that are not allowed; returns the names that a text of `gin_text` binds.

    Imports the modules of brt whose configurables the text names.
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
    def configurable_reference(self, scoped_configurable_name, evaluate):
        return None

    def macro(self, macro_name):
        return None


def read_gin_text(path: str | os.PathLike) -> str:
    """Returns the content of a gin file, checked by `gin_text`.

    path: of a regular UTF-8 file. A link named .gin must lead to a file that ends in .gin.
    """
    path = os.fspath(path)
    if path.endswith(".gin") and not _real(path).endswith(".gin"):
        raise NotAllowed(f"{path} was not read, because gin files end in .gin: rename it.")
    with open_regular(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise NotAllowed(f"{path} has more than {LARGEST_FILE:,} bytes, and is not a gin file.")
    try:
        return gin_text(content.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text, from byte {error.start} on: write it as UTF-8."
        ) from None


def _real(path):
    return os.path.realpath(path.removeprefix("file://"))


class GinReader:
    def __init__(self, allow_imports: Sequence[str] = ()):
        self.allow_imports = tuple(allow_imports)
        self._open: list[str] = []
        self._read = 0
        self._lines = 0

    @contextlib.contextmanager
    def opened(self, path: str | os.PathLike) -> Iterator[str]:
        known = _real(os.fspath(path))
        if known in self._open:
            raise NotAllowed(f"{path} includes itself: leave one of the `include` lines out.")
        if len(self._open) > DEEPEST_INCLUDE:
            raise NotAllowed(
                f"{path} is at the end of more than {DEEPEST_INCLUDE} nested includes: put the "
                "bindings into fewer files."
            )
        if self._open:
            self._read += 1
        if self._read > MOST_FILES:
            raise NotAllowed(
                f"{path} is one of more than {MOST_FILES:,} included files: put the bindings into "
                "fewer files."
            )
        text = read_gin_text(path)
        self._lines += text.count("\n")
        if self._lines > MOST_LINES:
            raise NotAllowed(
                f"{path} brings the config to more than {MOST_LINES:,} lines: bind fewer values."
            )
        self._open.append(known)
        try:
            yield text
        finally:
            self._open.pop()

    @contextlib.contextmanager
    def __call__(self, path: str) -> Iterator[TextIO]:
        with self.opened(path) as text:
            check_statements(text, self.allow_imports)
            yield io.StringIO(text)
