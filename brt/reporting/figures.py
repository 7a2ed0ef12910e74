"""Figures of runs: curves of training, and the series of studies."""

import re
from collections.abc import Sequence

from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.runs import Run
from brt.reporting.sweep_folder import Entry

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


def training_curves(runs: list[Run], entries: Sequence[Entry] = ()) -> list[Plot]:
    """Returns the curves for which some run has numbers; runs of one corpus share a plot.

    entries: of a sweep: each has one colour, and each metric its own plot.
    """
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(str(run.settings.get("Corpus.store")), []).append(run)
    if len(tasks) == 1:
        return _curves(runs, entries)
    return [
        plot._replace(
            name=f"{plot.name}_{number}",
            title=f"{plot.title}: {_named(members, entries)}",
        )
        for number, members in enumerate(tasks.values(), 1)
        for plot in _curves(members, entries)
    ]


def _named(runs, entries):
    labels = [entry.label for entry in entries if any(run in runs for run in entry.runs)]
    return ", ".join(labels or [run.name for run in runs])


def _curves(runs, entries):
    plots: list[Plot] = []
    for name, title, label, pattern, caption in CURVES:
        lines: dict[str, list[Line]] = {}
        scalars = {
            scalar
            for run in runs
            for record in run.records
            for scalar in record
            if re.fullmatch(pattern, scalar) and run.series(scalar)[0]
        }
        ordered = sorted(scalars, key=lambda scalar: (_kept(scalar), scalar != _kept(scalar)))
        for scalar in ordered:
            metric = _words(_kept(scalar), name)
            lines.setdefault(metric if entries else "", []).extend(
                _lines_of_entries(scalar, entries, scalars)
                if entries
                else _lines_of_runs(scalar, runs, scalars, metric)
            )
        later = name in ("training_loss", "gradient_norm")
        for metric, shown in lines.items():
            several = len(lines) > 1
            plot = Plot(name, title, caption, "step", label, shown, fits_later=later)
            part = metric or label
            plots.append(
                plot._replace(
                    name=re.sub(r"\W+", "_", f"{name}_{part}"),
                    title=f"{title}: {part}",
                    caption="" if plots and plots[-1].caption == caption else caption,
                )
                if several
                else plot
            )
    return plots


def _lines_of_runs(scalar, runs, scalars, metric):
    """Returns a line for each run, in one colour for a run's metric, dashed if it is cleared."""
    metrics = list(dict.fromkeys(map(_kept, sorted(scalars))))
    lines = []
    for number, run in enumerate(runs):
        steps, values = run.series(scalar)
        if steps:
            words = [run.name] * (len(runs) > 1) + [metric, _state(scalar, scalars)]
            colour = number * len(metrics) + metrics.index(_kept(scalar))
            name = ", ".join(filter(None, words)) or run.name
            lines.append(_curve(name, steps, values, scalar)._replace(colour=colour))
    return lines


def _lines_of_entries(scalar, entries, scalars):
    """Returns thin lines for the seeds of each entry, which share its colour and its legend."""
    lines = []
    for number, entry in enumerate(entries):
        of_seeds = [(run, *run.series(scalar)) for run in entry.runs]
        of_seeds = [(run, steps, values) for run, steps, values in of_seeds if steps]
        for seed, (run, steps, values) in enumerate(of_seeds):
            name = ", ".join(filter(None, [run.name, _state(scalar, scalars)]))
            line = _curve(name, steps, values, scalar)
            lines.append(
                line._replace(
                    colour=number,
                    legend="" if seed or line.is_dashed else entry.label,
                    is_thin=len(of_seeds) > 1,
                )
            )
    return lines


def _curve(name, steps, values, scalar):
    style = "points" if len(steps) < MANY_POINTS else "line"
    return Line(name, steps, values, style, is_dashed=scalar != _kept(scalar))


def _kept(scalar):
    return scalar.replace("cleared_", "")


def _state(scalar, scalars):
    """Returns `state kept` or `state cleared` for a metric that was measured with both."""
    if scalar != _kept(scalar):
        return "state cleared"
    both = {one for one in scalars if _kept(one) == scalar} - {scalar}
    return "state kept" if both else ""


def _words(scalar, figure):
    text = scalar.split("/", 1)[1]
    if figure != "recall":  # whose lines are accuracies of several kinds of questions
        shown = "bits_per_token", "learning_rate", "tokens_per_second", figure
        for word in shown:
            text = text.replace(word, "")
    return text.strip("_/").replace("_", " ").replace("/", " ")


def study_plots(run: Run, name: str) -> list[Plot]:
    """Returns the series of a study; those with the same axes and borders share a plot."""
    together: dict[tuple, list] = {}
    for series in run.studies[name].get("series", []):
        if len(series.get("x", [])) != len(series.get("y", [])):
            run.problems.append(f"{run.folder}/studies/{name}.json: a series has no y for each x")
            continue
        borders = tuple(series.get("borders") or ())
        key = series.get("x_label", ""), series.get("y_label", ""), borders
        together.setdefault(key, []).append(series)
    x_labels = {key[0] for key in together if not key[1].startswith("documents")}
    counts = {
        key: group
        for key, group in together.items()
        if key[1].startswith("documents") and key[0] in x_labels
    }
    plots: list[Plot] = []
    for key, group in together.items():
        if key in counts:
            continue
        x_label, y_label, borders = key
        beside = [other for other in counts if other[0] == x_label]
        lines = [_line(series, "stems" if borders else None) for series in group]
        for other in beside:
            lines += [_line(s, "line")._replace(on_second_axis=True) for s in counts[other]]
        plots.append(
            Plot(
                re.sub(r"\W+", "_", f"{name}_{run.name}_{len(plots) + 1}"),
                _title(group, x_label, y_label, borders),
                "",
                x_label,
                y_label,
                lines,
                log_x=all(_spread_out(series["x"]) for series in group),
                borders=borders,
                second_label=beside[0][1] if beside else "",
                fits_later=bool(beside),
            )
        )
    return plots


def _line(series, style):
    style = style or ("points" if len(series["x"]) < MANY_POINTS else "line")
    name, errors = series.get("name", ""), series.get("errors")
    return Line(name, series["x"], series["y"], style, errors=errors)


def _title(group, x_label, y_label, borders):
    if len(group) > 1:
        text = f"{y_label} by {x_label}"
    else:
        text = group[0].get("name", "")
        if borders:  # named after a document
            return f"{text}: {y_label}"
    return text[:1].upper() + text[1:]


def _spread_out(x):
    return 1 < len(x) <= 40 and min(x) > 0 and max(x) / min(x) >= 64
