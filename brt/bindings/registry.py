"""Lists brt's configurables and the parameters that gin may bind, with types and defaults."""

import functools
import inspect
from typing import Any

from brt.bindings.bound_values import parameters_of
from brt.bindings.gin_private import entries_of, registered
from brt.bindings.registration import register, register_all


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
