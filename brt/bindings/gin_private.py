"""Private parts of gin-config 0.5 that brt uses; no other module names them."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gin import config

from brt.storage.paths import is_remote_file

Bindings = dict[tuple[str, str], dict[str, Any]]
"""Values by parameter, by (scope, configurable); a macro's by "value", by (name, "gin.macro")."""
Reference = config.ConfigurableReference


def bound() -> Bindings:
    """Returns gin's dict of all bindings, not a copy."""
    return config._CONFIG


def read() -> Bindings:
    """Returns all values, bound or default, that calls have read."""
    return config._OPERATIVE_CONFIG


def bound_in(scopes: Sequence[str], selector: str) -> dict[str, Any]:
    return config._get_bindings(selector, list(scopes))


def registered() -> Iterator[tuple[str, Any]]:
    """Yields name and entry of every configurable except gin's own."""
    for selector, entry in config._REGISTRY.items():
        if (entry.module or "").split(".")[0] != "gin":
            yield selector.rpartition(".")[2], entry


def entry_of(selector: str) -> Any:
    return config._REGISTRY.get(selector)


def entries_of(name: str) -> list[Any]:
    """Returns the entries of all configurables of that name, in whatever module."""
    return config._REGISTRY.get_all_matches(name)


def read_files_with(reader: Callable, folders: Sequence[str]) -> None:
    """Has gin read all files by `reader`, from these folders.

    Gin itself also searches importable packages, and fails at a folder named configs.
    """
    config._FILE_READERS[:] = [(reader, os.path.lexists), (reader, is_remote_file)]
    config._LOCATION_PREFIXES[:] = ["", *folders]


def unlock() -> None:
    """Lets modules that are imported after `gin.finalize` register configurables."""
    config._set_config_is_locked(False)
