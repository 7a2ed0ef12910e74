"""Checks of all bindings before anything is built.

A value must be of the type and in the range that its parameter declares (`brt.checks`), also if it
comes from a macro or a reference.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gin

from brt.bindings.gin_files import check_module
from brt.checks import UNKNOWN, Reference, check, shortened, stands_alone

NAMES_MODULE = ("SeqioText.module",)
"""Bindings that name a module, which is imported when they are used."""

MOST_VALUES = 100_000
"""Numbers, strings and brackets of one config, each macro's value counted wherever it is read."""
DEEPEST_VALUE = 100
MOST_BUILT = 10_000
"""Configurables that a reference builds, directly and indirectly."""


class BoundValue(NamedTuple):
    """The value of a binding.

    key, parameter: of the binding in gin.
    name: of the binding, `evaluation/TransformerXL.memory_length`.
    declared: the annotation of the parameter.
    value: with macros replaced by theirs, and references by `Reference`.
    written: the value in gin.
    """

    key: tuple[str, str]
    parameter: str
    name: str
    declared: Any
    value: Any
    written: Any


def bound_values() -> Iterator[BoundValue]:
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
    """Returns the macro that a parameter, `GPT2.vocabulary_size`, is bound to, or its own name."""
    written = (repr(bound.written) for bound in bound_values() if bound.name == name)
    macros = (value.removeprefix("%") for value in written if value.startswith("%"))
    return next(macros, name)


def parameters_of(entry: Any) -> dict[str, inspect.Parameter]:
    return _parameters(entry.wrapped)


@functools.cache
def _parameters(wrapped):
    # A class may hide its parameters behind a metaclass.
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    function = getattr(function, "__wrapped__", function)  # `help` is shown another signature
    return dict(inspect.signature(function).parameters)


def check_bound_values(allow_imports: Sequence[str] = ()) -> None:
    """Refuses wrong values and circular references; binds `(9,)` where a tuple is bound to 9.

    allow_imports: modules outside brt that a binding may name.
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
            if not isinstance(value, str):  # the value of a reference is not known yet
                raise ValueError(
                    f"{bound.name} = {shortened(repr(value))} must be a module's name, written out."
                )
            check_module(value, f"{bound.name} = {shortened(repr(value))}", allow_imports)
    built: dict[tuple[tuple[str, ...], str], int] = {}
    for scope, selector in list(gin.config._CONFIG):
        _follow((tuple(scope.split("/")) if scope else (), selector), built, {})


class Expansion:
    """Replaces macros by their values, up to `MOST_VALUES`.

    macro: returns the key and the value of a macro, and None for anything else. leaf: replaces a
    value without parts.
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
        return self._replaced(f"{name} = {shortened(repr(value))}", value, (), 0)

    def _replaced(self, name, value, inside, depth):
        self._left -= 1
        if self._left < 0:
            raise ValueError(
                f"{name} brings the config to more than {MOST_VALUES:,} values, with each macro's "
                "counted wherever it is read: bind fewer."
            )
        if depth > DEEPEST_VALUE:
            raise ValueError(
                f"{name} has more than {DEEPEST_VALUE} nested brackets and macros: write it flat."
            )

        def part(one, inside=inside):
            return self._replaced(name, one, inside, depth + 1)

        if macro := self._macro(value):
            key, bound = macro
            if key in inside:
                raise ValueError(f"The macro {value!r} is its own value: bind it to another one.")
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


def _follow(node, built, path):
    """Returns the number of configurables that one in a scope builds; refuses circles.

    built: earlier results. path: the bindings that led here, by the node that has them.
    """
    if node in built:
        return built[node]
    scopes, selector = node
    count = 1
    if len(path) > DEEPEST_VALUE:
        raise ValueError(
            f"{_bindings(list(path.values())[-2:])} are at the end of more than {DEEPEST_VALUE} "
            "nested references: bind fewer."
        )
    for parameter, written in gin.config._get_bindings(selector, list(scopes)).items():
        further = {**path, node: (selector, parameter, written)}
        for reference in _references(written):
            child = tuple(reference.scopes) or scopes, reference.configurable.selector
            if child in further:
                circle = list(further.values())[list(further).index(child) :]
                raise ValueError(
                    f"{_bindings(circle)} are a circular reference: bind one of them to something "
                    "else."
                )
            count += _follow(child, built, further)
            if count > MOST_BUILT:
                raise ValueError(
                    f"{_bindings([further[node]])} builds more than {MOST_BUILT:,} configurables: "
                    "bind fewer."
                )
    built[node] = count
    return count


def _bindings(bindings):
    return " and ".join(
        f"{selector.rpartition('.')[2]}.{parameter} = {shortened(repr(written))}"
        for selector, parameter, written in bindings
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
