"""Checks that a bound value is of the type and in the range that its parameter declares.

Gin passes values on as they were written, and Python takes any string for true. The annotation of
a parameter says what it takes; `allows` compares a value with it, `words_for` says it in words. A
further kind of annotation is one more case in both. Ranges are those of `brt.checks`, and stand in
annotations as `Annotated[int, COUNT]`.
"""

import collections.abc
import inspect
import types
import typing
from typing import Any, NamedTuple

from brt.checks import OneOf

PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, dict, type(None))
"""Types of the values that can be written out in a gin file."""

UNKNOWN = object()
"""Stands for what is known only later."""

MISFIT = 0j
"""A value of a type that no parameter takes."""


class Reference(NamedTuple):
    """A configurable that is bound by reference.

    text: as written, `@Corpus()`.
    named: the class or function.
    called: with brackets, so that the value is what it returns.
    """

    text: str
    named: Any
    called: bool

    def __repr__(self):
        return self.text


WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a tuple",
    list: "a list",
    dict: "a dict, such as {'train': 1}",
    type(None): "None",
    None: "None",
}


def allows(declared: Any, value: Any) -> bool:
    """Tells whether a value is of a declared type, and in its range.

    True and False are no numbers, a whole number is a number, and a list may stand for a tuple.
    What a function returns is known by its annotation; where it has none, it may be anything.
    Annotations of a kind that is not known here allow everything.

    Args:
        declared: an annotation: bool, int, float, str, None, a class, `tuple[int, ...]`,
            `tuple[int, int]`, `list[float]`, `dict[str, int]`, `Callable[..., Model]`, one of them
            with a range, `Annotated[int, COUNT]`, or several of them joined by `|`.
        value: written out in a gin file, a `Reference`, or `UNKNOWN`.
    """
    if value is UNKNOWN or declared is Any:
        return True
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        kind, *ranges = inner
        if not allows(kind, value):
            return False
        return isinstance(value, Reference) or all(each.holds(value) for each in ranges)
    if origin in (types.UnionType, typing.Union):
        return any(allows(one, value) for one in inner)
    if isinstance(value, Reference):
        return _allows_reference(declared, origin, inner, value)
    if origin in (tuple, list, collections.abc.Sequence):
        return _allows_each(origin, inner, value)
    if origin is dict:
        return isinstance(value, dict) and all(
            allows(inner[0], key) and allows(inner[1], one) for key, one in value.items()
        )
    if origin is collections.abc.Callable:
        return not isinstance(value, PLAIN)
    if declared in (None, type(None)):
        return value is None
    if declared in (int, float):
        return isinstance(value, int | declared) and not isinstance(value, bool)
    if declared in (tuple, list):
        return isinstance(value, tuple | list)
    if inspect.isclass(declared) and declared is not inspect.Parameter.empty:
        return isinstance(value, declared) if declared in PLAIN else not isinstance(value, PLAIN)
    return True


def _allows_each(origin, inner, value):
    if not isinstance(value, tuple | list):
        return False
    if origin is not tuple or inner[-1:] == (Ellipsis,):
        return all(allows(inner[0], one) for one in value)
    return len(value) == len(inner) and all(map(allows, inner, value))


def _allows_reference(declared, origin, inner, value):
    if origin is collections.abc.Callable:
        return not value.called and _is_of(_made(value.named), inner[1])
    if not inspect.isclass(origin or declared) or declared is inspect.Parameter.empty:
        return True
    return value.called and _is_of(_made(value.named), origin or declared)


def _made(named):
    """Returns the class of what a class or function returns; None where it is not known."""
    if inspect.isclass(named):
        return named
    made = inspect.get_annotations(named).get("return") if inspect.isroutine(named) else None
    return made if inspect.isclass(made) else None


def _is_of(made, wanted):
    if made is None or not inspect.isclass(wanted):
        return True
    try:
        return issubclass(made, wanted)
    except TypeError:  # a protocol with attributes cannot tell of a class
        return True


def stands_alone(declared: Any, value: Any) -> bool:
    """Tells whether a value stands for a tuple of it alone: `9` for `(9,)` of `tuple[int, ...]`."""
    if allows(declared, value):
        return False
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(stands_alone(one, value) for one in inner)
    return origin is tuple and inner[-1:] == (Ellipsis,) and allows(inner[0], value)


def words_for(declared: Any, value: Any) -> str:
    """Returns what a declared type takes, in words: "a whole number or None".

    value: what is not allowed. If its type is, the words are those of the range.
    """
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        if isinstance(inner[1], OneOf) or allows(inner[0], value):
            return inner[1].words
        return words_for(inner[0], value)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(words_for(one, value) for one in inner)
    if origin is dict:
        return f"a dict with {_of_each(inner[1], value)} for each name"
    if origin is collections.abc.Callable:
        return f"what makes {_one(inner[1])}, by reference, as @NAME"
    if origin in (list, collections.abc.Sequence) or inner[-1:] == (Ellipsis,):
        called = "tuple" if origin is tuple else "list"
        return f"a {called} with {_of_each(inner[0], value)} in each place"
    if origin is tuple:
        words = ", ".join(_of_each(one, value) for one in inner)
        return f"a tuple of {len(inner)}: {words}"
    if declared in WORDS:
        return WORDS[declared]
    return f"{_one(declared)}, which a reference gives: @NAME()"


def _of_each(declared, value):
    """Words for what is in a list, by the first that may not be in it."""
    held = value.values() if isinstance(value, dict) else value
    held = held if isinstance(value, dict | list | tuple) else ()
    return words_for(declared, next((one for one in held if not allows(declared, one)), MISFIT))


def _one(declared):
    """Returns the name of a class with its article."""
    name = getattr(declared, "__name__", str(declared)).rpartition(".")[2]
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def advice(declared: Any, value: Any) -> str:
    """Returns how a value that is not allowed is to be written, where that can be told."""
    if isinstance(value, Reference):
        kinds = [typing.get_origin(one) for one in (declared, *typing.get_args(declared))]
        if value.called and collections.abc.Callable in kinds:
            return f": write {value.text.removesuffix('()')}, no brackets"
        return ""
    taken = [_without_range(one) for one in typing.get_args(declared) or (declared,)]
    taken.append(_without_range(declared))
    if isinstance(value, str) and str not in taken:
        return ", without quotes"
    if isinstance(value, float) and int in taken:
        return ", without a point"
    return ""


def _without_range(declared):
    annotated = typing.get_origin(declared) is typing.Annotated
    return typing.get_args(declared)[0] if annotated else declared
