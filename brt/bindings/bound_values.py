"""Checks all bindings, macros and references before anything is built."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from brt.bindings import gin_private
from brt.bindings.gin_files import check_module, name_of
from brt.checks import UNKNOWN, Reference, check, shortened, stands_alone

NAMES_MODULE = ("SeqioText.module",)
"""Bindings that name a module, imported when used."""
MOST_VALUES = 100_000
"""Most values of one config; those of macros and references count at each use."""


class BoundValue(NamedTuple):
    """The value of a binding.

    key, parameter: in gin.
    name: `evaluation/TransformerXL.memory_length`.
    declared: annotation of the parameter.
    value: macros replaced by their values, references by `Reference`.
    written: as in gin.
    """

    key: tuple[str, str]
    parameter: str
    name: str
    declared: Any
    value: Any
    written: Any


def bound_values() -> Iterator[BoundValue]:
    """Yields all values of declared parameters; refuses circles of macros and references."""
    expanded = Expansion(_named)
    for (scope, selector), values in gin_private.bound().items():
        entry = gin_private.entry_of(selector)
        parameters = parameters_of(entry) if entry else {}
        for parameter, written in values.items():
            name = name_of(scope, selector, parameter)
            value = expanded(name, written, (tuple(filter(None, scope.split("/"))), selector))
            if parameter in parameters:
                declared = parameters[parameter].annotation
                yield BoundValue((scope, selector), parameter, name, declared, value, written)


def binding_of(name: str) -> str:
    """Returns the macro that a parameter, `GPT2.vocabulary_size`, is bound to, or its own name."""
    written = (repr(each.written) for each in bound_values() if each.name == name)
    macros = (value.removeprefix("%") for value in written if value.startswith("%"))
    return next(macros, name)


def parameters_of(entry: Any) -> dict[str, inspect.Parameter]:
    return _parameters(entry.wrapped)


@functools.cache
def _parameters(wrapped):
    # A metaclass may hide a class's parameters.
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    function = getattr(function, "__wrapped__", function)  # `help` is shown another signature
    return dict(inspect.signature(function).parameters)


def check_bound_values(allow_imports: Sequence[str] = ()) -> None:
    """Refuses wrong values and circular references; binds `(9,)` where a tuple is bound to 9.

    allow_imports: modules outside brt that a binding may name.
    """
    for each in bound_values():
        declared, value = each.declared, each.value
        if stands_alone(declared, value):
            value = (value,)
            gin_private.bound()[each.key][each.parameter] = (each.written,)
        macro = shortened(repr(each.written))
        check(each.name, value, declared, f" (from {macro})" if macro.startswith("%") else "")
        if each.name.rpartition("/")[2] in NAMES_MODULE and value is not None:
            said = f"{each.name} = {shortened(repr(value))}"
            if not isinstance(value, str):  # a reference's value is not known yet
                raise ValueError(f"{said} must be a module's name, written out.")
            check_module(value, said, allow_imports)


Named = tuple[Any, Any, Any]


class Expansion:
    """Replaces macros by their values, and follows references.

    named: from a value and the key of its configurable to the key of a macro or reference, its
        values, and its replacement (None for these values); None for anything else.
    """

    def __init__(self, named: Callable[[Any, Any], Named | None]):
        self._named = named
        self._left = MOST_VALUES

    def __call__(self, name: str, value: Any, key: Any = None) -> Any:
        try:
            return self._expanded(value, {key: None})
        except RecursionError:
            wrong = "has brackets, macros or references too deep in one another: write it flat"
        except _Refused as error:
            wrong = str(error)
        raise ValueError(f"{name} = {shortened(repr(value))} {wrong}.")

    def _expanded(self, value, inside):
        self._left -= 1
        if self._left < 0:
            raise _Refused(
                f"brings the config to more than {MOST_VALUES:,} values, with each macro's "
                "counted wherever it is read: bind fewer"
            )
        if named := self._named(value, [*inside][-1]):
            key, values, result = named
            if key in inside:
                path = [*filter(None, inside.values()), repr(value)]
                raise _Refused(
                    f"leads back to itself by {', '.join(path)}: bind one of them to something else"
                )
            values = self._expanded(values, {**inside, key: repr(value)})
            return values if result is None else result
        if isinstance(value, tuple | list):
            return type(value)(self._expanded(one, inside) for one in value)
        if isinstance(value, dict):
            return {
                self._expanded(key, inside): self._expanded(one, inside)
                for key, one in value.items()
            }
        return value


class _Refused(Exception): ...


def _named(value, key):
    if not isinstance(value, gin_private.Reference):
        return None
    scopes, selector = tuple(value.scopes) or key[0], value.configurable.selector
    if selector == "gin.macro":
        bound = gin_private.bound().get(value.config_key, {"value": UNKNOWN})["value"]
        return (scopes, selector), bound, None
    result = Reference(repr(value), value.configurable.wrapped, value.evaluate)
    return (scopes, selector), gin_private.bound_in(scopes, selector), result
