"""Values of a config.json, each checked for its type where it is asked for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

LARGEST = 2**31 - 1
MISSING = object()
"""Stands for a key that must be there."""


class ConfigValues:
    """Reads typed values of a config.json; an absent key, or null, takes its default.

    Args:
        values: the JSON object.
        file: its path, for messages.
    """

    def __init__(self, values: Mapping[str, Any], file: str):
        self._values = values
        self.file = file

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value as it is; the default where it is absent or null."""
        value = self._values.get(key)
        return default if value is None else value

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Returns whether the key is there and its value is null."""
        return key in self._values and self._values[key] is None

    def inner(self, key: str) -> "ConfigValues":
        """Returns the values of an object under a key; without any if it is absent or null."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.refused(key, "is no object.")
        return ConfigValues(value, f"{self.file}, {key}")

    def refused(self, key: str, why: str) -> ValueError:
        """Returns the error that names the file, the key and its value."""
        return ValueError(f"{self.file}: {key} = {self._values.get(key)!r} {why}")

    def _of(self, key, default):
        value = self.get(key, default)
        if value is MISSING:
            raise ValueError(f"{self.file} has no {key}, which says a size of the model.")
        return value

    def whole(self, key: str, default: Any = MISSING, minimum: int = 1) -> Any:
        """Returns a whole number, at least `minimum`; or the default as it is."""
        value = self._of(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(key, "is no whole number.")
        if not minimum <= value <= LARGEST:
            raise self.refused(key, f"must lie between {minimum} and {LARGEST}.")
        return value

    def number(self, key: str, default: Any = MISSING) -> float:
        """Returns a finite number above 0."""
        value = self._of(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(key, "is no number.")
        if (isinstance(value, int) and abs(value) > LARGEST) or not math.isfinite(value):
            raise self.refused(key, "is not finite, or too large.")
        if value <= 0:
            raise self.refused(key, "must be above 0.")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Returns true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "must be true or false.")
        return value

    def choice(self, key: str, choices: Sequence[Any], default: Any = MISSING) -> Any:
        """Returns one of the choices."""
        value = self._of(key, default)
        if not any(type(value) is type(one) and value == one for one in choices):
            raise self.refused(key, f"is not supported: {', '.join(map(repr, choices))} are.")
        return value

    def only(self, key: str, allowed: Any, why: str) -> None:
        """Refuses a value other than the one allowed, or absent."""
        value = self.get(key, allowed)
        if type(value) is not type(allowed) or value != allowed:
            raise self.refused(key, why)

    def divided(self, key: str, by: str) -> None:
        """Refuses a size that another does not divide."""
        if self.whole(key) % self.whole(by):
            raise self.refused(key, f"is not divided by {by} = {self.get(by)}.")

    def token(self, key: str, vocabulary_size: int) -> int | None:
        """Returns an id of the vocabulary, the first where there are several; None if absent."""
        value = self.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(key, "is no id of a token.")
        if not 0 <= value < vocabulary_size:
            raise self.refused(key, f"lies beyond the vocabulary of {vocabulary_size} ids.")
        return value
