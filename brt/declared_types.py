"""Checks that a bound value is of the type its parameter declares.

Gin passes values on as they were written, and Python takes any string for true. The annotation of
a parameter says what it takes; `allows` compares a value with it, `words_for` says it in words. A
further kind of annotation is one more case in both.
"""

import inspect
import types
import typing
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, dict, type(None))
"""Types of the values that can be written out in a gin file."""

UNKNOWN = object()
"""Stands for what is known only later: what a reference gives."""

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
    """Tells whether a value is of a declared type.

    True and False are no numbers, a whole number is a number, and a list may stand for a tuple.
    Annotations of a kind that is not known here allow everything.

    Args:
        declared: an annotation: bool, int, float, str, None, a class, `tuple[int, ...]`,
            `tuple[int, int]`, `list[float]`, or several of them joined by `|`.
        value: written out in a gin file, or `UNKNOWN`.
    """
    if value is UNKNOWN:
        return True
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(allows(one, value) for one in inner)
    if origin in (tuple, list):
        return _allows_each(origin, inner, value)
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
    if origin is list or inner[-1:] == (Ellipsis,):
        return all(allows(inner[0], one) for one in value)
    return len(value) == len(inner) and all(map(allows, inner, value))


def words_for(declared: Any) -> str:
    """Returns what a declared type takes, in words: "a whole number or None"."""
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(words_for(one) for one in inner)
    if origin is list or inner[-1:] == (Ellipsis,):
        return f"a {origin.__name__} with {words_for(inner[0])} in each place"
    if origin is tuple:
        return f"a tuple of {len(inner)}: {', '.join(words_for(one) for one in inner)}"
    if declared in WORDS:
        return WORDS[declared]
    return f"a {declared.__name__}, which a reference gives: @NAME()"


def advice(declared: Any, value: Any) -> str:
    """Returns how a value that is not allowed is to be written, where that can be told."""
    if isinstance(value, str):
        return ", without quotes"
    taken = typing.get_args(declared) or (declared,)
    if isinstance(value, float) and int in taken:
        return ", without a point"
    return ""
