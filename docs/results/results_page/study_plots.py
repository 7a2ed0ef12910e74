"""Figures of studies: improvement and costs by position, by place in a segment, and by distance."""

from collections.abc import Iterable, Iterator

import numpy as np

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.runs import Run

CUMULATIVE = "cumulative, "
"""Prefix of the names of the cumulative curves of the study `positions`."""
FEWEST = 100
"""Least position drawn; earlier means are of too few tokens."""
BY_PLACE = "difference by place in the segment"
"""The series of the study `compare-cleared`."""
COST = "cost of resetting the "
"""Prefix of the names of the curves of the study `reach`, before "state" or "context"."""


def study_plots(name: str, groups: list[Group]) -> list[Plot]:
    """Returns the figures for which some run has a study."""
    plots = [
        Plot(
            f"{name}_distance",
            "Gain of recurrence over distance",
            "Bits per token by which a recurrent run is better than the one that it was compared "
            "with, over all tokens of all documents up to a position.",
            "position in the document, tokens",
            "gain so far, bits per token",
            [line for group in groups if group.position.states
             for run in group.runs for line in _gains(run)],
            log_x=True,
        ),
        Plot(
            f"{name}_segment",
            "Cost of clearing the state, by place in the segment",
            "Bits per token that runs lose when their state is cleared at every segment, at so "
            "many tokens after the segment's begin: each mark is the mean from there to the next.",
            "place in the segment, tokens",
            "cost of clearing, bits per token",
            [Line(run.name, series["x"], series["y"], "points")
             for run, series in _series(groups, "compare-cleared") if series["name"] == BY_PLACE],
        ),
        Plot(
            f"{name}_reach",
            "Cost of a reset, by its distance",
            "Bits per token that it costs a block of W tokens when so many tokens before it the "
            "state, or the whole context with the windows, is set to a document's beginning; the "
            "band is the standard error over blocks. By `--study=reach`.",
            "tokens between the reset and the scored block",
            "cost, bits per token",
            [_cost(run.name, series) for run, series in _series(groups, "reach")
             if series["name"].startswith(COST)],
            log_x=True,
        ),
    ]  # fmt: skip
    return [plot for plot in plots if plot.lines]


def _series(groups: Iterable[Group], study: str) -> Iterator[tuple[Run, dict]]:
    for run in (run for group in groups for run in group.runs):
        for series in run.studies.get(study, {}).get("series", ()):
            yield run, series


def _gains(run):
    for study in run.studies.values():
        if study.get("study") == "positions":
            own, *others = (s for s in study["series"] if s["name"].startswith(CUMULATIVE))
            for other in others:
                x, bits, plain = map(np.asarray, (own["x"], own["y"], other["y"]))
                drawn = x >= FEWEST
                yield Line(run.name, x[drawn].tolist(), (plain - bits)[drawn].tolist())


def _cost(run, series):
    # The last point is 0 by definition.
    x, bits, errors = (series[part][:-1] for part in ("x", "y", "errors"))
    return Line(f"{run}, {series['name'].removeprefix(COST)}", x, bits, "points", errors=errors)
