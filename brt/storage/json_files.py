"""Reads all JSON; an error names the file, the wrong field and the remedy."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from brt.checks import MOST, allows, words_for
from brt.storage.regular_files import open_regular, read_bytes

SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN = 60
MOST_BYTES = 2**28


class DamagedFile(ValueError):
    """A file does not have the fields that its reader needs."""


class Fields(NamedTuple):
    """A JSON object with these fields, and any others.

    required, optional: the type of each field: an annotation of `brt.checks.allows`, `Fields`, or
        `[Fields(...)]` for a list of objects.
    """

    required: Mapping[str, Any]
    optional: Mapping[str, Any] = {}


def read_json(path: str | os.PathLike, expected: Any, advice: str, most: int = MOST_BYTES) -> Any:
    """Returns the content of a JSON file, or raises `DamagedFile`, also for a field that is twice.

    Args:
        path: of a regular file.
        expected: its type, as of a field of `Fields`.
        advice: remedy for a damaged file, as in "prepare it again".
        most: bytes of the largest file on a disk that is read.
    """
    data = read_bytes(path, most)
    return parse_json(data, expected, os.fspath(path), advice, _unique)


def read_json_lines(path: str | os.PathLike, expected: Any, advice: str) -> Iterator[Any]:
    """Yields the content of each line of a file; arguments as of `read_json`."""
    known: Shape | None = None
    with open_regular(path) as file:
        for number, line in enumerate(file, 1):
            try:
                content = json.loads(line)
                shape = _shape(content)
            except (ValueError, RecursionError):
                shape = None
            # Checking fields takes 15 us a line and parsing 2.5: similar lines are checked once.
            if shape is None or shape != known:
                where = f"line {number:,} of {os.fspath(path)}"
                content = parse_json(line, expected, where, advice)
                known = shape
            yield content


Shape = tuple[tuple[str, type, bool], ...]
"""Name, type and truth value of each field, if all are texts, nulls or integers up to `MOST`."""


def _shape(content: Any) -> Shape | None:
    if type(content) is not dict:
        return None
    shape = []
    for name, value in content.items():
        kind = type(value)
        if not (kind is str or value is None or (kind is int and 0 <= value <= MOST)):
            return None
        shape.append((name, kind, bool(value)))
    return tuple(shape)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!a:.{SHOWN}} is in it twice")
    return content


def parse_json(data: bytes | str, expected: Any, where: str, advice: str, hook: Any = None) -> Any:
    """Returns the content of a JSON text from `where`; other arguments as of `read_json`.

    hook: makes the value of an object from its pairs.
    """
    try:
        content = json.loads(data, object_pairs_hook=hook)
        wrong = misfit(expected, content)
    except UnicodeDecodeError:
        wrong = "it is not UTF-8 text"
    except ValueError as error:
        wrong = f"it is not JSON ({error})"
    except RecursionError:
        wrong = "its brackets lie too deep in one another"
    if wrong:
        raise DamagedFile(f"{where} is damaged, as {wrong}: {advice}.")
    return content


def misfit(expected: Any, value: Any, name: str = "") -> str:
    """Returns which field of a JSON value has another type, or "".

    Args:
        expected: type, as of a field of `Fields`.
        value: of JSON.
        name: of the field.
    """
    called = name or "it"
    if isinstance(expected, Fields):
        if not isinstance(value, dict):
            return f"{called} is not an object with fields"
        for field in expected.required:
            if field not in value:
                return f"{called} has no {field!r}"
        fields = {**expected.required, **expected.optional}
        present = ((f, f"{name}.{f}".lstrip(".")) for f in fields if f in value)
        return _first(misfit(fields[field], value[field], path) for field, path in present)
    if isinstance(expected, list):
        if not isinstance(value, list):
            return f"{called} is not a list"
        return _first(misfit(expected[0], one, f"{name}[{i}]") for i, one in enumerate(value))
    if allows(expected, value):
        return ""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return f"{name or 'its content'} = {shown} must be {words_for(expected, value)}"


def bad_text(content: Any, nul_is_bad: bool = True) -> str:
    """Returns which text of JSON content has NUL, which is in no path, or a lone surrogate."""
    todo = [("", content)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, str):
            has_nul = nul_is_bad and "\0" in value
            if has_nul or SURROGATE.search(value):
                what = "NUL" if has_nul else "half a character (a lone surrogate)"
                return f"{name or 'its content'} = {value!a:.{SHOWN}} holds {what}"
        elif isinstance(value, dict):
            todo += [(f"a name in {name or 'it'}", key) for key in value]
            todo += [(f"{name}.{key}".lstrip("."), one) for key, one in value.items()]
        elif isinstance(value, list):
            todo += [(f"{name}[{i}]", one) for i, one in enumerate(value)]
    return ""


def _first(sentences: Iterable[str]) -> str:
    return next((sentence for sentence in sentences if sentence), "")
