"""Gin files as data: read, changed and written back, not executed."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from gin import config_parser

from brt.bindings.bound_values import MOST_VALUES, expanded
from brt.bindings.gin_files import ReferenceText, gin_text, name_of, statements
from brt.storage.paths import is_remote
from brt.storage.shipped import configs_root, gin_folders

ROOT = configs_root()


def read_gin(
    text: str,
    imports: list[str] | None = None,
    search_paths: Sequence[str] = (),
    sizes: list[int] | None = None,
) -> dict[str, Any]:
    """Returns the bindings of a gin text and its includes, `RecurrentCell.gate` to "fixed".

    imports: a list that import lines are added to. search_paths: further folders of includes.
    sizes: of the files read so far (`gin_text`).
    """
    settings: dict[str, Any] = {}
    sizes = [] if sizes is None else sizes
    for statement in statements(text):
        if isinstance(statement, config_parser.IncludeStatement):
            settings |= read_gin_file(statement.filename, imports, search_paths, sizes)
        elif isinstance(statement, config_parser.BindingStatement):
            name = name_of(statement.scope, statement.selector, statement.arg_name)
            settings[name] = statement.value
        elif imports is not None and isinstance(statement, config_parser.ImportStatement):
            imports.append(statement.format())
    return settings


def read_gin_file(
    path: str | os.PathLike,
    imports: list[str] | None = None,
    search_paths: Sequence[str] = (),
    sizes: list[int] | None = None,
) -> dict[str, Any]:
    sizes = [] if sizes is None else sizes
    if not is_remote(path):
        folders = ["", *map(str, gin_folders()), *search_paths]
        files = (pathlib.Path(folder, path) for folder in folders)
        path = next(filter(os.path.lexists, files), ROOT / path)
    return read_gin(gin_text(path, sizes), imports, search_paths, sizes)


def resolved(settings: dict) -> dict:
    """Returns settings with macros replaced by values."""

    def macro(value, replaced):
        name = value[1:] if isinstance(value, ReferenceText) and value.startswith("%") else None
        return replaced(settings[name]) if name in settings else value

    left = iter(range(MOST_VALUES))
    named = {name: value for name, value in settings.items() if "." in name}
    return {name: expanded(name, value, macro, left) for name, value in named.items()}


def write_gin(settings: dict[str, Any], imports: Sequence[str] = ()) -> str:
    lines = *imports, *(f"{name} = {value!r}" for name, value in settings.items())
    return "".join(f"{line}\n" for line in lines)


def reachable(settings: dict[str, Any], name: str) -> set[str]:
    """Returns a binding's name and those that its value depends on.

    `Trainer.corpus = @Corpus()` adds all `Corpus.` bindings, and so on.
    """
    reached: set[str] = set()
    todo = [name]
    while todo:
        name = todo.pop()
        if name in reached or name not in settings:
            continue
        reached.add(name)
        references = re.findall(r"[@%](?:[\w/]*\.)*([\w/]+)", repr(settings[name]))
        todo += [key for key in settings if (key.rpartition(".")[0] or key) in references]
    return reached
