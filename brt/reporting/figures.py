"""Figures of runs: curves of training, and the series of studies."""

import re
from collections.abc import Sequence

from brt.data.extras import extra_library
from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot, later_range
from brt.reporting.runs import Run

MANY_POINTS = 30
STEADY = "The axis fits what follows the first tenth of the run."
CURVES = (
    ("training_loss", "Loss in training", "bits per token", r"train/bits_per_token",
     "Bits per token of the batches read since the last point; below an evaluation's curve where "
     f"the training text is easier, or learned by heart. {STEADY}"),
    ("evaluation_loss", "Loss on held-out text", "bits per token",
     r"eval/(cleared_)?bits_per_token",
     "Evaluations during training, of a part of the split. Dashed lines repeat each with the state "
     "cleared at every segment: the difference is the cost of clearing it."),
    ("recall", "Recall", "accuracy",
     r"eval/(cleared_)?(recall_accuracy(_near|_across_segments)?|answer_accuracy)",
     "Share of questions answered right. `recall accuracy` is of facts farther back than attention "
     "reaches; dashed lines have the state cleared."),
    ("kept", "Gates: share of the state kept at a block boundary", "kept", r"train/layer\d+/kept",
     "Near 1 the state changes slowly and remembers for long, near 0 it is overwritten."),
    ("state_share", "Share of attention's output that comes from the states, or from the memory",
     "share", r"train/layer\d+/(\w+/)?(state|memory)_share",
     "Near 0 a state is ignored, the known failure of recurrence."),
    ("state_norm", "Norm of the states", "norm", r"train/layer\d+/state_norm",
     "Root mean square of the state vectors; it should settle."),
    ("gradient_norm", "Norm of the gradient, and of its part in the recurrent cell", "norm",
     r"train/(layer\d+/cell_)?grad_norm",
     f"A cell whose gradient is next to nothing is not being trained. {STEADY}"),
    ("learning_rate", "Learning rate", "learning rate", r"train/learning_rate",
     "Of the next step."),
    ("speed", "Speed", "tokens per second", r"perf/tokens_per_second",
     "Tokens a second over all devices; dips are another program's work, or waiting for data."),
)  # fmt: skip
"""Name, title, axis label, scalars and caption of each figure."""


def training_curves(entries: Sequence[Group]) -> list[Plot]:
    """Returns the curves with numbers of some run; entries of one corpus share a plot."""
    tasks: dict[tuple[str, ...], list[Group]] = {}
    for entry in entries:
        tasks.setdefault(entry.runs[0].stores, []).append(entry)
    if len(tasks) == 1:
        return _curves(entries)
    return [
        plot._replace(
            name=f"{plot.name}_{number}",
            title=f"{plot.title}: {', '.join(entry.name for entry in members)}",
        )
        for number, members in enumerate(tasks.values(), 1)
        for plot in _curves(members)
    ]


def _curves(entries):
    plots: list[Plot] = []
    records = [record for entry in entries for run in entry.runs for record in run.records]
    logged, several = dict.fromkeys(scalar for r in records for scalar in r), len(entries) > 1
    for name, title, label, pattern, caption in CURVES:
        kept: dict[str, list[str]] = {}  # scalars by the name of that with the state kept
        for scalar in sorted(filter(re.compile(pattern).fullmatch, logged), key=len):
            kept.setdefault(scalar.replace("cleared_", ""), []).append(scalar)
        lines: dict[str, list[Line]] = {}
        for of_all, scalars in sorted(kept.items()):
            metric = _words(of_all, name)
            states = ("state kept", "state cleared") if len(scalars) > 1 else ("",)
            for scalar, state in zip(scalars, states, strict=True):
                for colour, entry in enumerate(entries):
                    text = entry.name if several or not metric else metric
                    line = _curve(entry, scalar, text, state, colour if several else None)
                    lines.setdefault(metric if several else "", []).extend(line)
        lines = {metric: shown for metric, shown in lines.items() if shown}
        for metric, shown in lines.items():
            plots.append(
                Plot(
                    re.sub(r"\W+", "_", f"{name}_{metric}") if len(lines) > 1 else name,
                    f"{title}: {metric or label}" if len(lines) > 1 else title,
                    "" if plots and plots[-1].title.startswith(title) else caption,
                    "step",
                    label,
                    shown,
                    y_range=later_range(shown) if STEADY in caption else None,
                )
            )
    return plots


def _curve(entry, scalar, name, state, colour):
    pandas = extra_library("pandas", "brt.report", "report")
    logged = [dict(zip(*run.series(scalar))) for run in entry.runs]
    if not any(logged):
        return []
    seeds = [pandas.Series(values, dtype=float) for values in logged if values]
    frame = pandas.concat(seeds, axis=1, join="inner").sort_index()
    style = "points" if len(frame) < MANY_POINTS else "line"
    errors = frame.sem(axis=1).tolist() if len(frame.columns) > 1 else None
    values = frame.mean(axis=1, skipna=False).tolist()
    steps = frame.index.tolist()
    return [Line(name, steps, values, style, errors=errors, colour=colour, state=state)]


def _words(scalar, figure):
    text = scalar.split("/", 1)[1]
    if figure != "recall":  # whose lines are accuracies of several kinds of questions
        shown = "bits_per_token", "learning_rate", "tokens_per_second", figure
        for word in shown:
            text = text.replace(word, "")
    return text.strip("_/").replace("_", " ").replace("/", " ")


def study_plots(run: Run, name: str) -> list[Plot]:
    """Returns the series of a study; those with the same axes and boundaries share a plot."""
    together: dict[tuple, list] = {}
    for series in run.studies[name].get("series", []):
        count = len(series["x"])
        if len(series["y"]) != count or len(series.get("errors") or series["y"]) != count:
            what = "a series has no y, or no error, for each x"
            run.problems.append(f"{run.folder}/studies/{name}.json: {what}")
            continue
        borders = tuple(series.get("borders") or ())
        key = series.get("x_label", ""), series.get("y_label", ""), borders
        together.setdefault(key, []).append(series)
    plots: list[Plot] = []
    for (x_label, y_label, borders), group in together.items():
        is_long = max(len(series["x"]) for series in group) >= MANY_POINTS
        style = "stems" if borders else "line" if is_long else "points"
        first = group[0].get("name", "")
        title = f"{y_label} by {x_label}" if group[1:] else first
        title += f": {y_label}" * (title == first and bool(borders))
        lines = [
            Line(one.get("name", ""), one["x"], one["y"], style, errors=one.get("errors"))
            for one in group
        ]
        plots.append(
            Plot(
                re.sub(r"\W+", "_", f"{name}_{run.name}_{len(plots) + 1}"),
                title[:1].upper() + title[1:],
                "",
                x_label,
                y_label,
                lines,
                log_x=all(_spread_out(one["x"]) for one in group),
                borders=borders,
                y_range=later_range(lines) if style == "line" else None,
            )
        )
    return plots


def _spread_out(x):
    return 1 < len(x) <= 40 and min(x) > 0 and max(x) / min(x) >= 64
