"""The parts that the files of all studies are made of: numbers, curves, maps and a verdict.

docs/evaluation.md and docs/studies.md say what is in them.
"""

from collections.abc import Sequence
from typing import Any

Content = dict[str, Any]
"""The content of a study's file: "numbers", "series", "verdict", and more of some studies."""


def content(numbers: dict[str, Any], series: list[dict], verdict: str, **more: Any) -> Content:
    """Returns the parts that every study has, and more."""
    return {"numbers": numbers, "series": series, "verdict": verdict, **more}


def curve(
    name: str, x: Sequence, y: Sequence, x_label: str, y_label: str, **more: Any
) -> dict[str, Any]:
    """Returns one of the "series": a curve with its labels; `more` as "borders" or "errors"."""
    return {
        "name": name,
        "x": list(x),
        "y": list(y),
        "x_label": x_label,
        "y_label": y_label,
        **more,
    }
