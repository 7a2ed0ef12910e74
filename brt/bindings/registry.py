"""Lists brt's configurables and the parameters that gin may bind, with types and defaults."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import gin

from brt.bindings.bound_values import parameters_of
from brt.bindings.registration import register, register_all
from brt.checks import stands_alone


def known_names() -> dict[str, list[str]]:
    """Returns brt's configurables, each with the parameters that gin may bind."""
    register_all()
    return registered_names()


def registered_names():
    return {name: bindable(entry) for name, entry in entries("brt")}


def entries(package: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yields names and entries of gin's registry, of a package or of all but gin itself."""
    for selector, entry in gin.config._REGISTRY.items():  # no public listing in gin 0.5
        root = (entry.module or "").split(".")[0]
        if root == package or (package is None and root != "gin"):
            yield selector.rsplit(".", 1)[-1], entry


def configurable_class(name: str) -> type | None:
    register(name)
    entries = gin.config._REGISTRY.get_all_matches(name)
    return next((entry.wrapped for entry in entries if inspect.isclass(entry.wrapped)), None)


def bindable(entry):
    return [
        name
        for name, parameter in parameters_of(entry).items()
        if name != "self" and name not in (entry.denylist or ())
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def declarations() -> dict[str, Any]:
    """Returns the annotation of every parameter that gin may bind: of `Trainer.steps`, `Count`."""
    register_all()
    return _declarations(len(gin.config._REGISTRY))


@functools.lru_cache(maxsize=1)
def _declarations(registered):
    return {
        f"{owner}.{name}": declared
        for owner, entry in entries("brt")
        for name in bindable(entry)
        if (declared := parameters_of(entry)[name].annotation) is not inspect.Parameter.empty
    }


def as_declared(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns bindings with `(9,)` where a tuple is bound to 9, as `parse` binds them."""
    declared = declarations()
    return {
        name: (value,) if stands_alone(declared.get(name.rpartition("/")[2], Any), value) else value
        for name, value in settings.items()
    }


@functools.cache
def default(name: str) -> Any:
    """Returns the value of a binding, `Trainer.stream`, that nothing binds.

    `gin.REQUIRED` where it has none, or where brt has no such configurable or parameter.
    """
    configurable, _, parameter = name.rpartition(".")
    register(configurable)
    entry = dict(entries("brt")).get(configurable)
    declared = parameters_of(entry).get(parameter) if entry else None
    if declared is None or declared.default is inspect.Parameter.empty:
        return gin.REQUIRED
    return declared.default
