"""Checks of everything gin is bound to, before anything is built of it.

A value has to be of the type and in the range that its parameter declares (`brt.checks`), whether
it is written out, stands behind a macro, or is given by a reference.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gin

from brt.bindings.gin_files import check_module
from brt.checks import UNKNOWN, Reference, check, shortened, stands_alone

NAMES_MODULE = ("SeqioText.module",)
"""Bindings whose value is a module that is imported when they are used."""

MOST_VALUES = 100_000
"""Numbers, strings and brackets of one config, each macro's value counted wherever it is read."""
DEEPEST_VALUE = 100
"""Brackets and macros inside one another."""
MOST_BUILT = 10_000
"""Configurables that a reference builds, with all that these are given."""


class BoundValue(NamedTuple):
    """What a parameter is bound to.

    key, parameter: of the binding, as gin has them.
    name: of the binding, `evaluation/TransformerXL.memory_length`.
    declared: the annotation of the parameter.
    value: with macros replaced by theirs, and references by `Reference`.
    written: as gin has it.
    """

    key: tuple[str, str]
    parameter: str
    name: str
    declared: Any
    value: Any
    written: Any


def bound_values() -> Iterator[BoundValue]:
    """Yields what is bound of the parameters that configurables have.

    Raises:
        ValueError: a macro is its own value, or the values are too many.
    """
    expansion = Expansion(_macro, _reference)
    for (scope, selector), bound in gin.config._CONFIG.items():
        entry = gin.config._REGISTRY.get(selector)
        parameters = parameters_of(entry) if entry else {}
        for parameter, written in bound.items():
            name = f"{entry.name if entry else selector}.{parameter}"
            name = f"{scope}/{name}" if scope else name
            name = scope if selector == "gin.macro" else name
            value = expansion(name, written)
            if parameter in parameters:
                declared = parameters[parameter].annotation
                yield BoundValue((scope, selector), parameter, name, declared, value, written)


def binding_of(name: str) -> str:
    """Returns what a user binds to change a parameter: the macro it is bound to, or its own name.

    name: `GPT2.vocabulary_size`, for example.
    """
    written = (repr(bound.written) for bound in bound_values() if bound.name == name)
    macros = (value.removeprefix("%") for value in written if value.startswith("%"))
    return next(macros, name)


def parameters_of(entry: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a configurable of gin's registry, by name."""
    return _parameters(entry.wrapped)


@functools.cache
def _parameters(wrapped):
    # A class may hide its parameters behind a metaclass.
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    return dict(inspect.signature(function).parameters)


def check_bound_values(allow_imports: Sequence[str] = ()) -> None:
    """Refuses values that no run can mean, and binds `(9,)` where a tuple is bound to 9.

    Args:
        allow_imports: modules outside brt that a binding may name.

    Raises:
        ValueError: a value is not of the type, or not in the range, that its parameter declares;
            or names a module that is not allowed; or the values are too many; or references lead
            back to where they began, or to too many configurables.
    """
    for bound in bound_values():
        declared, value = bound.declared, bound.value
        if stands_alone(declared, value):
            value = (value,)
            gin.config._CONFIG[bound.key][bound.parameter] = (bound.written,)
        macro = shortened(repr(bound.written))
        source = f" (from {macro})" if macro.startswith("%") else ""
        check(bound.name, value, declared, source)
        if bound.name.rpartition("/")[2] in NAMES_MODULE and value is not None:
            if not isinstance(value, str):  # what a reference gives is not known yet
                raise ValueError(
                    f"{bound.name} = {shortened(repr(value))} must be a module's name, written out."
                )
            check_module(value, f"{bound.name} = {shortened(repr(value))}", allow_imports)
    _check_circles()


class Expansion:
    """Puts values in the place of macros, as many as a config can mean.

    Args:
        macro: returns the key and the value of what is a macro, and None for anything else.
        leaf: returns what stands for a value without parts.
    """

    def __init__(
        self,
        macro: Callable[[Any], tuple[str, Any] | None],
        leaf: Callable[[Any], Any] = lambda value: value,
    ):
        self._macro = macro
        self._leaf = leaf
        self._left = MOST_VALUES

    def __call__(self, name: str, value: Any) -> Any:
        """Returns the value of a binding with all macros replaced.

        Raises:
            ValueError: a macro is its own value; or brackets lie too deep; or this config's values
                are more than `MOST_VALUES`, this one's included.
        """
        return self._replaced(f"{name} = {shortened(repr(value))}", value, (), 0)

    def _replaced(self, name, value, inside, depth):
        self._left -= 1
        if self._left < 0:
            raise ValueError(
                f"{name} brings the config to more than {MOST_VALUES:,} "
                "values, each macro's counted wherever it is read: bind fewer."
            )
        if depth > DEEPEST_VALUE:
            raise ValueError(
                f"{name} has more than {DEEPEST_VALUE} brackets and macros inside one another: "
                "write it flat."
            )

        def part(one, inside=inside):
            return self._replaced(name, one, inside, depth + 1)

        if found := self._macro(value):
            key, bound = found
            if key in inside:
                raise ValueError(
                    f"The macro {value!r} is its own value: give it a value of another."
                )
            return part(bound, (*inside, key))
        if isinstance(value, tuple | list):
            return type(value)(part(one) for one in value)
        if isinstance(value, dict):
            return {part(key): part(one) for key, one in value.items()}
        return self._leaf(value)


def _macro(value):
    if isinstance(value, gin.config.ConfigurableReference) and repr(value).startswith("%"):
        bound = gin.config._CONFIG.get(value.config_key, {"value": UNKNOWN})["value"]
        return value.config_key, bound
    return None


def _reference(value):
    if isinstance(value, gin.config.ConfigurableReference):
        return Reference(repr(value), value.configurable.wrapped, value.evaluate)
    return value


def _check_circles():
    """Refuses references that need themselves to be built, or build without end."""
    built: dict[tuple[tuple[str, ...], str], int] = {}
    for scope, selector in list(gin.config._CONFIG):
        _follow((tuple(scope.split("/")) if scope else (), selector), built, {})


def _follow(node, built, way):
    """Follows the references of a configurable in a scope; returns how many of them are built.

    built: what was returned before, by configurable and scope.
    way: the bindings that led here, by the configurable and scope that has them.
    """
    if node in built:
        return built[node]
    scopes, selector = node
    count = 1
    if len(way) > DEEPEST_VALUE:
        raise ValueError(
            f"{_bindings(list(way.values())[-2:])} come after more than {DEEPEST_VALUE} references "
            "that lead to one another: bind fewer."
        )
    for parameter, written in gin.config._get_bindings(selector, list(scopes)).items():
        further = {**way, node: (selector, parameter, written)}
        for reference in _references(written):
            child = tuple(reference.scopes) or scopes, reference.configurable.selector
            if child in further:
                circle = list(further.values())[list(further).index(child) :]
                raise ValueError(
                    f"{_bindings(circle)} lead back to where they begin: bind one of them to "
                    "something else."
                )
            count += _follow(child, built, further)
            if count > MOST_BUILT:
                raise ValueError(
                    f"{_bindings([further[node]])} builds more than {MOST_BUILT:,} configurables, "
                    "with all that its references name: bind fewer."
                )
    built[node] = count
    return count


def _bindings(found):
    return " and ".join(
        f"{selector.rpartition('.')[2]}.{parameter} = {shortened(repr(written))}"
        for selector, parameter, written in found
    )


def _references(value):
    if isinstance(value, gin.config.ConfigurableReference):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _references(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _references(one)
