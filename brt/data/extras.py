"""Imports of libraries that only some corpora and vocabularies need, when they are needed."""

import importlib
from types import ModuleType


class MissingExtra(ImportError):
    """A library of an extra is not installed; the message says how to install it."""


def extra_library(module: str, user: str, extra: str) -> ModuleType:
    """Imports a library that an extra of brt brings.

    Args:
        module: its name.
        user: what needs it, for the message.
        extra: name of the extra.

    Raises:
        MissingExtra: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f'{user} needs {module} ({error}): install it with `pip install -e ".[{extra}]"`.'
        ) from None
