"""Figures of studies: improvement by position, and the cost of a reset by its distance."""

from collections.abc import Iterable

import numpy as np
from results_page.gain_tables import described

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot

CUMULATIVE = "cumulative, "
"""Prefix of the names of the cumulative curves of the study `positions`."""
FEWEST = 100
"""Least position drawn; earlier means are of too few tokens."""
COST = "cost of resetting the "
"""Prefix of the names of the curves of the study `reach`, before "state" or "context"."""
FARTHEST = 2000
"""Largest distance of a reset that is drawn, in tokens."""


def study_plots(name: str, groups: Iterable[Group]) -> list[Plot]:
    """Returns the figures for which some run has a study."""
    both = [(group, run) for group in groups for run in group.runs]
    plots = [
        Plot(
            f"{name}_distance",
            "Improvement by position",
            "Bits per byte by which a recurrent run is better than a plain one, over all bytes of "
            "all documents of validation up to a position. One seed.",
            "position in the document, bytes",
            "improvement so far, bits per byte",
            [line for group, run in both if group.position.states for line in _gains(group, run)],
            log_x=True,
        ),
        Plot(
            f"{name}_reach",
            "Cost of a reset, by its distance",
            "Cost of resetting, so many bytes before a block of W bytes, the state, or the state "
            "and the windows (context), to the beginning of a document; the band is the standard "
            "error over blocks. One seed. By `--study=reach`.",
            "bytes between the reset and the scored block",
            "cost, bits per byte",
            [_cost(group.position.system, series) for group, run in both
             for series in run.studies.get("reach", {}).get("series", ())
             if series["name"].startswith(COST)],
            log_x=True,
        ),
    ]  # fmt: skip
    return [plot for plot in plots if plot.lines]


def _gains(group, run):
    for study in run.studies.values():
        if study.get("study") == "positions":
            own, *others = (s for s in study["series"] if s["name"].startswith(CUMULATIVE))
            for other in others:
                x, bits, plain = map(np.asarray, (own["x"], own["y"], other["y"]))
                drawn = x >= FEWEST
                yield Line(described(group), x[drawn].tolist(), (plain - bits)[drawn].tolist())


def _cost(system, series):
    points = zip(*(series[part] for part in ("x", "y", "errors")))
    x, bits, errors = zip(*(point for point in points if point[0] <= FARTHEST))
    name = f"{system}, {series['name'].removeprefix(COST)}"
    return Line(name, x, bits, "points", errors=errors)
