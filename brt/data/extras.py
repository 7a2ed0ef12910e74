"""Imports of optional libraries."""

import importlib.util
from types import ModuleType

from brt.storage.shipped import install_command


class MissingExtra(ImportError): ...


def extra_library(module: str, user: str, extra: str) -> ModuleType:
    """Imports an extra's library; the error names `user`, which needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, user, extra, error) from None


def check_extra(module: str, user: str, extra: str) -> None:
    """As `extra_library`, but only checks that the library is installed."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, user, extra, "it is not installed")


def _missing(module, user, extra, why):
    return MissingExtra(
        f"{user} needs {module} ({why}): install it with `{install_command(extra)}`."
    )
