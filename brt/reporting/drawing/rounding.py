"""Means over seeds as the paper prints them: the spread is rounded up, never down."""

from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

import numpy as np


def three_digits(value: float) -> int:
    """Decimals that leave three significant digits, as the paper's bits have: 3.53, 0.952."""
    return 2 if abs(value) >= 0.9995 else 3


def rounded(value: float, decimals: int) -> str:
    """`value` with so many decimals; a half goes up: 3.525 is 3.53, and 11559455 is 11,559,455."""
    return f"{_decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):,}"


def mean_and_spread(values) -> tuple[float, float | None]:
    """Mean and standard deviation (n - 1) of runs with different seeds; None for a single run."""
    values = np.asarray(values, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


def with_error_bar(values, decimals: int) -> str:
    """Mean over seeds, with the spread rounded up to the same decimals, at least one unit.

    Source: Block-Recurrent, appendix C: 3.525 with deviation 0.0047 is 3.53 ± 0.01.
    """
    mean, spread = mean_and_spread(values)
    if spread is None:
        return rounded(mean, decimals)
    return f"{rounded(mean, decimals)} ± {rounded_up(spread, decimals)}"


def rounded_up(spread: float, decimals: int) -> str:
    """A spread with so many decimals, never less than it is, and at least one unit."""
    unit = Decimal(1).scaleb(-decimals)
    return str(max(_decimal(spread).quantize(unit, ROUND_CEILING), unit))


def _decimal(value):
    # Twelve digits: 3.525 is 3.525, although no float is.
    return Decimal(f"{value:.12g}")
