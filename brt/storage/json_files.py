"""Reads JSON; an error names the file, the wrong field and the remedy."""

import dataclasses
import functools
import json
import os
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import core_schema

from brt.checks import STRICT, Text
from brt.storage.regular_files import open_regular, read_bytes

SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN = 60
MOST_BYTES = 2**28


class DamagedFile(ValueError):
    """A file does not have the fields that its reader needs."""


@dataclasses.dataclass(frozen=True, eq=False)
class Fields:
    """A JSON object with at least these fields.

    required, optional: the type of each field: an annotation for pydantic, `Fields`, or
        `[Fields(...)]` for a list of objects.
    """

    required: Mapping[str, Any]
    optional: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        fields = {
            name: core_schema.typed_dict_field(
                handler.generate_schema(_form(each)), required=name in self.required
            )
            for name, each in {**self.optional, **self.required}.items()
        }
        return core_schema.typed_dict_schema(
            fields, extra_behavior="allow", config={"strict": True}
        )


def _form(expected):
    if isinstance(expected, Fields):
        return Annotated[dict, expected]
    if isinstance(expected, list):
        return list[_form(expected[0])]  # type: ignore[misc]
    if typing.get_origin(expected) is dict:
        return dict[Text, _form(typing.get_args(expected)[1])]  # type: ignore[misc]
    return Text if expected is str else expected


@functools.lru_cache(maxsize=256)
def _adapter(expected):
    return TypeAdapter(_form(expected), config=STRICT)


def read_json(path: str | os.PathLike, expected: Any, advice: str, most: int = MOST_BYTES) -> Any:
    """Returns the content of a JSON file, or raises `DamagedFile`.

    Args:
        advice: remedy for a damaged file, as in "prepare it again".
        most: bytes of the largest file on a disk that is read.
    """
    return parse_json(read_bytes(path, most), expected, os.fspath(path), advice)


def read_json_lines(path: str | os.PathLike, expected: Any, advice: str) -> Iterator[Any]:
    """Yields the content of each line of a file; arguments as of `read_json`."""
    with open_regular(path) as file:
        for number, line in enumerate(file, 1):
            yield parse_json(line, expected, f"line {number:,} of {os.fspath(path)}", advice)


def parse_json(data: bytes | str, expected: Any, where: str, advice: str) -> Any:
    """Returns the content of a JSON text from `where`; other arguments as of `read_json`."""
    try:
        content = json.loads(data)
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


def misfit(expected: Any, value: Any) -> str:
    """Returns a description of a field that has another type, or "".

    Args:
        expected: type, as of a field of `Fields`.
    """
    try:
        _adapter(expected).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        return f"{path!a:.{SHOWN}}: {first['msg']}" if path else first["msg"]
    return ""


def bad_text(content: Any, nul_is_bad: bool = True) -> str:
    """Returns a description of a text in JSON content with a lone surrogate or NUL, or ""."""
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
