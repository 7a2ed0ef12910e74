"""Checks of settings: what has no meaning is refused by its name, before any work.

A `Range` says which numbers have a meaning. A parameter that gin may bind declares it in its
annotation, `steps: Count`, and `brt.config.parse` compares what is bound with it. The functions
below are for callers from Python and for what depends on other settings. Each takes the name a
setting is bound by, such as `adamw.clip_norm`, and its value, and raises a `ValueError` that gives
both and says what is expected.
"""

import numbers
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Numbers between them are neither 0 nor infinite in float32, which settings are computed in."""

MOST = 2**31 - 1
"""The largest whole number that counts something: sizes and steps are int32 on the devices."""


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included.

    words: says what is expected, after "must be".
    below: `high` itself is left out.
    whole: whole numbers only, 3.0 among them.
    """

    words: str
    low: float
    high: float = LARGEST
    below: bool = False
    whole: bool = False

    def holds(self, value: Any) -> bool:
        """Tells whether a value is a number of the range; True and False are none."""
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            return False
        number: Any = value
        if not self.low <= number <= self.high or (self.below and number == self.high):
            return False
        return not self.whole or number == int(number)


class NotEmpty:
    """Strings with a character in them."""

    words = "a string that is not empty"

    def holds(self, value: Any) -> bool:
        """Tells whether a value is a string with something else than blanks in it."""
        return isinstance(value, str) and bool(value.strip()) and "\0" not in value


class OneOf(NamedTuple):
    """The strings that a setting may be: `Annotated[str, OneOf(("fixed", "lstm"))]`."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def holds(self, value: Any) -> bool:
        """Tells whether a value is one of them."""
        return value in self.choices


POSITIVE = Range("a finite number above 0", SMALLEST)
NOT_NEGATIVE = Range("a finite number, 0 or above", 0)
SHARE = Range("a number from 0 to below 1", 0, 1, below=True)
FINITE = Range("a finite number", -LARGEST)
PART = Range("a number from 0 to 1", 0, 1)
WHOLE = Range(f"a whole number from 0 to {MOST:,}", 0, MOST, whole=True)
COUNT = Range(f"a whole number from 1 to {MOST:,}", 1, MOST)
COUNT_FROM_0 = Range(f"a whole number from 0 to {MOST:,}", 0, MOST)
MANY = Range("a whole number, 1 or above", 1, 2**63 - 1, whole=True)
MANY_FROM_0 = Range("a whole number, 0 or above", 0, 2**63 - 1, whole=True)
SYMBOLS = Range(f"a whole number from 1 to {2**20:,}", 1, 2**20)
SEED = Range(f"a whole number from 0 to {2**32 - 1:,}", 0, 2**32 - 1)
INDEX = Range(f"a whole number from {-MOST:,} to {MOST:,}", -MOST, MOST)
DEVICES = Range("a number of devices, or -1 for those that are left", -1, MOST)

Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Share = Annotated[float, SHARE]
"""A momentum, the decay of a moment, a probability that must not be 1."""
Part = Annotated[float, PART]
WholeNumber = Annotated[float, WHOLE]
"""Whole, and written with or without a point: 1000, 1e3."""
Count = Annotated[int, COUNT]
CountFrom0 = Annotated[int, COUNT_FROM_0]
Symbols = Annotated[int, SYMBOLS]
"""Entries of a table that is made at once: the words of a task."""
Seed = Annotated[int, SEED]
Index = Annotated[int, INDEX]
"""A layer, counted from the last one where it is negative."""
Finite = Annotated[float, FINITE]
Many = Annotated[int, MANY]
ManyFrom0 = Annotated[int, MANY_FROM_0]
"""Counts of what may be more than `MOST`: tokens of a corpus."""
Devices = Annotated[int, DEVICES]
Name = Annotated[str, NotEmpty()]
"""A path, or what something is called."""


def check_choice(name: str, value: Any, choices: Iterable) -> None:
    """Refuses what is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: choose one of {', '.join(map(repr, choices))}.")


def check_positive(name: str, value: Any) -> None:
    """Refuses what is no finite number above 0, or rounds to 0 in float32."""
    _check(name, value, POSITIVE)


def check_not_negative(name: str, value: Any) -> None:
    """Refuses what is no finite number, 0 or above."""
    _check(name, value, NOT_NEGATIVE)


def check_share(name: str, value: Any) -> None:
    """Refuses what is no number from 0 to below 1: a momentum, the decay of a moment."""
    _check(name, value, SHARE)


def check_whole(name: str, value: Any) -> None:
    """Refuses what is no whole number, 0 or above; 3.0 is whole."""
    _check(name, value, WHOLE)


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


def _check(name, value, wanted):
    if not wanted.holds(value):
        raise ValueError(f"{name} = {value!r:.60} must be {wanted.words}.")
