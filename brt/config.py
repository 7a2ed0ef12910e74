"""Gin: parses and checks files and bindings.

Unlike gin, refuses unread bindings, unread macros and, with an explanation, unquoted strings.
"""

import contextlib
import copy
import io
import os
from collections.abc import Sequence

import gin

from brt.bindings import gin_private
from brt.bindings.bound_values import check_bound_values
from brt.bindings.errors import ConfigError, explained
from brt.bindings.gin_files import check_statements, gin_text
from brt.bindings.read_bindings import bound_by_flags
from brt.bindings.registry import register
from brt.checks import shortened
from brt.storage.shipped import gin_folders


def split_flags(argv: Sequence[str]) -> list[str]:
    """Rewrites `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`, which absl can parse."""
    prefix = "--gin."
    return [
        "--gin_bindings=" + argument.removeprefix(prefix).replace("=", " = ", 1)
        if argument.startswith(prefix)
        else argument
        for argument in argv
    ]


def parse(
    gin_files: Sequence[str | os.PathLike] = (),
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
) -> None:
    """Clears gin, then reads files in order and bindings after them.

    Args:
        gin_files: paths, or several joined by `+`, as in `SYSTEM.gin+CORPUS.gin`; their includes
            are looked up in the working directory, the parent of `configs/`, `configs/` and
            `search_paths`.
        bindings: lines such as `RecurrentCell.gate = "lstm"`.
        allow_imports: modules and packages outside brt whose code the files and bindings may run.
    """
    sizes: list[int] = []

    def opened(path):
        text = gin_text(path, sizes)
        check_statements(text, allow_imports)
        return io.StringIO(text)

    register("Trainer")
    gin.clear_config()
    gin_private.read_files_with(opened, [*map(str, gin_folders()), *search_paths])
    for file in (file for joined in gin_files for file in split_files(joined)):
        if not file.strip():
            raise ConfigError("A --gin_file is empty: write --gin_file=PATH.")
        with explained(f"In {file}", file=file):
            gin.parse_config_file(file)
    bound_by_flags.clear()
    for binding in bindings:
        if not binding.strip():
            raise ConfigError("A binding is empty: write --gin.NAME=VALUE.")
        with explained(f"In the binding {shortened(repr(binding))}", binding):
            bound_by_flags.update(check_statements(binding, allow_imports))
            gin.parse_config(binding)
    with explained("In the configuration"):
        gin.finalize()
    gin_private.unlock()
    try:
        check_bound_values(allow_imports)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def evaluate_macros(missing: int | None = None) -> None:
    """Binds macros to the values of calls, `vocabulary_size = @corpus_vocabulary_size()`.

    A call that fails stays, because its file may be on another machine.

    missing: the number of a call whose file is yet to be made.
    """
    for (_, selector), bound in gin_private.bound().items():
        value = bound.get("value")
        if selector == "gin.macro" and isinstance(value, gin_private.Reference):
            number = missing
            with contextlib.suppress(OSError, ValueError, ImportError, TypeError, RuntimeError):
                number = copy.deepcopy(value)  # a copy of a call is its value
            if isinstance(number, int):
                bound["value"] = number


def split_files(joined: str | os.PathLike) -> list[str]:
    return [str(joined)] if os.path.isfile(joined) else str(joined).split("+")
