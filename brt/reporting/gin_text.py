"""Gin files as data: read, changed and written back, with nothing in them carried out."""

import os
import pathlib
from collections.abc import Iterable
from typing import Any

from gin import config_parser

from brt.bindings.gin_files import read_gin_text
from brt.storage.paths import is_remote
from brt.storage.shipped import configs_root, gin_folders

ROOT = configs_root()
"""The folder that holds configs/."""


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
    """Returns the bindings of a gin text, `RecurrentCell.gate` to "fixed"; includes are followed.

    Raises:
        SyntaxError: as gin's parser.
        FileNotFoundError: an included file that is neither here, nor beside configs/ or inside.
    """
    settings: dict[str, Any] = {}
    for statement in config_parser.ConfigParser(text, _AsText()):
        if isinstance(statement, config_parser.IncludeStatement):
            settings |= read_gin(_text(statement.filename, included=True))
        elif isinstance(statement, config_parser.BindingStatement):
            name = statement.selector.rsplit(".", 1)[-1]
            name = f"{statement.scope}/{name}" if statement.scope else name
            key = f"{name}.{statement.arg_name}" if statement.arg_name else name
            settings[key] = statement.value
    return settings


def read_gin_file(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the bindings of a gin file, looked up here, beside configs/ and inside of it."""
    return read_gin(_text(path))


def _text(path, included=False):
    if not is_remote(path):
        places = (pathlib.Path(), *gin_folders())
        found = (place / path for place in places if os.path.lexists(place / path))
        path = next(found, ROOT / path)
    return read_gin_text(path, included)


def read_gin_files(paths: Iterable[str]) -> dict:
    """Returns the bindings of several gin files, later ones after earlier ones."""
    settings: dict[str, Any] = {}
    for path in paths:
        settings |= read_gin_file(path)
    return settings


def resolved(settings: dict) -> dict:
    """The settings with each macro's value in its place, and without the macros themselves.

    A macro that has no value stays as it is.
    """
    return {name: _value(value, settings) for name, value in settings.items() if "." in name}


def _value(value, settings):
    if isinstance(value, list | tuple):
        return type(value)(_value(entry, settings) for entry in value)
    if isinstance(value, dict):
        return {key: _value(entry, settings) for key, entry in value.items()}
    if isinstance(value, Reference) and value.startswith("%") and value[1:] in settings:
        return _value(settings[value[1:]], settings)
    return value


def write_gin(settings: dict[str, Any]) -> str:
    """Returns a gin text with these bindings."""
    return "".join(f"{name} = {value!r}\n" for name, value in settings.items())


def reachable(settings: dict[str, Any], name: str) -> set[str]:
    """Returns the bindings that the value of a binding depends on, itself included.

    `Trainer.corpus = @Corpus()` brings all `Corpus.` bindings, and what these refer to.
    """
    found = {name} & settings.keys()
    todo = [settings.get(name)]
    while todo:
        value = todo.pop()
        if isinstance(value, list | tuple):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, Reference):
            target = value.strip("@%()").rsplit(".", 1)[-1]
            for key in settings.keys() - found:
                if key == target or key.startswith(f"{target}."):
                    found.add(key)
                    todo.append(settings[key])
    return found
