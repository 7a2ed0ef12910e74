"""Readers of the JSON files of a run folder.

Run folders may come from anybody: the report omits damaged files, with a sentence.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Strict

from brt.bindings.registry import declarations
from brt.checks import LARGEST, UNKNOWN, CountFrom0, Finite, ManyFrom0, Rule, allows, words_for
from brt.reporting.gin_text import Reference
from brt.storage.json_files import DamagedFile, Fields, bad_text, misfit, read_json

FILE_NAME = Rule(
    "the name of a file, without a folder",
    lambda name: re.fullmatch(r"[\w\-][\w\-.]*", name) is not None,
)
SHOWN = Rule(
    f"a number from {-LARGEST:.2g} to {LARGEST:.2g}", lambda value: not abs(value) > LARGEST
)
"""Numbers for tables and figures: of float32, or NaN."""
Number = Annotated[float, SHOWN]

EVALUATION = Fields(
    {},
    {
        "step": ManyFrom0,
        **dict.fromkeys(("split", "caveat", "best_by"), str),
        **dict.fromkeys(("loss", "cleared_loss"), float),
        "given": list[str],
    },
)
"""Content of evaluation_<split>.json; all other entries are numbers."""

SERIES = Fields(
    {"x": list[Finite], "y": list[Number]},
    {
        **dict.fromkeys(("name", "x_label", "y_label"), str),
        "borders": list[Finite] | None,
        "errors": list[Number] | None,
    },
)
MAP = Fields(
    {
        **dict.fromkeys(("array", "title", "caption", "x_label", "y_label"), str),
        **dict.fromkeys(("x_ends", "y_ends"), Annotated[tuple[Finite, Finite], Strict(False)]),
        **dict.fromkeys(("x_borders", "y_borders"), list[Finite]),
    },
    {"marked": list[Finite], "x_values": list[Finite], "y_values": list[Finite], "most": Finite},
)
EXCERPT = Fields(
    {},
    {
        **dict.fromkeys(("direction", "kind", "where"), str),
        **dict.fromkeys(("before", "text", "after", "title", "word"), str | None),
        **dict.fromkeys(("rank", "token"), CountFrom0),
        **dict.fromkeys(("nats", "other_nats"), Number),
        "last_seen": ManyFrom0 | None,
        "recalled": bool,
    },
)
OLD_SUMMARY = "verdict"
"""The key of "summary" in files of older runs."""
STUDY = Fields(
    {},
    {
        **dict.fromkeys(("study", "run", "other", "against", "summary", OLD_SUMMARY), str),
        "split": str | None,
        "numbers": dict[str, Number | None],
        "series": [SERIES],
        "excerpts": [EXCERPT],
        "texts": [
            Fields({}, {"title": str, "parts": list[Annotated[tuple[str, bool], Strict(False)]]})
        ],
        "table": list[dict],
        "maps": [MAP],
        "arrays": Annotated[str, FILE_NAME],
        "contexts": list[Finite],
        "gains": dict[str, list[list[Finite | None]]],
    },
)
"""Content of studies/<name>.json, as in docs/studies.md."""

STANDS_FOR = Fields({}, {"settings": dict})

SCALAR = Number | str | bool | None
AGAIN = "remove the file, or have it written again"


def read_evaluation(path: Path, problems: list[str]) -> dict[str, Any]:
    content = read_shown(path, EVALUATION)
    problems += [f"{path}: {what}" for what in replace_extremes(content).values()]
    for name, value in content.items():
        if name not in EVALUATION.optional and not allows(Number, value):
            raise _damaged(path, f"{name} is not a number")
    if "cleared_loss" in content and "loss" not in content:
        raise _damaged(path, "it has a cleared_loss and no loss")
    return content


def read_study(path: Path) -> dict[str, Any]:
    content = read_shown(path, STUDY)
    if OLD_SUMMARY in content:
        content["summary"] = content.pop(OLD_SUMMARY)
    for number, series in enumerate(content.get("series", ())):
        errors = series.get("errors")
        if errors is not None and len(errors) != len(series["y"]):
            raise _damaged(path, f"series[{number}] has no error for each y")
    for number, row in enumerate(content.get("table", ())):
        if wrong := misfit(Fields({}, dict.fromkeys(row, SCALAR)), row):
            raise _damaged(path, f"table[{number}] has {wrong}")
    if "gains" in content:
        side = len(content.get("contexts", ()))
        for name, lines in content["gains"].items():
            if not side or len(lines) != side or any(len(line) != side for line in lines):
                raise _damaged(path, f"gains of {name!r:.60} are not one for each two contexts")
    return content


def read_stands_for(path: Path) -> dict[str, Any]:
    content = read_shown(path, STANDS_FOR)
    check_settings(path, content.get("settings", {}))
    return content


def read_shown(path: Path | str, expected: Any, advice: str = AGAIN) -> Any:
    """Returns the content of a JSON file whose texts a page can show; as `read_json`."""
    content = read_json(path, expected, advice)
    if wrong := bad_text(content):
        raise _damaged(path, wrong, advice)
    return content


def replace_extremes(values: dict[str, Any]) -> dict[str, str]:
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    extreme = {name: value for name, value in numbers.items() if not SHOWN.holds(value)}
    values |= dict.fromkeys(extreme, math.nan)
    words = f"counts as NaN, because it is not {SHOWN.description}"
    return {name: f"{name} = {value!r:.40} {words}" for name, value in extreme.items()}


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuses settings outside declared types and ranges; allows unknown names."""
    declared = declarations()
    if wrong := bad_text(settings):
        raise _damaged(path, wrong)
    for name, value in settings.items():
        expected = declared.get(name.rpartition("/")[2])
        # References are not built here.
        if expected is None or isinstance(value, Reference):
            continue
        if not allows(expected, _known(value)):
            what = f"{name} = {value!r:.60} must be {words_for(expected)}"
            raise _damaged(path, what)


def _known(value):
    if isinstance(value, Reference):
        return UNKNOWN
    if isinstance(value, tuple | list):
        return [_known(one) for one in value]
    return value


def _damaged(path, what, advice=AGAIN):
    return DamagedFile(f"{path} is damaged, as {what}: {advice}.")
