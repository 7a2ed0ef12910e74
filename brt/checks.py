"""Checks of settings: what has no meaning is refused by its name, before any work.

Each takes the name a setting is bound by, such as `adamw.clip_norm`, and its value, and raises a
`ValueError` that gives both and says what is expected.
"""

import numbers
from collections.abc import Iterable
from typing import Any

SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Numbers between them are neither 0 nor infinite in float32, which settings are computed in."""


def check_choice(name: str, value: Any, choices: Iterable) -> None:
    """Refuses what is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: choose one of {', '.join(map(repr, choices))}.")


def check_positive(name: str, value: Any) -> None:
    """Refuses what is no finite number above 0, or rounds to 0 in float32."""
    if not (_is_number(value) and value >= SMALLEST):
        raise ValueError(f"{name} = {value!r} must be a finite number above 0.")


def check_not_negative(name: str, value: Any) -> None:
    """Refuses what is no finite number, 0 or above."""
    if not (_is_number(value) and value >= 0):
        raise ValueError(f"{name} = {value!r} must be a finite number, 0 or above.")


def check_share(name: str, value: Any) -> None:
    """Refuses what is no number from 0 to below 1: a momentum, the decay of a moment."""
    if not (_is_number(value) and 0 <= value < 1):
        raise ValueError(f"{name} = {value!r} must lie between 0 and 1, and be below 1.")


def check_whole(name: str, value: Any) -> None:
    """Refuses what is no whole number, 0 or above; 3.0 is whole."""
    if not (_is_number(value) and value >= 0 and value == int(value)):
        raise ValueError(f"{name} = {value!r} must be a whole number, 0 or above.")


def check_rates(name: str, minimum: float, maximum: float) -> None:
    """Refuses learning rates `minimum` and `maximum` of a schedule that do not fit together.

    Args:
        name: of the schedule, `cosine` for one.
    """
    check_not_negative(f"{name}.minimum", minimum)
    check_positive(f"{name}.maximum", maximum)
    if minimum > maximum:
        raise ValueError(
            f"{name}.minimum = {minimum} must not be above {name}.maximum = {maximum}."
        )


def _is_number(value):
    """Tells if it is a number, no bool, and finite in float32."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and -LARGEST <= value <= LARGEST
