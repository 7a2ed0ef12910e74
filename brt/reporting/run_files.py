"""Readers of the JSON files of a run folder.

Run folders may come from anybody: the report omits damaged files, with a sentence.
"""

from pathlib import Path
from typing import Any

from brt.bindings.gin_files import ReferenceText
from brt.bindings.registry import declarations
from brt.checks import UNKNOWN, ManyFrom0, allows, words_for
from brt.storage.json_files import DamagedFile, Fields, bad_text, read_json

EVALUATION = Fields(
    {},
    {
        "step": ManyFrom0,
        **dict.fromkeys(("split", "caveat", "best_by"), str),
        "given": list[str],
    },
)
"""Content of evaluation_<split>.json; all other entries are numbers."""
STUDY = Fields(
    {},
    {
        "study": str,
        "numbers": dict,
        "series": [
            Fields(
                {"x": list[float], "y": list[float]},
                dict.fromkeys(("name", "x_label", "y_label"), str),
            )
        ],
        "texts": [Fields({}, {"title": str, "parts": list})],
        "table": list[dict],
    },
)
"""The parts of studies/<name>.json that tables of several runs show."""
OLD_SUMMARY = "verdict"
"""The key of "summary" in files of older runs."""
STANDS_FOR = Fields({}, {"settings": dict})

AGAIN = "remove the file, or have it written again"


def read_evaluation(path: Path) -> dict[str, Any]:
    content = read_shown(path, EVALUATION)
    for name, value in content.items():
        if name not in EVALUATION.optional and not allows(float, value):
            raise _damaged(path, f"{name} is not a number")
    return content


def read_study(path: Path) -> dict[str, Any]:
    content = read_shown(path, STUDY)
    if OLD_SUMMARY in content:
        content["summary"] = content.pop(OLD_SUMMARY)
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


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuses settings outside declared types and ranges; allows unknown names."""
    declared = declarations()
    if wrong := bad_text(settings):
        raise _damaged(path, wrong)
    for name, value in settings.items():
        expected = declared.get(name.rpartition("/")[2])
        # References are not built here.
        if expected is None or isinstance(value, ReferenceText):
            continue
        if not allows(expected, _known(value)):
            what = f"{name} = {value!r:.60} must be {words_for(expected)}"
            raise _damaged(path, what)


def _known(value):
    if isinstance(value, ReferenceText):
        return UNKNOWN
    if isinstance(value, tuple | list):
        return [_known(one) for one in value]
    return value


def _damaged(path, what, advice=AGAIN):
    return DamagedFile(f"{path} is damaged, as {what}: {advice}.")
