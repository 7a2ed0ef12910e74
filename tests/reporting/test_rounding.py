"""Numbers are rounded as the paper rounds them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.reporting.drawing.rounding import mean_and_spread, rounded, three_digits, with_error_bar
from brt.reporting.run_tables import numbers_table


def test_the_paper_s_own_example_is_rounded_up():
    values = 3.525 + 0.0047 * np.array([-1.0, 0.0, 1.0])  # mean 3.525, deviation 0.0047
    assert mean_and_spread(values) == pytest.approx((3.525, 0.0047))
    assert with_error_bar(*mean_and_spread(values), 2) == "3.53 ± 0.01"


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 9.0), min_size=2, max_size=5), st.integers(1, 4))
def test_printed_spread_is_less_than_one_unit_above_the_true(values, decimals):
    _, spread = mean_and_spread(values)
    bar = float(with_error_bar(*mean_and_spread(values), decimals).split("±")[1])
    unit = 10.0**-decimals
    assert spread - 1e-9 <= bar <= spread + unit + 1e-9


def test_seeds_that_agree_have_no_spread():
    assert with_error_bar(*mean_and_spread([0.0, 0.0]), 2) == "0.00 ± 0.00"


@pytest.mark.parametrize(
    ("value", "printed"), [(3.525, "3.53"), (0.9524, "0.952"), (1.009, "1.01"), (0.9999, "1.00")]
)
def test_three_digits_are_what_the_paper_prints(value, printed):
    assert rounded(value, three_digits(value)) == printed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3296311706628615.0, "3.30e+15"),
        (1e6, "1.00e+06"),
        (999_999.5, "999,999.50"),
        (10**7, "10,000,000"),
    ],
)
def test_a_huge_number_that_is_no_count_has_an_exponent(value, text):
    (row,) = numbers_table("n", {"perplexity": value}).rows
    assert row[1].text.rstrip("0") == text.rstrip("0")
