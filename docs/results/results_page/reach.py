"""Cost of a reset of the state by distance."""

from collections.abc import Iterable

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot

STUDY = "reach"
"""The study with costs of resets."""
COST = "cost of resetting the "
"""Prefix of the names of its curves, before "state" or "context"."""


def reach_plot(name: str, groups: Iterable[Group]) -> Plot | None:
    """Returns the cost of a reset over its distance; None without the study."""
    lines = [
        _line(run.name, series)
        for group in groups
        for run in group.runs
        for series in run.studies.get(STUDY, {}).get("series", ())
        if series["name"].startswith(COST)
    ]
    if not lines:
        return None
    return Plot(
        name,
        "Cost of a reset, by its distance",
        "Bits per token that it costs a block of W tokens when so many tokens before it the state, "
        "or the whole context with the windows, is set to a document's beginning; the band is the "
        "standard error over blocks. By `--study=reach`.",
        "tokens between the reset and the scored block",
        "cost, bits per token",
        lines,
        log_x=True,
    )


def _line(run, series):
    """Returns a curve without its last point, which is 0 by definition."""
    x, bits, errors = (series[part][:-1] for part in ("x", "y", "errors"))
    return Line(f"{run}, {series['name'].removeprefix(COST)}", x, bits, "points", errors=errors)
