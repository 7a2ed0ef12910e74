"""A JSON record that lacks a field, or has one of another type, is refused by the field's name."""

import json
from typing import Annotated

import pytest
from pydantic import Strict

from brt.checks import Count, CountFrom0, Name, Rule
from brt.storage.json_files import DamagedFile, Fields, read_json, read_json_lines

IN_FOLDER = Annotated[str, Rule("a file of the folder", lambda name: "/" not in name)]
PART = Fields({"tokens": Count}, {"title": str})
RECORD = Fields(
    {"format": int, "name": Name},
    {
        "rate": float,
        "parts": [PART],
        "hashes": dict[str, str],
        "pairs": list[Annotated[tuple[str, bool], Strict(False)]],
        "file": IN_FOLDER,
    },
)
WHOLE = {
    "format": 1,
    "name": "a",
    "rate": 2,
    "parts": [{"tokens": 3, "title": "\ud800"}],
    "hashes": {"a": "b"},
    "pairs": [["a", True]],
    "other": [None],
}


def told(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DamagedFile) as caught:
        read_json(path, RECORD, "copy it again")
    assert str(path) in str(caught.value) and "copy it again" in str(caught.value)
    return str(caught.value)


def test_a_whole_record_is_read_as_it_is(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(WHOLE))
    assert read_json(tmp_path / "x.json", RECORD, "copy it again") == WHOLE


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": True}, "format"),
        ({"format": 1.0}, "format"),
        ({"name": " "}, "name"),
        ({"rate": "2"}, "rate"),
        ({"parts": {}}, "parts"),
        ({"parts": [1]}, "parts.0"),
        ({"parts": [{"tokens": 1}, {"title": "x"}]}, "parts.1.tokens"),
        ({"parts": [{"tokens": 0}]}, "parts.0.tokens"),
        ({"hashes": {"a": 1}}, "hashes.a"),
        ({"pairs": [["a", 1]]}, "pairs.0.1"),
        ({"pairs": [["a", True, True]]}, "pairs.0"),
        ({"file": "../x"}, "file"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, named):
    assert f" {named!r}: " in told(tmp_path / "x.json", WHOLE | change)


def test_a_file_without_a_record_is_named(tmp_path):
    path = tmp_path / "x.json"
    assert "'name': " in told(path, {"format": 1})
    told(path, [])
    told(path, WHOLE | {"\ud800": 1})


def test_a_wrong_line_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"tokens": 0}\n{"tokens": 1}\n{"tokens": -1}\n')
    lines = read_json_lines(path, Fields({"tokens": CountFrom0}), "copy it again")
    assert [next(lines), next(lines)] == [{"tokens": 0}, {"tokens": 1}]
    with pytest.raises(DamagedFile, match=r"line 3 of .*x\.jsonl .*'tokens': "):
        next(lines)
