"""Reads gin files: regular files of bounded size, and imports of allowed modules only.

Configs may come from others and gin can run code (imports, dynamic registration), so every file is
checked before gin parses it.
"""

import os
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

from gin import config_parser

from brt.bindings.registry import register
from brt.storage.paths import is_remote
from brt.storage.regular_files import read_text

PACKAGE = "brt"
LARGEST = 2**15
"""Most bytes of a config's files, each counted wherever it is included: gin takes quadratic time
for some texts. The configs of the archived runs have up to 3,000.
"""
SMALLEST = 2**8
"""Least bytes that a file counts as."""


class NotAllowed(ValueError):
    """A gin text would run code, or read a file, without permission."""


def check_module(module: str, what: str, allow_imports: Sequence[str]) -> None:
    """Refuses a module outside brt and the named modules and packages."""
    if not is_part(module, (PACKAGE, *allow_imports)):
        raise NotAllowed(
            f"{what} runs the code of {module}, which is not part of brt: if you trust it, add "
            f"--allow_imports={','.join([*allow_imports, module])}."
        )


def is_part(module: str, packages: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in packages)


class ReferenceText(str):
    """A reference or macro as it is written: `@Corpus()`, `%LENGTH`."""

    def __repr__(self):
        return str(self)


class _AsText(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name, evaluate):
        return ReferenceText(f"@{scoped_configurable_name}{'()' * evaluate}")

    def macro(self, macro_name):
        return ReferenceText(f"%{macro_name}")


def statements(text: str) -> Iterator[Any]:
    """Yields the statements of a gin text; refuses includes of URLs and other files."""
    try:
        for statement in config_parser.ConfigParser(text, _AsText()):
            if isinstance(statement, config_parser.IncludeStatement):
                _check_include(statement.filename)
            yield statement
    except (RecursionError, tokenize.TokenError) as error:
        if isinstance(error, tokenize.TokenError) and "nested" not in str(error):
            raise  # Python 3.12's tokenizer refuses 200 brackets
        raise NotAllowed("brackets lie too deep in one another.") from None


def _check_include(name):
    if is_remote(name):
        raise NotAllowed(
            f"`include {name!r}` names a URL, which only a flag may: give it as another "
            "--gin_file, or include a copy of the file."
        )
    if not name.endswith(".gin"):
        raise NotAllowed(f"{name} was not read, because gin files end in .gin: rename it.")


def check_statements(text: str, allow_imports: Sequence[str]) -> list[str]:
    """Refuses imports that are not allowed; returns the names that a gin text binds.

    Imports the modules of brt whose configurables the text names.
    """
    names = []
    register(text)
    for statement in statements(text):
        if isinstance(statement, config_parser.BindingStatement):
            names.append(name_of(statement.scope, statement.selector, statement.arg_name))
        if not isinstance(statement, config_parser.ImportStatement):
            continue
        line = f"`{statement.format()}`"
        if statement.module.split(".")[0] == "__gin__":
            raise NotAllowed(
                f"{line} would let the file call any function there is: leave it out, and mark "
                "what is to be bound with @gin.configurable."
            )
        check_module(statement.module, line, allow_imports)
    return names


def name_of(scope: str, selector: str, parameter: str) -> str:
    if selector == "gin.macro":
        return scope
    name = selector.rpartition(".")[2]
    name = f"{scope}/{name}" if scope else name
    return f"{name}.{parameter}" if parameter else name


def gin_text(path: str | os.PathLike, sizes: list[int]) -> str:
    """Returns the text of a gin file: regular, in UTF-8, of at most `LARGEST` bytes.

    A link named .gin must lead to a file that ends in .gin.

    sizes: of the config's files so far, one for each include; the file's is added.
    """
    path = os.fspath(path)
    real = os.path.realpath(path.removeprefix("file://"))
    if path.endswith(".gin") and not real.endswith(".gin"):
        raise NotAllowed(f"{path} was not read, because gin files end in .gin: rename it.")
    text = read_text(path, LARGEST).replace("\r\n", "\n")
    sizes.append(max(len(text), SMALLEST))
    if sum(sizes) > LARGEST:
        raise NotAllowed(
            f"{path} brings the config to more than {LARGEST:,} bytes, each file counted wherever "
            "it is included (does it include itself?): bind fewer values, in fewer files."
        )
    return text
