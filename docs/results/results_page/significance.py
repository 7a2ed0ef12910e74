"""Probabilities of paired differences, corrected for the number of comparisons."""

from collections.abc import Sequence


def p_value(differences: Sequence[float]) -> float:
    """Returns the two-sided p of a mean difference of zero (paired t-test)."""
    from scipy.stats import ttest_1samp  # slow to import

    return float(ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted by Holm's step-down method, in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted
