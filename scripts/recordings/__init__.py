"""Replays of recordings, a module for each format; see `check_recording.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def below(recording: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the arrays whose names begin with a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): x for n, x in recording.items() if n.startswith(prefix)}


def relative_error(found: Any, recorded: np.ndarray) -> float:
    """Returns the largest difference relative to the largest recorded number, if that is not 0."""
    return np.abs(recorded - np.asarray(found)).max() / (np.abs(recorded).max() or 1.0)
