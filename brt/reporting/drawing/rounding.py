"""Means over seeds as in the Block-Recurrent paper, whose spread is rounded up."""

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

import numpy as np

LONG = 1e15


def three_digits(value: float) -> int:
    """Returns the decimals that leave three significant digits: 3.53, 0.952."""
    return 2 if abs(value) >= 0.9995 else 3


def rounded(value: float, decimals: int) -> str:
    """Returns `value` with `decimals`; a half is rounded up: 3.525 is 3.53."""
    if not abs(value) < LONG:
        return f"{value:.4g}"
    return f"{_decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):,}"


def mean_and_spread(values: Iterable[float]) -> tuple[float, float | None]:
    """Returns mean and standard deviation (n - 1; None for one value)."""
    known = np.fromiter(values, np.float64)
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None


def confidence_interval(values: Iterable[float]) -> tuple[float, float]:
    """Returns the mean of two or more values and half of its 95 % interval (Student's t)."""
    from scipy.stats import t  # slow to import

    known = np.fromiter(values, np.float64)
    quantile = t.ppf(0.975, len(known) - 1)
    return float(known.mean()), float(quantile * known.std(ddof=1) / len(known) ** 0.5)


def with_error_bar(values: Iterable[float], decimals: int) -> str:
    """Returns mean and spread, the latter rounded up to the same decimals.

    Source: Block-Recurrent, appendix C: 3.525 with deviation 0.0047 is 3.53 ± 0.01.
    """
    mean, spread = mean_and_spread(values)
    if spread is None:
        return rounded(mean, decimals)
    return f"{rounded(mean, decimals)} ± {rounded_up(spread, decimals)}"


def rounded_up(spread: float, decimals: int) -> str:
    """Returns a spread rounded up, to at least one unit of the last decimal, or 0."""
    if not abs(spread) < LONG:
        return f"{spread:.4g}"
    if spread == 0:
        return rounded(spread, decimals)
    unit = Decimal(1).scaleb(-decimals)
    return str(max(_decimal(spread).quantize(unit, ROUND_CEILING), unit))


def _decimal(value):
    # Twelve digits: 3.525 is 3.525, although no float is.
    return Decimal(f"{value:.12g}")
