"""brt's configurables, and the parameters that gin may bind, with types and defaults.

Modules that define configurables are imported by an index read from their sources.
"""

import functools
import importlib
import importlib.util
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brt.bindings.gin_private import entries_of, registered

PACKAGES = ("models", "pretrained", "data", "training", "evaluation", "studies")
DECORATED = re.compile(
    r"^@(?:gin\.)?configurable(?:\(denylist=\[.*\]\))?\n(?:@.*\n)*(?:class|def) (\w+)", re.MULTILINE
)
"""A class or function under its own name: `@gin.configurable(denylist=["rngs"])`."""


@functools.cache
def modules_by_name() -> Mapping[str, Sequence[str]]:
    """Returns the modules that define each configurable name."""
    index: dict[str, list[str]] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(f"brt.{package}")
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for file in sorted(folder.rglob("*.py")):
                parts = ["brt", package, *file.relative_to(folder).with_suffix("").parts]
                for name in DECORATED.findall(file.read_text(encoding="utf-8")):
                    index.setdefault(name, []).append(".".join(parts).removesuffix(".__init__"))
    return index


def register(text: str) -> None:
    index = modules_by_name()
    for name in {*re.findall(r"\w+", re.sub(r"#.*", "", text))} & index.keys():
        for module in index[name]:
            importlib.import_module(module)


@functools.cache
def register_all() -> None:
    for module in sorted(set().union(*modules_by_name().values())):
        importlib.import_module(module)


def known_names() -> dict[str, list[str]]:
    """Returns brt's configurables with their parameters that gin may bind."""
    register_all()
    return {name: bindable(entry) for name, entry in _entries()}


def _entries():
    return ((name, each) for name, each in registered() if f"{each.module}.".startswith("brt."))


def configurable_class(name: str) -> type | None:
    register(name)
    return next(filter(inspect.isclass, (entry.wrapped for entry in entries_of(name))), None)


def bindable(entry):
    hidden = ("self", *(entry.denylist or ()))
    return [name for name in parameters_of(entry) if name not in hidden]


def parameters_of(entry: Any) -> dict[str, inspect.Parameter]:
    return _parameters(entry.wrapped)


@functools.cache
def _parameters(wrapped):
    # A metaclass may hide a class's parameters.
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    function = getattr(function, "__wrapped__", function)  # `help` is shown another signature
    return dict(inspect.signature(function).parameters)


def declarations() -> dict[str, Any]:
    """Returns parameters' annotations by names such as `Trainer.steps`."""
    register_all()
    return {
        f"{owner}.{name}": declared
        for owner, entry in _entries()
        for name in bindable(entry)
        if (declared := parameters_of(entry)[name].annotation) is not inspect.Parameter.empty
    }


@functools.cache
def default(name: str) -> Any:
    """Returns the default of a parameter by name, as in `Trainer.stream`, if nothing binds it.

    `inspect.Parameter.empty` where it has none, or brt has no such configurable or parameter.
    """
    configurable, _, parameter = name.rpartition(".")
    register(configurable)
    entry = dict(_entries()).get(configurable)
    declared = parameters_of(entry).get(parameter) if entry else None
    return declared.default if declared else inspect.Parameter.empty
