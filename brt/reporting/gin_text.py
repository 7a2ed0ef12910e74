"""Gin files as data: read, changed and written back, but not executed."""

import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from gin import config_parser

from brt.bindings.bound_values import Expansion
from brt.bindings.gin_files import GinReader, gin_text, name_of, statements
from brt.storage.paths import is_remote
from brt.storage.shipped import configs_root, gin_folders

ROOT = configs_root()


class Reference(str):
    """A configurable or a macro, as written: `@Corpus()`, `%width`."""

    def __repr__(self):
        return str(self)


class _AsText(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name, evaluate):
        return Reference(f"@{scoped_configurable_name}{'()' * evaluate}")

    def macro(self, macro_name):
        return Reference(f"%{macro_name}")


def read_gin(text: str) -> dict[str, Any]:
    """Returns the bindings of a gin text and its includes, `RecurrentCell.gate` to "fixed"."""
    return _read_gin(gin_text(text), GinReader())


def _read_gin(text, reader):
    settings: dict[str, Any] = {}
    for statement in statements(text, _AsText()):
        if isinstance(statement, config_parser.IncludeStatement):
            settings |= _read_file(statement.filename, reader)
        elif isinstance(statement, config_parser.BindingStatement):
            settings[name_of(statement)] = statement.value
    return settings


def read_gin_file(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the bindings of a gin file, found here, next to configs/ or inside it."""
    return _read_file(path, GinReader())


def _read_file(path, reader):
    if not is_remote(path):
        places = (pathlib.Path(), *gin_folders())
        found = (place / path for place in places if os.path.lexists(place / path))
        path = next(found, ROOT / path)
    with reader.opened(path) as text:
        return _read_gin(text, reader)


def read_gin_files(paths: Iterable[str]) -> dict:
    """Returns the bindings of several gin files; later files override earlier ones."""
    settings: dict[str, Any] = {}
    for path in paths:
        settings |= read_gin_file(path)
    return settings


def resolved(settings: dict) -> dict:
    """Returns the settings with macros replaced by their values, and without the macros."""

    def macro(value):
        name = value[1:] if isinstance(value, Reference) and value.startswith("%") else None
        return (name, settings[name]) if name in settings else None

    expansion = Expansion(macro)
    return {name: expansion(name, value) for name, value in settings.items() if "." in name}


def write_gin(settings: dict[str, Any]) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in settings.items())


def reachable(settings: dict[str, Any], name: str) -> set[str]:
    """Returns the bindings that the value of a binding depends on, with the binding itself.

    `Trainer.corpus = @Corpus()` adds all `Corpus.` bindings, and those they refer to.
    """
    found: set[str] = set()
    todo = [name]
    while todo:
        name = todo.pop()
        if name in found or name not in settings:
            continue
        found.add(name)
        references = re.findall(r"[@%](?:[\w/]*\.)*([\w/]+)", repr(settings[name]))
        todo += [key for key in settings if (key.rpartition(".")[0] or key) in references]
    return found
