"""Improvement over the baseline by position in the document."""

from collections.abc import Iterable

import numpy as np

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot

STUDY = "positions"
"""The study with the losses of two runs by position."""
CUMULATIVE = "cumulative, "
"""Prefix of the names of its cumulative curves."""
FEWEST = 100
"""Least position drawn; earlier means are of too few tokens."""


def distance_plot(name: str, groups: Iterable[Group]) -> Plot | None:
    """Returns the improvement in bits per token up to each position; None without the study."""
    lines = []
    for group in groups:
        for run in group.runs if group.position.states else ():
            for study in run.studies.values():
                curves = _cumulative(study) if study.get("study") == STUDY else []
                lines += [_gain(run.name, curves[0], other) for other in curves[1:]]
    if not lines:
        return None
    return Plot(
        name,
        "Gain of recurrence over distance",
        "Bits per token by which a recurrent run is better than the one that it was compared with, "
        "over all tokens of all documents up to a position.",
        "position in the document, tokens",
        "gain so far, bits per token",
        lines,
        log_x=True,
    )


def _cumulative(study):
    return [series for series in study["series"] if series["name"].startswith(CUMULATIVE)]


def _gain(name, own, other):
    x, bits, plain = (np.asarray(values) for values in (own["x"], own["y"], other["y"]))
    drawn = x >= FEWEST
    return Line(name, x[drawn].tolist(), (plain - bits)[drawn].tolist())
