"""Imports of optional libraries."""

import importlib
from types import ModuleType

from brt.storage.shipped import install_command


class MissingExtra(ImportError): ...


def extra_library(module: str, user: str, extra: str) -> ModuleType:
    """Imports a library of an extra; the error names `user`, which needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{user} needs {module} ({error}): install it with `{install_command(extra)}`."
        ) from None
