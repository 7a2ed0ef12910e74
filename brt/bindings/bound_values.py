"""Checks of everything gin is bound to, before anything is built of it.

A value has to be of the type and in the range that its parameter declares (`declared_types`,
`brt.checks`), whether it is written out, stands behind a macro, or is given by a reference.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gin

from brt.bindings.declared_types import UNKNOWN, Reference, advice, allows, words_for
from brt.bindings.gin_files import check_module

NAMES_MODULE = ("SeqioText.module",)
"""Bindings whose value is a module that is imported when they are used."""


class BoundValue(NamedTuple):
    """What a parameter is bound to.

    name: of the binding, `evaluation/TransformerXL.memory_length`.
    declared: the annotation of the parameter.
    value: with macros replaced by theirs, and references by `Reference`.
    written: as gin has it.
    """

    name: str
    declared: Any
    value: Any
    written: Any


def bound_values() -> Iterator[BoundValue]:
    """Yields what is bound of the parameters that configurables have.

    Raises:
        ValueError: a macro is its own value.
    """
    for (scope, selector), bound in gin.config._CONFIG.items():
        entry = gin.config._REGISTRY.get(selector)
        parameters = parameters_of(entry) if entry else {}
        for parameter, written in bound.items():
            if parameter in parameters:
                name = f"{entry.name}.{parameter}"
                name = f"{scope}/{name}" if scope else name
                value = _replaced(written)
                yield BoundValue(name, parameters[parameter].annotation, value, written)


def parameters_of(entry: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a configurable of gin's registry, by name."""
    wrapped = entry.wrapped  # a class may hide its parameters behind a metaclass
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    return dict(inspect.signature(function).parameters)


def check_bound_values(allow_imports: Sequence[str] = ()) -> None:
    """Refuses values that no run can mean.

    Args:
        allow_imports: modules outside brt that a binding may name.

    Raises:
        ValueError: a value is not of the type, or not in the range, that its parameter declares;
            or names a module that is not allowed; or references lead back to where they began.
    """
    for bound in bound_values():
        declared, value = bound.declared, bound.value
        if declared is not inspect.Parameter.empty and not allows(declared, value):
            macro = repr(bound.written) if repr(bound.written).startswith("%") else ""
            raise ValueError(
                f"{bound.name} = {value!r}{macro and f' (from {macro})'} must be "
                f"{words_for(declared, value)}{advice(declared, value)}."
            )
        if bound.name.rpartition("/")[2] in NAMES_MODULE and value is not None:
            if not isinstance(value, str):  # what a reference gives is not known yet
                raise ValueError(f"{bound.name} = {value!r} must be a module's name, written out.")
            check_module(value, f"{bound.name} = {value!r}", allow_imports)
    _check_circles()


def _replaced(value, inside=()):
    """Returns a bound value with macros replaced by theirs, and references by `Reference`."""
    if isinstance(value, gin.config.ConfigurableReference):
        if not repr(value).startswith("%"):
            return Reference(repr(value), value.configurable.wrapped, value.evaluate)
        if value.config_key in inside:
            raise ValueError(f"The macro {value!r} is its own value: give it a value of another.")
        bound = gin.config._CONFIG.get(value.config_key, {"value": UNKNOWN})["value"]
        return _replaced(bound, (*inside, value.config_key))
    if isinstance(value, tuple | list):
        return type(value)(_replaced(one, inside) for one in value)
    if isinstance(value, dict):
        return {_replaced(key, inside): _replaced(one, inside) for key, one in value.items()}
    return value


def _check_circles():
    """Refuses references that need themselves to be built."""
    finished: set[tuple[tuple[str, ...], str]] = set()
    for scope, selector in list(gin.config._CONFIG):
        _follow((tuple(scope.split("/")) if scope else (), selector), finished, {})


def _follow(node, finished, way):
    """Follows the references of a configurable in a scope.

    way: the bindings that led here, by the configurable and scope that has them.
    """
    if node in finished:
        return
    scopes, selector = node
    for parameter, written in gin.config._get_bindings(selector, list(scopes)).items():
        for reference in _references(written):
            name = f"{selector.rpartition('.')[2]}.{parameter} = {written!r}"
            further = {**way, node: name}
            child = tuple(reference.scopes) or scopes, reference.configurable.selector
            if child in further:
                circle = list(further.values())[list(further).index(child) :]
                raise ValueError(
                    f"{' and '.join(circle)} lead back to where they begin: bind one of them to "
                    "something else."
                )
            _follow(child, finished, further)
    finished.add(node)


def _references(value):
    if isinstance(value, gin.config.ConfigurableReference):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _references(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _references(one)
