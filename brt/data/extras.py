import importlib.util
from types import ModuleType

from brt.storage.shipped import install_command


class MissingExtra(ImportError): ...


def extra_library(module: str, user: str, extra: str) -> ModuleType:
    """Imports a library of an extra; the error names `user`, which needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, user, extra, error) from None


def check_extra(module: str, user: str, extra: str) -> None:
    """Raises the error of `extra_library` if a library is not installed; imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, user, extra, "it is not installed")


def _missing(module, user, extra, why):
    return MissingExtra(
        f"{user} needs {module} ({why}): install it with `{install_command(extra)}`."
    )
