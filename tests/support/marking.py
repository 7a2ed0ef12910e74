"""Parameters of tests that run with the slow tests alone."""

import pytest


def slow(*values, when=True):
    """Values of one case, marked slow; or not marked, where `when` is false."""
    return pytest.param(*values, marks=pytest.mark.slow if when else ())
