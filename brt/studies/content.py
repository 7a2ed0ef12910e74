"""The parts of a study's file; docs/studies.md documents them."""

from collections.abc import Sequence
from typing import Any

Content = dict[str, Any]
"""The content of a study's file: "numbers", "series", "summary", and more of some studies."""


def content(numbers: dict[str, Any], series: list[dict], summary: str, **more: Any) -> Content:
    """Returns the parts that every study has, and more."""
    return {"numbers": numbers, "series": series, "summary": summary, **more}


def curve(
    name: str, x: Sequence, y: Sequence, x_label: str, y_label: str, **more: Any
) -> dict[str, Any]:
    """Returns one of the "series"; `more` is "borders" or "errors"."""
    labels = {"x_label": x_label, "y_label": y_label}
    return {"name": name, "x": list(x), "y": list(y), **labels, **more}
