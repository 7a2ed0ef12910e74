"""Means over seeds as in the Block-Recurrent paper, whose spread is rounded up."""

from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

import numpy as np

HUGE, LONG = 1e6, 1e15
"""Larger numbers have an exponent, such as a poor model's perplexity; and larger counts."""


def three_digits(value: float) -> int:
    """Returns the decimals that leave three significant digits: 3.53, 0.952."""
    return 2 if abs(value) >= 0.9995 else 3


def rounded(value: float, decimals: int, mode: str = ROUND_HALF_UP) -> str:
    """Returns `value` with `decimals`; a half is rounded up: 3.525 is 3.53.

    decimals: 0 for counts.
    """
    if not abs(value) < (HUGE if decimals else LONG):
        return f"{value:.2e}"
    # Twelve digits: 3.525 is 3.525, although no float is.
    return f"{Decimal(f'{value:.12g}').quantize(Decimal(1).scaleb(-decimals), mode):,}"


def mean_and_spread(values: Iterable[float]) -> tuple[float, float | None]:
    """Returns mean and standard deviation (n - 1; None for one value)."""
    known = np.fromiter(values, np.float64)
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of two or more values and half of its 95 % interval (Student's t)."""
    from scipy.stats import t  # slow to import

    mean, spread = mean_and_spread(values)
    return mean, float(t.ppf(0.975, len(values) - 1) * spread / len(values) ** 0.5)


def with_error_bar(mean: float, error: float | None, decimals: int) -> str:
    """Returns `3.53 ± 0.01`, with the error, if there is one, rounded up to the same decimals.

    Source: Block-Recurrent, appendix C: 3.525 with deviation 0.0047 is 3.53 ± 0.01.
    """
    text = rounded(mean, decimals)
    return text if error is None else f"{text} ± {rounded(error, decimals, ROUND_CEILING)}"
