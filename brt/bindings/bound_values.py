"""Checks all bindings, macros and references before anything is built."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from brt.bindings import gin_private
from brt.bindings.gin_files import check_module, name_of
from brt.bindings.registry import parameters_of
from brt.checks import Reference, check, shortened

NAMES_MODULE = ("SeqioText.module",)
"""Bindings that name a module, imported when used."""
MOST_VALUES = 100_000
"""Most values of a config, with those of macros and references at each use: 2^40 take 40 lines."""


class BoundValue(NamedTuple):
    """The value of a binding.

    name: `evaluation/TransformerXL.memory_length`.
    declared: annotation of the parameter.
    value: macros replaced by their values, references by `Reference`.
    written: as in gin.
    """

    name: str
    declared: Any
    value: Any
    written: Any


def bound_values() -> Iterator[BoundValue]:
    """Yields all values of declared parameters; refuses circles of macros and references."""
    left = iter(range(MOST_VALUES))
    for (scope, selector), values in gin_private.bound().items():
        entry = gin_private.entry_of(selector)
        parameters = parameters_of(entry) if entry else {}
        for parameter, written in values.items():
            name = name_of(scope, selector, parameter)
            value = expanded(name, written, _named(scope), left)
            if parameter in parameters:
                declared = parameters[parameter].annotation
                yield BoundValue(name, declared, value, written)


def binding_of(name: str) -> str:
    """Returns the macro that a parameter, `GPT2.vocabulary_size`, is bound to, or its own name."""
    written = (repr(each.written) for each in bound_values() if each.name == name)
    macros = (value.removeprefix("%") for value in written if value.startswith("%"))
    return next(macros, name)


def check_bound_values(allow_imports: Sequence[str] = ()) -> None:
    """Refuses wrong values, and circles of macros and references.

    allow_imports: modules outside brt that a binding may name.
    """
    for each in bound_values():
        declared, value = each.declared, each.value
        macro = shortened(repr(each.written))
        check(each.name, value, declared, f" (from {macro})" if macro.startswith("%") else "")
        if each.name.rpartition("/")[2] in NAMES_MODULE and value is not None:
            said = f"{each.name} = {shortened(repr(value))}"
            if not isinstance(value, str):  # a reference's value is not known yet
                raise ValueError(f"{said} must be a module's name, written out.")
            check_module(value, said, allow_imports)


def expanded(
    name: str,
    value: Any,
    new: Callable[[Any, Callable[[Any], Any]], Any],
    left: Iterator[int],
) -> Any:
    """Returns the value of a binding with each of its parts, in brackets too, replaced.

    new: from a part, and a function that expands the value of a macro, to its replacement.
    left: of `range(MOST_VALUES)`, for all bindings of a config together.

    Raises `ValueError` if macros or references lead back to one another, or represent too many
    values.
    """

    def replaced(value):
        if next(left, None) is None:
            raise ValueError(
                f"{name} brings the config to more than {MOST_VALUES:,} values, with those of "
                "macros and references at each use: bind fewer."
            )
        if isinstance(value, tuple | list):
            return type(value)(replaced(one) for one in value)
        if isinstance(value, dict):
            return {replaced(key): replaced(one) for key, one in value.items()}
        return new(value, replaced)

    try:
        return replaced(value)
    except RecursionError:
        raise ValueError(
            f"{name} = {shortened(repr(value))} leads back to itself by macros or references, or "
            "has brackets too deep in one another: write its value out."
        ) from None


def _named(scope: str) -> Callable[[Any, Callable[[Any], Any]], Any]:
    scopes = [tuple(filter(None, scope.split("/")))]  # a reference without one is read in the last

    def named(value, replaced):
        if not isinstance(value, gin_private.Reference):
            return value
        if value.configurable.selector == "gin.macro":  # gin has refused macros without a value
            return replaced(gin_private.bound()[value.config_key]["value"])
        scopes.append(tuple(value.scopes) or scopes[-1])
        for each in gin_private.bound_in(scopes[-1], value.configurable.selector).values():
            replaced(each)
        scopes.pop()
        return Reference(repr(value), value.configurable.wrapped, value.evaluate)

    return named
